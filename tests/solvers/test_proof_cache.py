"""What a cache must copy: by hand, below every schedule where memory is short, and not by a copy
too little or too much."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from solvers.belady import Belady, cached_bound
from solvers.checker import check_proofs, check_schedule, used_bytes
from solvers.host import physical_bound
from solvers.outcome import Bound, CacheProof, Eviction, HostShare, Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.proof_cache import proven_cached
from solvers.registry import Limits
from solvers.replay import measure, objective, replay

EVICTIONS: tuple[Eviction, ...] = get_args(Eviction)
LRU = Schedule((StageChoice(),), 1, 0, 1, "lru")
Unit_ = tuple[int, int]
"""Stage and item."""


def cyclic(make: Any, demand: list[list[int]], **options: Any) -> Problem:
    """One stage and room for one of its items, of one byte, that take 30 to copy and 1 to work on;
    nothing else takes time."""
    stage = Stage(None, (make.unit(30),) * len(demand[0]))
    scenarios = make.scenarios([[row] for row in demand], lead=0, work=lambda rows: 1, **options)
    return Problem((stage,), scenarios, 1, 1)


def beside(problem: Problem, each_ns: int) -> Problem:
    """The same with a host that takes so long for each item."""
    host = np.where(problem.scenarios.demand > 0, each_ns, 0).astype(np.int64)
    return problem.replace(scenarios=replace(problem.scenarios, host_work_ns=host))


def weighing(problem: Problem, *weight: int) -> Problem:
    scenarios = problem.scenarios.with_weight(np.array(weight, dtype=np.int64))
    return problem.replace(scenarios=scenarios)


def test_a_schedule_with_a_cache_is_held_against_the_best_cache(make: Any) -> None:
    # both items in all three passes, room for one: 3 x 30 copied, 3 x (1 + 1) computed
    problem = cyclic(make, [[1, 1]] * 3)
    assert cached_bound(problem, LRU) == Bound(3 * 30, "cache")
    # what a residents' correction could save at most is taken off: of the two, 7
    less = problem.replace(correction_ns=np.array([[-7, 4]], dtype=np.int64))
    assert cached_bound(less, LRU) == Bound(3 * 30 - 7, "cache")
    # where computing takes longer, that is what is needed: 3 x (100 + 1 + 1)
    slow = problem.replace(scenarios=replace(problem.scenarios, lead_ns=np.full((3, 1), 100)))
    assert cached_bound(slow, LRU) == Bound(3 * 102, "physical")
    # lists and predictors only copy in other passes, and these all weigh the same
    for ahead in (StageChoice(prefetch=(0,)), StageChoice(looks_ahead=True)):
        assert cached_bound(problem, LRU.replace(stages=(ahead,))) == Bound(3 * 30, "cache")


def test_what_copies_longer_is_copied_and_what_computes_longer_computed(make: Any) -> None:
    # Pass 0 lacks one of two items, 30. Pass 1 computes for 502, and what it and pass 2 lack may be
    # copied meanwhile. What pass 3 lacks is copied in pass 2 or 3: 30.
    problem = cyclic(make, [[1, 1]] * 4)
    lead = np.array([[0], [500], [0], [0]], dtype=np.int64)
    problem = problem.replace(scenarios=replace(problem.scenarios, lead_ns=lead))
    assert cached_bound(problem, LRU).value_ns == 30 + 502 + 30


def test_copies_in_passes_that_weigh_less(make: Any) -> None:
    # Items 0 and 1 in passes 0 and 2, item 2 in pass 1. Before pass 0 not more than one of the
    # three is there: two copies; before pass 2 one of 0 and 1: another one. 90 where all weigh 1.
    problem = weighing(cyclic(make, [[1, 1, 0], [0, 0, 1], [1, 1, 0]]), 1, 3, 3)
    # Two thirds of the weight of the last passes are for themselves. Copied on demand, or ahead for
    # a pass that needs it, that last one is made in pass 1 or 2: 2 x 30 more.
    bare = cached_bound(problem, LRU)
    assert bare == Bound(90 + 60, "cache")
    # Copied ahead for pass 1, and left in the cache, it may be made in pass 0. Passes 1 and 2 take
    # what they compute, 1 + 2, twice.
    listed = LRU.replace(stages=(StageChoice(prefetch=(0,)),))
    assert cached_bound(problem, listed) == Bound(90 + 2 * 3, "cache")
    # so what proves 150 without such copies proves no more than 90 with them
    assert bare.cached is not None
    assert proven_cached(problem, bare.cached) == 150
    assert proven_cached(problem, replace(bare.cached, ahead=True)) <= 90


def test_what_a_host_may_spare(make: Any) -> None:
    # Three copies of 30 are made, but for each use that the host takes, in 30: with three halves of
    # a use there are 45 of either; the device's 6 - 1.5 are done meanwhile.
    problem = cyclic(make, [[1, 1]] * 3)
    assert cached_bound(beside(problem, 30), LRU) == Bound(45, "cache")
    # A host of no use spares nothing worth while: with a share z of a use 90 - 30 z copied is as
    # long as 10,000 z. In quarters, 3/4 of 90 and of the works a quarter: the device's, 2.
    value = cached_bound(beside(problem, 10_000), LRU).value_ns
    assert 0.75 * 90 <= value <= 90
    # One that takes no time does all, and what is left is nothing.
    assert cached_bound(beside(problem, 0), LRU) == Bound(0, "physical")
    # so that what proves 90 without it proves nothing
    proof = cached_bound(problem, LRU).cached
    assert proof is not None
    assert proven_cached(problem, proof) == 90
    assert proven_cached(beside(problem, 0), proof) <= 0


def tight(seed: int, host: bool = False) -> tuple[Problem, Schedule]:
    """A problem with little to compute and much to copy, and a schedule that the checker accepts,
    with no byte more of memory than it uses. The seed's remainder says the eviction."""
    rng = np.random.default_rng([seed, 11])
    count, width, passes = (int(one) for one in rng.integers((1, 2, 4), (4, 6, 10)))
    alike = rng.random() < 0.5

    def unit(held: int) -> Unit:
        chunks = 2 if alike else int(rng.integers(1, 4))
        piece = 20 if alike else int(rng.integers(5, 40))
        return Unit(held, held, chunks, piece, piece, held // chunks)

    stages = []
    for _ in range(count):
        start = unit(6) if rng.random() < 0.4 else None
        stages.append(Stage(start, tuple(unit(6) for _ in range(width))))
    if rng.random() < 0.3:
        stages.append(Stage(None, tuple(unit(6) for _ in range(width)), sequential=True))
    shape = (passes, len(stages))
    demand = (rng.random((*shape, width)) < rng.choice([0.3, 0.6])) * rng.integers(
        1, 4, (*shape, width)
    )
    choices = []
    for at, stage in enumerate(stages):
        order = rng.permutation(width).tolist()
        kept = int(rng.integers(0, 2))
        ahead = int(rng.integers(0, 3)) if rng.random() < 0.5 else 0
        choice = StageChoice(
            stage.start is not None and bool(rng.random() < 0.3),
            tuple(order[:kept]),
            tuple(order[kept : kept + ahead]),
            looks_ahead=bool(rng.random() < 0.3),
        )
        if stage.sequential:
            demand[:, at] = 2
            choice = StageChoice(False, tuple(range(kept)), tuple(range(kept, width)))
        choices.append(choice)
    works = np.where(demand > 0, rng.integers(0, 3, demand.shape), 0)
    times = [rng.integers(0, most, shape) for most in (2, 6, 2)]
    starts = (0, passes // 2) if passes > 3 and rng.random() < 0.3 else (0,)
    hosted = np.where(demand > 0, rng.integers(0, 120, demand.shape), 0) if host else None
    scenarios = Scenarios(
        times[0],
        times[1],
        demand.astype(np.int32),
        works,
        times[2],
        rng.integers(1, 4, passes) if rng.random() < 0.5 else np.ones(passes, dtype=np.int64),
        run_starts=starts,
        start_lead_ns=rng.integers(0, 40, shape) if rng.random() < 0.3 else None,
        host_work_ns=hosted,
    )
    said = rng.integers(0, 3, demand.shape).astype(np.int32)
    slots = int(rng.integers(1, 4))
    share = HostShare(int(rng.integers(1, 4)), int(rng.choice([34, 50, 100])))
    schedule = Schedule(
        tuple(choices),
        slots,
        1,
        int(rng.integers(1, slots + 1)),
        EVICTIONS[seed % len(EVICTIONS)],
        share if host else None,
    )
    problem = Problem(tuple(stages), scenarios, 10_000, 6, ahead=said)
    if seed % 5 == 0:
        table = rng.integers(-9, 10, demand.shape[1:]).astype(np.int64)
        problem = problem.replace(correction_ns=table)
    problem = problem.replace(capacity_bytes=used_bytes(problem, schedule))
    assert list(check_schedule(problem, schedule)) == []
    return problem, schedule


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32 - 1), host=st.booleans())
def test_no_schedule_is_below_its_bound(seed: int, host: bool) -> None:
    problem, schedule = tight(seed, host)
    bound = cached_bound(problem, schedule)
    event(f"{schedule.eviction}, {'host' if host else 'no host'}: {bound.policies}")
    assert bound.value_ns <= objective(problem, schedule)
    if bound.policies == "cache":
        assert list(check_proofs(problem, bound)) == []
    result = replay(problem, schedule)
    for kind in ("bytes", "idle") if not host else ():
        one = problem.replace(measure=kind, correction_ns=None)
        found = Belady().solve(one, Limits()).bound
        assert found is not None
        assert found.value_ns <= measure(one, result), kind


@pytest.mark.parametrize("host", [False, True])
def test_memory_binds_in_most_of_them_whatever_is_evicted(host: bool) -> None:
    """Memory is what takes time, in the bound more than twice of all computation, in at least so
    many of 24 for each eviction; and some bounds are near what is taken."""
    each, binds, half = 24, Counter[str](), 0
    for seed in range(each * len(EVICTIONS)):
        problem, schedule = tight(seed, host)
        value = cached_bound(problem, schedule).value_ns
        binds[schedule.eviction] += value > 2 * physical_bound(problem).value_ns
        half += value > 0.5 * objective(problem, schedule)
    assert min(binds[one] for one in EVICTIONS) >= (10 if host else 12), binds
    assert half >= (1 if host else 35)


def fewest(problem: Problem) -> int:
    """Copies for items that are all alike with the best residents and the best cache beside them,
    that begins empty: every content that could be kept at every start of a stage."""
    room = problem.capacity_bytes // problem.slot_bytes
    stages = enumerate(problem.stages)
    named = [(at, item) for at, stage in stages for item in range(len(stage.items))]
    found = []
    for size in range(min(room, len(named)) + 1):
        for resident in combinations(named, size):
            best: dict[frozenset[Unit_], int] = {frozenset(): 0}
            for used in uses_of(problem):
                after: dict[frozenset[Unit_], int] = {}
                for held, copies in best.items():
                    both = sorted((held | used) - set(resident))
                    cost = copies + len(used - held - set(resident))
                    for kept in combinations(both, min(room - size, len(both))):
                        after[frozenset(kept)] = min(after.get(frozenset(kept), cost), cost)
                best = after
            found.append(min(best.values()))
    return min(found)


def kept_by_the_rule(problem: Problem, resident: set[Unit_]) -> int:
    """Copies of a cache beside residents that gives up what is needed last, for items that are all
    alike."""
    room = problem.capacity_bytes // problem.slot_bytes - len(resident)
    uses = [used - resident for used in uses_of(problem)]

    def needed(unit: Unit_, here: int) -> int:
        return next((at for at in range(here, len(uses)) if unit in uses[at]), len(uses))

    held: set[Unit_] = set()
    copies = 0
    for here, used in enumerate(uses):
        copies += len(used - held)
        held = set(sorted(held | used, key=lambda one: (needed(one, here + 1), one))[:room])
    return copies


def uses_of(problem: Problem) -> list[set[Unit_]]:
    """What each stage of each pass demands."""
    return [
        {(at, item) for item in np.flatnonzero(row[at]).tolist()}
        for row in problem.scenarios.demand
        for at in range(len(problem.stages))
    ]


def alike(seed: int, passes: int, width: int) -> Problem:
    """Stages whose items take 30 to copy, one piece of memory each, and nothing to compute."""
    rng = np.random.default_rng([seed, 12])
    count = int(rng.integers(1, 3))
    demand = (rng.random((passes, count, width)) < rng.choice([0.3, 0.5])).astype(np.int32)
    zero = np.zeros((passes, count), dtype=np.int64)
    stage = Stage(None, (Unit(4, 4, 1, 30, 30, 4),) * width)
    scenarios = Scenarios(
        zero, zero, demand, np.zeros(demand.shape, dtype=np.int64), zero, zero[:, 0] + 1
    )
    return Problem((stage,) * count, scenarios, 4 * int(rng.integers(1, count * width)), 4)


def belady(problem: Problem) -> int:
    found = Belady().solve(problem, Limits()).bound
    assert found is not None
    return found.value_ns


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_residents_and_no_cache_copy_less(seed: int) -> None:
    small = alike(seed, 4, 3)
    assert belady(small) <= 30 * fewest(small)
    large = alike(seed, 20, 8)
    most = large.capacity_bytes // large.slot_bytes
    often = Counter(unit for used in uses_of(large) for unit in used).most_common(most)
    for count in range(most + 1):
        assert belady(large) <= 30 * kept_by_the_rule(large, {unit for unit, _ in often[:count]})


def test_one_copy_more_would_be_too_much_and_one_fewer_too_little() -> None:
    """What stays beside residents may be a fraction in the bound: within one copy of the truth, so
    that a bound of one more is caught, and one of one fewer is not what it is."""
    more = fewer = 0
    for seed in range(60):
        problem = alike(seed, 4, 3)
        truth, bound = 30 * fewest(problem), belady(problem)
        assert bound <= truth
        more += bound + 30 > truth
        fewer += bound == truth > 0
    assert (more, fewer > 40) == (60, True)


def mutants(proof: CacheProof) -> list[CacheProof]:
    """One multiplier changed: a stage's room is free of charge, or twice as dear, or a pass's
    channel is left out."""
    found = []
    for place in zip(*np.nonzero(proof.memory), strict=True):
        for factor in (0, 2):
            memory = proof.memory.copy()
            memory[place] *= factor
            found.append(replace(proof, memory=memory))
    for index in np.flatnonzero(proof.channel).tolist():
        channel = proof.channel.copy()
        channel[index] = 0
        found.append(replace(proof, channel=channel))
    return found


def test_the_checker_recomputes_what_multipliers_prove() -> None:
    refused = Counter[str]()
    for seed in range(120):
        problem, schedule = tight(seed, host=seed % 2 == 1)
        bound = cached_bound(problem, schedule)
        if bound.cached is None:
            continue
        taken = (
            measure(problem, replay(problem, schedule))
            + int(problem.correction.max(initial=0)) * 99
        )
        assert list(check_proofs(problem, bound)) == []
        more = replace(bound, value_ns=bound.value_ns + 1)
        assert [one.reason for one in check_proofs(problem, more)] == ["proof_value"]
        bare = replace(bound, cached=None)
        assert [one.reason for one in check_proofs(problem, bare)] == ["proof_cover"]
        alone = problem.replace(scenarios=replace(problem.scenarios, host_work_ns=None))
        proof = cached_bound(alone, schedule).cached
        # of copies without a host less is proven with it
        assert proof is None or proven_cached(problem, proof) <= taken
        for mutant in mutants(bound.cached):
            # whatever the multipliers, what they prove holds
            assert proven_cached(problem, mutant) <= taken
            faults = list(check_proofs(problem, replace(bound, cached=mutant)))
            refused["mutants"] += 1
            refused["refused"] += [one.reason for one in faults] == ["proof_value"]
    assert refused["refused"] > 0.6 * refused["mutants"] > 1_000


def test_multipliers_out_of_range_are_refused(make: Any) -> None:
    problem = cyclic(make, [[1, 1]] * 3)
    bound = cached_bound(problem, LRU)
    proof = bound.cached
    assert proof is not None
    changed: list[tuple[dict[str, Any], str]] = [
        ({"memory": proof.memory[:1]}, "memory has the shape"),
        ({"channel": proof.channel.astype(np.float64)}, "channel holds something else"),
        ({"memory": -proof.memory}, "memory holds something else"),
        ({"channel": 2 * proof.channel}, "more than a pass's weight"),
        ({"device": proof.device + 1}, "more than a pass's weight"),
        ({"scale": 0}, "scale is out of range"),
    ]
    for change, words in changed:
        bad = replace(bound, cached=replace(proof, **change))
        (fault,) = check_proofs(problem, bad)
        assert fault.reason == "proof_form"
        assert words in fault.message
    with pytest.raises(Exception, match="beside a host nothing is proven of bytes"):
        proven_cached(beside(problem, 3).replace(measure="bytes"), proof)
