"""What charges copies ahead: below every policy whatever it knows, and nothing on average."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers import relaxation_charged
from solvers.checker import check_proofs
from solvers.errors import OptionError
from solvers.outcome import Bound, ChargedProof, Proof, Schedule, StageChoice
from solvers.policies import every_policy
from solvers.price import PARTS, AheadPrice
from solvers.problem import Problem, Stage, Unit
from solvers.program import Program
from solvers.proof import proven_ns
from solvers.registry import Limits, load
from solvers.relaxation import plan_bound, relax
from solvers.replay import measure, objective, replay
from solvers.variate import corrected

TENTH_MS = 100_000
NAMES = ("late", "whole", "start", "fit")


def priced(make: Any, seed: int) -> Problem:
    """One stage of two items or two of one, with start units or without, short ones among them;
    three passes, and prices of any size."""
    rng = np.random.default_rng([seed, 41])
    width = (2,) if seed % 3 else (1, 1)

    def unit(held: int) -> Unit:
        chunk, last = (TENTH_MS * int(one) for one in rng.integers(1, 20, 2))
        return Unit(held, held, int(rng.integers(1, 4)), chunk, last, 1)

    stages = tuple(
        Stage(unit(3) if seed % 2 else None, tuple(unit(4) for _ in range(many))) for many in width
    )
    demand = (rng.random((3, len(width), max(width))) < 0.5) * rng.integers(1, 4, 3)[:, None, None]
    scenarios = make.scenarios(
        demand.tolist(),
        lead=TENTH_MS * int(rng.integers(0, 30)),
        work=lambda rows: TENTH_MS * 3 * rows,
        epilogue=TENTH_MS * int(rng.integers(0, 5)),
        run_starts=(0, 2) if rng.random() < 0.3 else (0,),
    )
    weight = rng.integers(1, 3, 3).astype(np.int64)
    problem = Problem(stages, replace(scenarios, weight=weight), int(rng.integers(8, 15)), 4)
    if seed % 4 == 1:
        problem = make.shortening(problem, seed, most_lead=10 * TENTH_MS)
    mean = rng.random(demand.shape[1:])
    k = int(rng.choice([0, 300, 1_000, 1_300]))
    ppm = np.rint(1_000 * k * weight[:, None, None] * (mean - (demand > 0))).astype(np.int64)
    price = AheadPrice(
        ppm, TENTH_MS * rng.integers(0, 30, demand.shape[:2]), rng.integers(0, 1_001, 3)
    )
    return problem.replace(price=price, correction_ns=price.correction_ns(problem.copy_ns))


def truth(problem: Problem) -> dict[int, int]:
    """The best objective of all policies, by numbers of slots."""
    best: dict[int, int] = {}
    for one in every_policy(problem):
        taken = objective(problem, one)
        best[one.slots] = min(taken, best.get(one.slots, taken))
    return best


def test_no_policy_is_below_the_bound(make: Any) -> None:
    near, refused = 0, 0
    for seed in range(120):
        problem, rng = priced(make, seed), np.random.default_rng([seed, 42])
        best = truth(problem)
        relaxed = relax(problem)
        assert relaxed is not None, seed
        assert relaxed.bound.policies == "plan"
        assert relaxed.bound.value_ns <= min(best.values()), seed
        assert list(check_proofs(problem, relaxed.bound)) == [], seed
        near += relaxed.bound.value_ns > 0.95 * min(best.values())
        for index, proof in enumerate(relaxed.bound.proofs if seed % 4 == 0 else ()):
            assert proof.charged is not None
            for _ in range(4):
                mutant = changed(rng, proof, proof.charged)
                refused += make.refuses(problem, relaxed.bound, index, mutant, best)
    assert near > 30
    assert refused > 50


def changed(rng: np.random.Generator, proof: Proof, charged: ChargedProof) -> Proof:
    """A proof with one kind of multipliers changed."""
    name = NAMES[int(rng.integers(len(NAMES)))]
    array = getattr(charged, name).copy()
    for at in np.ndindex(array.shape):
        array[at] = int(int(array[at]) * rng.uniform(0, 2)) + int(rng.uniform(0, proof.scale / 4))
    return replace(proof, charged=replace(charged, **{name: array}))


@pytest.fixture(scope="module")
def hopeless(make: Any) -> Problem:
    """Two items of 10 ms, of which each of four passes demands another one, as chance has it; 1 ms
    of work, and a lead of 1 ms. Two slots fit, and no resident: it would take a thousand bytes."""
    unit = Unit(4, 1000, 10, 1_000_000, 1_000_000, 0)
    scenarios = make.scenarios(
        [[[1, 0]], [[0, 1]]] * 2, lead=1_000_000, work=lambda rows: 1_000_000
    )
    scenarios = replace(scenarios, mean_demanded=np.full((4, 1, 2), 0.5))
    return corrected(Problem((Stage(None, (unit, unit)),), scenarios, 8, 4))


def test_by_hand(hopeless: Problem) -> None:
    # All of a copy is waited for: its price is 1, half of it for or against. Without copies ahead a
    # pass takes 1 + 10 + 1 ms. During work and lead 2 ms can be copied ahead. Of a demanded item
    # they save 2 ms and cost half of that; of the other they cost nothing, as the channel is free,
    # and half of them is given back. Either way a pass takes 11 ms, less the 0.4% of a resident
    # that fits into the slots' bytes, whichever the demand. A clairvoyant without the price takes
    # 10 ms.
    price = hopeless.price
    assert price is not None
    assert abs(price.ppm).max() == 500_000
    bound, wide = plan_bound(hopeless)
    assert bound is not None
    assert wide is not None
    assert bound.value_ns == pytest.approx(44e6, rel=5e-3)
    assert wide.value_ns == pytest.approx(40e6, rel=5e-3)
    assert list(check_proofs(hopeless, bound)) == []
    # with one stage, copies ahead are made during leads: 1 ms of item 0 in each pass. Of the first
    # three passes two demand it: 1.5 ms are to be expected, so that half of a ms was luck. In them
    # item 0 was expected less often than demanded by a half, and item 1 more often.
    ahead = Schedule((StageChoice(False, (), (0,)),), slots=2, start_slots=0, reserve=1)
    assert bound.value_ns <= objective(hopeless, ahead)
    own = price.of([0, 1, 2])
    three = hopeless.replace(
        scenarios=hopeless.scenarios.take_passes(3),
        price=own,
        correction_ns=own.correction_ns(hopeless.copy_ns),
    )
    assert three.correction.tolist() == [[-5_000_000, 5_000_000]]
    result = replay(three, ahead)
    assert result.taken_off == -500_000 * PARTS
    assert measure(three, result) == 3 * 12_000_000 - 2 * 1_000_000
    assert objective(three, ahead) == 34_000_000 + 500_000


@pytest.mark.parametrize("seed", range(40))
def test_what_was_copied_ahead_by_the_record(make: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, 43])
    problem = make.problem(rng)
    shape = problem.scenarios.demand.shape
    price = AheadPrice(
        rng.integers(-9, 10, shape),
        rng.integers(0, 30, shape[:2]),
        rng.integers(0, 1_001, shape[0]),
    )
    problem = problem.replace(price=price, correction_ns=0 * problem.copy_ns)
    schedule = make.schedule(rng, problem).replace(eviction="none")
    result = replay(problem, schedule, record=True)
    known = {(one.pass_index, one.stage): one.lead_end_ns for one in result.stages}
    ahead: dict[tuple[int, int, int], int] = {}
    for part in result.copies:
        until = min(part.end_ns, known[part.pass_index, part.stage])
        if part.item >= 0 and until > part.start_ns:
            key = (part.pass_index, part.stage, part.item)
            ahead[key] = ahead.get(key, 0) + until - part.start_ns
    total = 0
    for (index, stage, item), taken in ahead.items():
        first = max(int(problem.copy_ns[stage, item] - price.hidden_ns[index, stage]), 0)
        waited = 1_000 * min(first, taken) + max(taken - first, 0) * int(price.rest[index])
        total += int(price.ppm[index, stage, item]) * waited
    assert result.taken_off == total


def test_on_average_it_costs_nothing(make: Any) -> None:
    """One resident, two items copied ahead as far as the lead lets them, in many draws."""
    mean = np.array([0.3, 0.6, 0.8])
    schedule = Schedule((StageChoice(False, (2,), (1, 0)),), slots=3, start_slots=0, reserve=1)
    unit = Unit(4, 4, 4, 250_000, 250_000, 1)
    plain, own = [], []
    for seed in range(200):
        rng = np.random.default_rng([seed, 44])
        demand = (rng.random((6, 1, 3)) < mean).astype(int)
        scenarios = make.scenarios(demand.tolist(), lead=700_000, work=lambda rows: 100_000)
        # what is waited for by demand is known beforehand here: all of each copy
        ppm = np.rint(1e6 * (mean - demand)).astype(np.int64)
        nothing = np.zeros((6, 1), dtype=np.int64)
        price = AheadPrice(ppm, nothing, nothing[:, 0])
        problem = Problem(
            (Stage(None, (unit,) * 3),),
            scenarios,
            16,
            4,
            price=price,
            correction_ns=price.correction_ns(np.full((1, 3), 1_000_000)),
        )
        plain.append(measure(problem, replay(problem, schedule)))
        own.append(objective(problem, schedule))
    difference = np.array(own) - np.array(plain)
    error = difference.std() / np.sqrt(len(own))
    assert abs(difference.mean()) < 3 * error
    assert np.std(own) < 0.8 * np.std(plain)


def test_a_search_of_many_passes_ends_above_the_bound(make: Any) -> None:
    """More passes than the fluid clock follows, and enough for a sample of them to go first."""
    mean, rng = np.array([0.2, 0.4, 0.6, 0.8]), np.random.default_rng(45)
    demand = (rng.random((40, 2, 4)) < mean).astype(int)
    scenarios = make.scenarios(demand.tolist(), lead=700_000, work=lambda rows: 100_000)
    scenarios = replace(scenarios, mean_demanded=np.broadcast_to(mean, demand.shape))
    stage = Stage(make.unit(250_000, 2, 2), (Unit(4, 4, 4, 250_000, 250_000, 1),) * 4)
    problem = corrected(Problem((stage, stage), scenarios, 22, 4))
    assert problem.price is not None
    outcome = load("cpsat").solve(problem, Limits(work=0.1))
    assert outcome.schedule is not None
    assert outcome.bound is not None
    value = objective(problem, outcome.schedule)
    assert 0.8 * value < outcome.bound.value_ns <= value
    assert list(check_proofs(problem, outcome.bound)) == []
    # what is sampled is corrected by itself: 10 of 40 passes
    few = problem.scenarios.every(4)
    own = problem.price.of(list(range(0, 40, 4)))
    assert own.ppm.shape == few.demand.shape


def test_what_is_malformed_is_refused(hopeless: Problem) -> None:
    relaxed = relax(hopeless)
    assert relaxed is not None
    proof = relaxed.bound.proofs[0]
    assert proof.charged is not None
    for name in NAMES:
        array = getattr(proof.charged, name)
        negative, half = array.copy(), array.copy()
        negative.ravel()[0], half.ravel()[0] = -1, 0.5
        for broken in (array[..., :0], negative, half):
            bad = replace(proof, charged=replace(proof.charged, **{name: broken}))
            found = check_proofs(hopeless, Bound(0, "plan", (bad, *relaxed.bound.proofs[1:])))
            assert [fault.reason for fault in found] == ["proof_form"], name
    # the price belongs to both: without it there is nothing to charge, with it nothing is free
    with pytest.raises(OptionError, match="they have no price"):
        proven_ns(hopeless.replace(price=None), proof)
    assert proven_ns(hopeless, replace(proof, charged=None)) is None
    price = hopeless.price
    assert price is not None
    with pytest.raises(OptionError, match="does not fit scenarios"):
        hopeless.replace(price=price.of([0]))
    with pytest.raises(OptionError, match="differ in passes or stages"):
        replace(price, rest=price.rest[:1])
    with pytest.raises(OptionError, match="negative entry"):
        replace(price, rest=price.rest - 1_001)


def test_how_programs_are_solved_is_not_what_they_prove(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the simplex method or by an interior point: optima differ in what they say of columns that
    are not there, of which there are more with each turn."""
    ways: list[bool] = []
    real = Program.solve

    def noted(self: Any, limit: int, *, interior: bool = False, seconds: float = math.inf) -> Any:
        ways.append(interior)
        return real(self, limit, interior=interior, seconds=seconds)

    monkeypatch.setattr(Program, "solve", noted)
    seen = 0
    for seed in range(12):
        problem, proven = priced(make, seed), []
        for hidden, later in ((0.0, True), (1e9, False)):
            monkeypatch.setattr(relaxation_charged, "_HIDDEN", hidden)
            ways.clear()
            relaxed = relax(problem)
            assert relaxed is not None
            assert list(check_proofs(problem, relaxed.bound)) == []
            # the first says how the others are solved: of theirs nothing hides behind 0 of the time
            assert ways[0]
            assert hidden == 0 or not any(ways[1:])
            seen += later and any(ways[1:])
            proven.append(relaxed.bound.value_ns)
        assert proven[0] == pytest.approx(proven[1], rel=2e-3)
    assert seen > 0
