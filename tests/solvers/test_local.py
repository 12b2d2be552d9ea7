"""The fluid clock by hand, and residents that move to where their copies hide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers import sets
from solvers.checker import check_schedule
from solvers.layout import smallest_capacity
from solvers.local import FluidClock, move_residents
from solvers.moves import Move, Sets
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage
from solvers.replay import measure, objective, replay
from solvers.sets import Search, unit_order


@pytest.fixture
def even(make: Any) -> Problem:
    """Four stages of one item, 3 ms of lead each; a copy takes 6 ms. Two items stay, one slot."""
    stage = Stage(None, (make.unit(6_000_000, 5),))
    scenarios = make.scenarios([[[1]] * 4] * 8, lead=3_000_000, work=lambda rows: 0)
    return Problem((stage,) * 4, scenarios, 15, 5)


def keeping(resident: tuple[int, ...]) -> Schedule:
    return Schedule(
        tuple(
            StageChoice(False, (0,) if at in resident else (), () if at in resident else (0,))
            for at in range(4)
        ),
        slots=1,
        start_slots=0,
        reserve=0,
    )


def test_the_fluid_clock_by_hand(even: Problem) -> None:
    clock = FluidClock(even, np.ones((4, 1), dtype=bool), 1, 0, 0)
    starts = np.zeros(4, dtype=bool)
    # stages 2 and 3 stream: ahead by 6 at stage 2 (3 in the first pass's stages 0 and 1, then
    # capped by the slot), so 2 waits for nothing and 3 for 3 ms: 15 ms a pass
    sets = Sets(np.array([[True], [True], [False], [False]]), starts)
    swapped = Move(((1, 0),), ((2, 0),))
    values = clock.measure(sets, [Move((), ()), swapped])
    assert values[0] == pytest.approx(8 * 15e6)
    # stages 1 and 3: 6 ms between them hide each copy, but for the first one's: it has 6 as well
    assert values[1] == pytest.approx(8 * 12e6)
    for at, resident in enumerate(((0, 1), (0, 2))):
        assert measure(even, replay(even, keeping(resident))) == pytest.approx(values[at], rel=1e-6)


def test_residents_move_to_where_copies_hide(even: Problem) -> None:
    search = Search(even, unit_order(even, None))
    search.try_schedule(keeping((0, 1)))
    before = search.best_value
    move_residents(search, 1.0, 0)
    assert before == pytest.approx(8 * 15e6, rel=1e-6)
    assert search.best_value == pytest.approx(8 * 12e6, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_only_schedules_that_fit_and_the_same_each_time(make: Any, seed: int) -> None:
    problem = make.problem(np.random.default_rng(300 + seed))
    room = smallest_capacity(problem.stages, problem.slot_bytes) + 30
    problem = problem.replace(capacity_bytes=room)
    found = []
    for _ in range(2):
        search = Search(problem, unit_order(problem, None))
        search.run_few()
        move_residents(search, 0.2, seed)
        assert all(not list(check_schedule(problem, one)) for one in search.tried)
        found.append((search.best, search.best_value))
    assert found[0] == found[1]


def test_few_passes_of_each_run(make: Any) -> None:
    all_of_them = make.scenarios([[[at]] for at in range(1, 10)])
    parted = replace(all_of_them, run_starts=(0, 1, 6))
    few = parted.every(4)  # 0; 1 and 5; 6
    assert few.demand.ravel().tolist() == [1, 2, 6, 7]
    assert few.run_starts == (0, 1, 3)
    assert few.work_ns.ravel().tolist() == parted.work_ns.ravel()[[0, 1, 5, 6]].tolist()
    assert parted.take_passes(3).run_starts == (0, 1)


def test_what_is_hopeless_on_few_passes_is_not_replayed_on_all(
    even: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (48, 4)
    demand = np.ones((*shape, 1), dtype=np.int32)
    zero = np.zeros(shape, dtype=np.int64)
    long = Scenarios(zero, zero + 3_000_000, demand, zero[:, :, None], zero, zero[:, 0] + 1)
    problem = even.replace(scenarios=long)
    seen: list[int] = []

    def counting(one: Problem, schedule: Schedule) -> int:
        seen.append(one.scenarios.passes)
        return objective(one, schedule)

    monkeypatch.setattr(sets, "objective", counting)
    search = Search(problem, unit_order(problem, None))
    assert search.try_schedule(keeping((1, 3)))  # 12 ms a pass, and 3 ms more at first
    assert not search.try_schedule(keeping((0, 1)))  # 15 ms
    assert seen == [12, 48, 12]
    assert search.try_schedule(keeping((0, 2)))  # 12 ms a pass
    assert seen == [12, 48, 12, 12, 48]
