"""The relaxation never exceeds what any schedule reaches, and is exact where that is plain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solvers.program
from solvers.checker import check_proofs
from solvers.problem import Problem, Stage
from solvers.relaxation import relax
from solvers.replay import measure, replay


def test_copies_bind(make: Any) -> None:
    # 4 items of 5 bytes and 1 ms, all demanded in each of 50 passes; lead and work of 0. One slot
    # and one resident fit in 10 bytes: 3 ms a pass.
    stage = Stage(None, (make.unit(1_000_000, 5),) * 4)
    scenarios = make.scenarios([[[1, 1, 1, 1]]] * 50, lead=0, work=lambda rows: 0)
    relaxed = relax(Problem((stage,), scenarios, 10, 5))
    assert relaxed is not None
    assert relaxed.bound.value_ns == pytest.approx(150e6, rel=1e-5)
    assert relaxed.bound.value_ns <= 150_000_000
    assert relaxed.resident.sum() == pytest.approx(1.0)
    # one more byte keeps a fifth of an item: 0.2 ms in each of 50 passes
    assert relaxed.saved_ns_per_byte == pytest.approx(10e6, rel=1e-5)


def test_computation_binds(make: Any) -> None:
    # lead 5 ms a pass, one copy of 1 ms: hidden, but for the first
    stage = Stage(None, (make.unit(1_000_000, 5),) * 2)
    scenarios = make.scenarios([[[1, 1]]] * 3, lead=5_000_000)
    relaxed = relax(Problem((stage,), scenarios, 5, 5))
    assert relaxed is not None
    assert relaxed.bound.value_ns == pytest.approx(3 * 5_000_020, rel=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_never_above_the_best_of_all_schedules(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = tuple(
        Stage(
            make.unit(int(rng.integers(1, 40)), 3) if rng.random() < 0.6 else None,
            tuple(make.unit(int(rng.integers(5, 40)), 4) for _ in range(2)),
        )
        for _ in range(2)
    )
    demand = (rng.random((3, 2, 2)) < 0.7) * rng.integers(1, 4, (3, 2, 2))
    scenarios = make.scenarios(demand.tolist(), lead=int(rng.integers(0, 60)))
    problem = Problem(stages, scenarios, int(rng.integers(8, 20)), 4)
    best = min(measure(problem, replay(problem, one)) for one in make.every_schedule(problem))
    relaxed = relax(problem)
    assert relaxed is not None
    assert relaxed.bound.value_ns <= best


def _binding(make: Any, capacity_bytes: int = 11) -> Problem:
    """Copies bind, as in the first test; its slot could be one, two, or a fraction."""
    stage = Stage(None, (make.unit(1_000_000, 5),) * 4)
    scenarios = make.scenarios([[[1, 1, 1, 1]]] * 50, lead=0, work=lambda rows: 0)
    return Problem((stage,), scenarios, capacity_bytes, 5)


def test_a_program_is_not_solved_twice(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks the same again (a checker) proves it again, without the solver."""
    first = relax(_binding(make))
    runs: list[str] = []
    original = solvers.program.QuietHighs.run

    def run(highs: Any) -> Any:
        runs.append("run")
        return original(highs)

    monkeypatch.setattr(solvers.program.QuietHighs, "run", run)
    again = relax(_binding(make))
    assert runs == []
    assert first is not None
    assert again is not None
    assert again.bound.value_ns == first.bound.value_ns
    assert np.array_equal(again.resident, first.resident)
    # one byte more is another program
    other = relax(_binding(make, 12))
    assert other is not None
    assert runs
    # 0.4 of an item stays beside one resident and the slot, then 0.2 ms a byte less: 10 ms
    assert first.bound.value_ns - other.bound.value_ns == pytest.approx(10e6, rel=1e-4)


def test_without_time_there_is_none(make: Any) -> None:
    assert relax(_binding(make, 13), seconds=0.0) is None


def test_one_program_is_enough_for_a_bound(make: Any) -> None:
    # 14 bytes hold a slot and 9 / 5 items: 2.2 ms in each of 50 passes
    problem = _binding(make, 14)
    tight, loose = relax(problem), relax(problem, every_slot=False)
    assert tight is not None
    assert loose is not None
    assert len(loose.bound.proofs) == 1 < len(tight.bound.proofs)
    for one in (tight, loose):
        assert one.bound.value_ns == pytest.approx(110e6, rel=1e-6)
        assert one.bound.value_ns <= 110_000_000
        assert list(check_proofs(problem, one.bound)) == []
