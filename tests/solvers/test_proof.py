"""A bound is what its multipliers prove, and no multipliers prove more than the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.checker import check_proofs
from solvers.errors import OptionError
from solvers.outcome import Bound, Proof
from solvers.problem import Problem, Stage, Unit
from solvers.proof import covers_all_slots, proven_ns
from solvers.relaxation import relax
from solvers.replay import measure, replay


def plain(problem: Problem, slots: int, last: int | None, **changes: Any) -> Proof:
    """Multipliers of 0 but for ``changes``."""
    passes, stages = problem.scenarios.demand.shape[:2]

    def zeros(*shape: int) -> Any:
        return np.full(shape, 0, dtype=object)

    wide = {name: zeros(passes, stages) for name in ("busy", "ahead", "held")}
    base = Proof(slots, last, 4, 0, zeros(stages), **wide)
    return replace(base, **changes)


@pytest.fixture
def problem(make: Any) -> Problem:
    """One pass, one stage of two demanded items of 8 ns, 5 bytes and 3 ns of work each; a lead of
    2. One slot fits, and no resident."""
    stage = Stage(None, (make.unit(8, 5),) * 2)
    scenarios = make.scenarios([[[1, 1]]], lead=2, work=lambda rows: 3)
    return Problem((stage,), scenarios, 7, 5)


def test_by_hand(problem: Problem) -> None:
    one = np.full((1, 1), 4, dtype=object)
    # nothing used: all computation, 2 + 3 + 3
    assert proven_ns(problem, plain(problem, 1, 1)) == 8
    # the channel: 16, less the residents that 0 bytes' worth pays for: all of it
    assert proven_ns(problem, plain(problem, 1, 1, busy=one)) == 0
    # memory at 2 ns (8 quarters) a byte: 16 - 2 * 7 + 2 * 5 for the slot, and no resident pays
    assert proven_ns(problem, plain(problem, 1, 1, busy=one, memory=8)) == 12
    # one slot, copied into and worked from in turn: 22 - 2.2 * 2 (9 quarters: 22 - 4.5)
    assert proven_ns(problem, plain(problem, 1, 1, held=one, memory=9)) == 17
    # more than the weight
    assert proven_ns(problem, plain(problem, 1, 1, busy=one, held=one)) is None
    # the slots' rows need a number of slots
    assert proven_ns(problem, plain(problem, 1, None, held=one)) is None


@pytest.fixture
def written(make: Any) -> Problem:
    """One pass, two stages without items, start units of 1 ms and 5 bytes, a lead of 2 ms and of 6
    more where they stream. In 5 bytes neither can stay, for the other one needs a slot."""
    stage = Stage(make.unit(1_000_000, 5), ())
    scenarios = replace(
        make.scenarios([[[0], [0]]], lead=2_000_000),
        start_lead_ns=np.full((1, 2), 6_000_000, dtype=np.int64),
    )
    return Problem((stage,) * 2, scenarios, 5, 5)


def test_longer_leads_by_hand(make: Any, written: Problem) -> None:
    both = np.full((1, 2), 10, dtype=object)
    # nothing used: the leads alone
    assert proven_ns(written, plain(written, 0, None, scale=10)) == 4_000_000
    # 2 + 6 ms for each, but a start unit that stays would save its 6
    assert proven_ns(written, plain(written, 0, None, scale=10, back=both)) == 4_000_000
    # memory at 2.4 ms a byte, of which a stage that streams has 1.2 for its slot: to stay would
    # take 5 x 1.2 = 6 ms off, no more than it saves; the slot is 2 x 1.2 of 2.4
    prices: Any = {"memory": 24_000_000, "room": np.full(2, 12_000_000, dtype=object)}
    paid = plain(written, 0, None, scale=10, back=both, **prices)
    assert proven_ns(written, paid) == 16_000_000
    # more than the weight
    assert proven_ns(written, plain(written, 0, None, scale=10, back=both * 2)) is None
    wrong = plain(written, 0, None, back=np.full((1, 1), 4, dtype=object))
    found = check_proofs(written, Bound(0, "clairvoyant", (wrong,)))
    assert [violation.reason for violation in found] == ["proof_form"]
    # the relaxation finds these prices, in either class; with one slot each stage waits for 1 ms
    best = min(measure(written, replay(written, one)) for one in make.every_schedule(written))
    assert best == 18_000_000
    for policies in ("clairvoyant", "plan"):
        relaxed = relax(written, policies=policies)
        assert relaxed is not None
        assert relaxed.bound.value_ns == pytest.approx(16e6, rel=1e-5)
        assert list(check_proofs(written, relaxed.bound)) == []


def test_short_start_units_by_hand(make: Any, written: Problem) -> None:
    # copies bind: two of 8 ms in one pass, two of 3 or 4 ms in the other, whichever comes first
    start = Unit(5, 5, 1, 0, 8_000_000)
    parts = [replace(start, last_ns=ms * 1_000_000, size_bytes=2) for ms in (3, 4)]
    stage = Stage(start, (), short_starts=tuple(parts))
    for short, ms in (([1, 0], 22), ([0, 1], 22), ([2, 0], 24), ([1, 2], 14)):
        scenarios = replace(make.scenarios([[[0], [0]]] * 2, lead=0), short=np.array(short))
        problem = written.replace(stages=(stage,) * 2, scenarios=scenarios)
        relaxed = relax(problem)
        assert relaxed is not None
        assert relaxed.bound.value_ns == pytest.approx(ms * 1e6, rel=1e-5)
        assert list(check_proofs(problem, relaxed.bound)) == []


def test_what_is_malformed_is_refused(problem: Problem) -> None:
    for broken in (
        plain(problem, 1, 1, memory=-1),
        plain(problem, 1, 1, scale=0),
        plain(problem, 1, 1, busy=np.full((1, 1), -1, dtype=object)),
        plain(problem, 1, 1, busy=np.full((1, 1), 0.5, dtype=object)),
        plain(problem, 1, 1, room=np.full(2, 0, dtype=object)),
    ):
        with pytest.raises(OptionError, match="proof"):
            proven_ns(problem, broken)
        found = check_proofs(problem, Bound(0, "clairvoyant", (broken,)))
        assert [violation.reason for violation in found] == ["proof_form"]


def test_all_numbers_of_slots_are_covered(problem: Problem) -> None:
    roomy = problem.replace(capacity_bytes=9)
    one, more = plain(problem, 1, 1), plain(problem, 2, None)
    assert covers_all_slots(problem, (one,))  # two slots of 5 bytes do not fit in 7
    assert covers_all_slots(problem.replace(capacity_bytes=9, slot_bytes=3), (more, one))
    assert not covers_all_slots(problem.replace(capacity_bytes=9, slot_bytes=3), (one,))
    assert not covers_all_slots(problem, (more,))
    # with room for all, a schedule may have no slot
    assert not covers_all_slots(roomy.replace(capacity_bytes=10), (one, more))
    found = check_proofs(problem, Bound(9, "clairvoyant", (one,)))
    assert [violation.reason for violation in found] == ["proof_value"]
    found = check_proofs(problem, Bound(0, "clairvoyant", (more,)))
    assert "proof_cover" in [violation.reason for violation in found]


def random_multipliers(rng: np.random.Generator, proof: Proof) -> Proof:
    """A proof with some of its multipliers changed, by a little or wholly."""
    parts: dict[str, Any] = {"memory": proof.memory}
    if rng.random() < 0.6:
        parts["memory"] = int(proof.memory * rng.uniform(0, 3)) + int(rng.integers(0, 9))
    for name in ("room", "busy", "ahead", "held", *(() if proof.back is None else ("back",))):
        array = getattr(proof, name).copy()
        for at in np.ndindex(array.shape):
            if rng.random() < 0.3:
                array[at] = int(int(array[at]) * rng.uniform(0, 2))
            elif rng.random() < 0.1:
                array[at] = int(rng.uniform(0, 1.5) * proof.scale)
        parts[name] = array
    return replace(proof, **parts)


@pytest.mark.parametrize("seed", range(16))
def test_no_multipliers_prove_more_than_the_truth(make: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, 5])
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
    if seed >= 8:
        problem = make.shortening(problem, seed, most_lead=60)
    best: dict[int, int] = {}
    for schedule in make.every_schedule(problem):
        taken = measure(problem, replay(problem, schedule))
        best[schedule.slots] = min(taken, best.get(schedule.slots, taken))
    relaxed = relax(problem)
    assert relaxed is not None
    bound = relaxed.bound
    assert bound.value_ns <= min(best.values())
    assert list(check_proofs(problem, bound)) == []
    mutants = 0
    for proof in bound.proofs * (40 if seed < 8 else 200):
        value = proven_ns(problem, random_multipliers(rng, proof))
        if value is None:
            continue
        last = proof.most_slots
        for slots, taken in best.items():
            if slots >= proof.least_slots and (last is None or slots <= last):
                mutants += 1
                assert value <= taken
    assert mutants > 20
