"""The bound of the class ``plan``: between the clairvoyant one and the best of all schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.checker import check_proofs
from solvers.outcome import Bound, PlanProof, Proof, Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.relaxation import plan_bound, relax
from solvers.replay import measure, replay

TENTH_MS = 100_000
NAMES = ("share", "late", "whole", "carry", "chain", "wait", "sets")


def timed(
    rng: np.random.Generator, demand: Any, work: Any, most: tuple[int, int, int]
) -> Scenarios:
    """Prologue, lead and epilogue below so many tenths of a ms; one run, or the last pass apart."""
    passes, stages, _ = demand.shape
    prologue, lead, epilogue = (
        TENTH_MS * rng.integers(0, one, (passes, stages)).astype(np.int64) for one in most
    )
    return Scenarios(
        prologue,
        lead,
        demand.astype(np.int32),
        work.astype(np.int64),
        epilogue,
        rng.integers(1, 3, passes).astype(np.int64),
        None,
        (0, passes - 1) if rng.random() < 0.3 else (0,),
    )


def small(rng: np.random.Generator, *, starts: bool) -> Problem:
    """One stage of up to three items, or two of two; a few passes that differ in everything."""
    stages = 1 + int(rng.random() < 0.1)
    width = 3 if stages == 1 and rng.random() < 0.15 else 2
    shape = (int(rng.integers(2, 4)), stages)

    def unit(held: int) -> Unit:
        chunk, last = (TENTH_MS * int(one) for one in rng.integers(1, 20, 2))
        return Unit(held, held, int(rng.integers(1, 4)), chunk, last, 1)

    parts = tuple(
        Stage(unit(3) if starts else None, tuple(unit(4) for _ in range(width)))
        for _ in range(stages)
    )
    demand = (rng.random((*shape, width)) < rng.choice([0.3, 0.6])) * rng.integers(
        1, 4, (*shape, width)
    )
    work = np.where(demand > 0, TENTH_MS * rng.integers(1, 10, demand.shape), 0)
    scenarios = timed(rng, demand, work, (5, 30, 5))
    capacity = int(rng.integers(4 + 3 * starts, 4 * stages * width))
    return Problem(parts, scenarios, capacity, 4)


def test_between_the_clairvoyant_bound_and_the_best_schedule(make: Any) -> None:
    sharper = 0
    for seed in range(300):
        problem = small(np.random.default_rng([seed, 11]), starts=seed % 20 == 0)
        best = min(measure(problem, replay(problem, one)) for one in make.every_schedule(problem))
        bound, wide = plan_bound(problem)
        assert bound is not None, seed
        assert wide is not None, seed
        assert (bound.policies, wide.policies) == ("plan", "clairvoyant")
        assert wide.value_ns <= bound.value_ns <= best, seed
        assert list(check_proofs(problem, bound)) == [], seed
        sharper += bound.value_ns > wide.value_ns + TENTH_MS // 100
    assert sharper > 5


@pytest.fixture(scope="module")
def hopeless(make: Any) -> Problem:
    """Two items of 10 ms, of which each of four passes demands another one; 1 ms of work, and a
    lead of 1 ms. Two slots fit, and no resident: it would take a thousand bytes, a slot 4."""
    unit = Unit(4, 1000, 1, 10_000_000, 10_000_000, 4)
    scenarios = make.scenarios(
        [[[1, 0]], [[0, 1]]] * 2, lead=1_000_000, work=lambda rows: 1_000_000
    )
    return Problem((Stage(None, (unit, unit)),), scenarios, 8, 4)


def test_by_hand(make: Any, hopeless: Problem) -> None:
    # A clairvoyant copies during lead and work: 10 ms a pass with two slots. With one, which is
    # held while there is work, 11 ms, but for the 0.4% of a resident that fits into 4 bytes.
    # A plan has 2 ms (work and the next lead) for copying ahead, and 2 of 4 passes find useful what
    # is copied of an item: 4 * (1 + 10 + 1) - 2 * 2 ms, less 0.4% of 2 copies with one slot.
    bound, wide = plan_bound(hopeless)
    assert bound is not None
    assert wide is not None
    best = min(measure(hopeless, replay(hopeless, one)) for one in make.every_schedule(hopeless))
    assert wide.value_ns == pytest.approx(40e6, rel=1e-5)
    assert bound.value_ns == pytest.approx(43.92e6, rel=1e-5)
    assert bound.value_ns <= best


def test_one_slot_is_held_until_the_work_ends_by_hand(make: Any) -> None:
    # Eight items of 10 ms, of which each of four passes demands another two, with 3 ms of work
    # each; a lead of 10 ms. A slot fits and nothing stays. The slot alone takes 2 * (10 + 3) ms a
    # pass: so much, 104 ms, has a clairvoyant, who copies during leads. A plan has in every pass
    # the lead in front of that, but for what is copied ahead of it: 10 ms, as much as the slot
    # holds, and of use to one pass: 4 * (10 + 26) - 10 ms. (Work that only the last item keeps
    # the slot for would make it 4 * (10 + 20 + 3) - 10 ms.)
    unit = make.unit(10_000_000, 4)
    pairs = [[[int(item // 2 == index) for item in range(8)]] for index in range(4)]
    scenarios = make.scenarios(pairs, lead=10_000_000, work=lambda rows: 3_000_000)
    problem = Problem((Stage(None, (unit,) * 8),), scenarios, 4, 4)
    bound, wide = plan_bound(problem)
    assert bound is not None
    assert wide is not None
    assert wide.value_ns == pytest.approx(104e6, rel=1e-5)
    assert bound.value_ns == pytest.approx(134e6, rel=1e-5)
    assert list(check_proofs(problem, bound)) == []
    # without copies ahead nothing hides in the leads
    every = Schedule((StageChoice(),), slots=1, start_slots=0, reserve=1)
    assert measure(problem, replay(problem, every)) == 144_000_000


def test_what_start_units_are_waited_for_by_hand(make: Any) -> None:
    # The same items in two stages, a lead of 3 ms, and start units of 2 ms, of which neither can
    # stay: they take 3 bytes as residents and in the slot. A pass has 4 ms a stage (work and the
    # next lead) for copying ahead, and 2 of them go to the next start unit. To copy more ahead is
    # to wait 1 ms for each ms, of which every other pass makes use: 12 ms with the start unit for
    # a clairvoyant, whose channel never rests, and 3 + 10 + 1 - 2 / 2 ms for a plan.
    unit, start = (Unit(*one, 1_000_000, 1_000_000) for one in ((4, 1000, 10), (3, 3, 2)))
    scenarios = make.scenarios(
        [[[1, 0]] * 2, [[0, 1]] * 2] * 2, lead=3_000_000, work=lambda rows: 1_000_000
    )
    problem = Problem((Stage(start, (unit, unit)),) * 2, scenarios, 7, 4)
    bound, wide = plan_bound(problem)
    assert bound is not None
    assert wide is not None
    assert wide.value_ns == pytest.approx(8 * 12e6, rel=1e-5)
    assert bound.value_ns == pytest.approx(8 * 13e6, rel=1e-5)
    best = min(measure(problem, replay(problem, one)) for one in make.every_schedule(problem))
    assert bound.value_ns <= best


def streaming(rng: np.random.Generator) -> Problem:
    """Two stages of one item, which cannot stay; start units that can only stream, in chunks so
    short that schedules come near the bound."""
    shape = (int(rng.integers(2, 5)), 2)

    def unit(held: int, most: int) -> Unit:
        chunks = 4 * int(rng.integers(1, most))
        return Unit(min(held, 4), held, chunks, TENTH_MS // 4, TENTH_MS // 4)

    stages = tuple(Stage(unit(3, 40), (unit(1000, 15),)) for _ in range(2))
    often = rng.choice([0.3, 0.6, 0.9])
    demand = (rng.random((*shape, 1)) < often) * rng.integers(1, 4, (*shape, 1))
    work = np.where(demand > 0, TENTH_MS * rng.integers(1, 9, demand.shape), 0)
    return Problem(stages, timed(rng, demand, work, (3, 8, 3)), 7, 4)


def test_waits_for_start_units_are_charged_once(make: Any) -> None:
    near = 0
    for seed in range(20):
        problem = streaming(np.random.default_rng([seed, 13]))
        if seed >= 16:  # what start units add to their leads
            longer = np.full(problem.scenarios.lead_ns.shape, 10 * TENTH_MS)
            problem = problem.replace(scenarios=replace(problem.scenarios, start_lead_ns=longer))
        best = min(measure(problem, replay(problem, one)) for one in make.every_schedule(problem))
        relaxed = relax(problem, policies="plan")
        assert relaxed is not None, seed
        assert relaxed.bound.value_ns <= best, seed
        assert list(check_proofs(problem, relaxed.bound)) == [], seed
        near += relaxed.bound.value_ns > 0.9 * best
    assert near > 5


def test_short_start_units_and_longer_leads(make: Any) -> None:
    sharper = refused = 0
    for seed in range(30):
        rng = np.random.default_rng([seed, 14])
        plain = streaming(rng) if seed % 3 else small(rng, starts=True)
        problem = make.shortening(plain, seed, most_lead=15 * TENTH_MS)
        best: dict[int, int] = {}
        for one in make.every_schedule(problem):
            taken = measure(problem, replay(problem, one))
            best[one.slots] = min(taken, best.get(one.slots, taken))
        bound, wide = plan_bound(problem)
        assert bound is not None, seed
        assert wide is not None, seed
        assert wide.value_ns <= bound.value_ns <= min(best.values()), seed
        assert list(check_proofs(problem, bound)) == [], seed
        without = replace(problem.scenarios, start_lead_ns=None)
        least = relax(problem.replace(scenarios=without))
        assert least is not None
        assert least.bound.value_ns <= wide.value_ns + TENTH_MS // 1000
        sharper += wide.value_ns > 1.05 * least.bound.value_ns
        own = relax(problem, policies="plan")
        assert own is not None
        for index, proof in enumerate(own.bound.proofs):
            assert proof.plan is not None
            for _ in range(4):
                mutant = changed(rng, proof, proof.plan)
                refused += make.refuses(problem, own.bound, index, mutant, best)
    assert sharper > 5
    assert refused > 50


def test_only_a_plans_own_proofs_hold_its_multipliers(hopeless: Problem) -> None:
    relaxed = relax(hopeless)
    assert relaxed is not None
    assert all(proof.plan is None for proof in relaxed.bound.proofs)
    own = relax(hopeless, policies="plan")
    assert own is not None
    assert all(proof.plan is not None for proof in own.bound.proofs)


def changed(rng: np.random.Generator, proof: Proof, plan: PlanProof) -> Proof:
    """A proof with one kind of its plan's multipliers changed."""
    name = NAMES[int(rng.integers(len(NAMES)))]
    array = getattr(plan, name).copy()
    for at in np.ndindex(array.shape):
        array[at] = int(int(array[at]) * rng.uniform(0, 2)) + int(rng.uniform(0, proof.scale / 4))
    return replace(proof, plan=replace(plan, **{name: array}))


def test_changed_multipliers_prove_no_more_than_the_truth(make: Any) -> None:
    refused = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, 12])
        problem = small(rng, starts=False)
        best: dict[int, int] = {}
        for one in make.every_schedule(problem):
            taken = measure(problem, replay(problem, one))
            best[one.slots] = min(taken, best.get(one.slots, taken))
        relaxed = relax(problem, policies="plan")
        assert relaxed is not None
        for index, proof in enumerate(relaxed.bound.proofs):
            assert proof.plan is not None
            for _ in range(10):
                mutant = changed(rng, proof, proof.plan)
                refused += make.refuses(problem, relaxed.bound, index, mutant, best)
    assert refused > 100


def test_what_is_malformed_is_refused(hopeless: Problem) -> None:
    relaxed = relax(hopeless, policies="plan")
    assert relaxed is not None
    proof = relaxed.bound.proofs[0]
    assert proof.plan is not None
    for name in NAMES:
        array = getattr(proof.plan, name)
        negative, half = array.copy(), array.copy()
        negative.ravel()[0], half.ravel()[0] = -1, 0.5
        for broken in (array[..., :0], negative, half):
            bad = replace(proof, plan=replace(proof.plan, **{name: broken}))
            found = check_proofs(hopeless, Bound(0, "plan", (bad, *relaxed.bound.proofs[1:])))
            assert [fault.reason for fault in found] == ["proof_form"], name
