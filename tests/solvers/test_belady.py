"""The clairvoyant cache: hand-derived bounds, and none above what any schedule copies."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.belady import Belady, cached_bound, least_copied
from solvers.checker import used_bytes
from solvers.errors import UnsupportedError
from solvers.outcome import Bound, Schedule, StageChoice, Stop
from solvers.problem import Problem, Stage, Unit
from solvers.registry import BOUNDS, HOSTED, Feature, Limits, load
from solvers.replay import measure, replay


def cyclic(make: Any, demand: list[list[int]], capacity: int, **options: Any) -> Problem:
    """One stage; items of one byte that take 30 to copy."""
    stage = Stage(None, (make.unit(30),) * len(demand[0]))
    scenarios = make.scenarios([[row] for row in demand], **options)
    return Problem((stage,), scenarios, capacity, 1, measure="bytes")


def bound(problem: Problem) -> int:
    outcome = Belady().solve(problem, Limits())
    assert outcome.schedule is None
    assert outcome.bound is not None
    return outcome.bound.value_ns


def test_it_gives_up_what_is_needed_last(make: Any) -> None:
    # uses: 0, 1, 2, 0, 1 with room for two, full at the start with 0 and 1 (the two that are used
    # first). After pass 0 item 0 (used next in pass 3) competes with 1 (pass 1) and 2 (free until
    # then: not in memory); at pass 1 item 1's next use is pass 4, 0's is 3: both fit, while 2 only
    # passes through. So one copy, of 2.
    eye = np.eye(3, dtype=int).tolist()
    problem = cyclic(make, [eye[i] for i in (0, 1, 2, 0, 1)], 2)
    assert bound(problem) == 1
    # with room for one: memory holds 0 at first; then at most one of the overlapping intervals
    # 0: (0, 3), 1: (1, 4) and 1: (start, 1), 2: (start, 2) is kept: 1's first and then ... start-1
    # excludes start-2, 0-3 excludes 1-4, and 0-3 begins at 0, within start-1. One starts with 0
    # (start, 0), then keeps one of the intervals until 3 or 4: 5 uses - 2 saved = 3 copies
    assert bound(problem.replace(capacity_bytes=1)) == 3


def test_time_is_the_larger_of_copies_and_computation(make: Any) -> None:
    # both items in all three passes, room for one: the other is copied each time, 3 x 30; compute
    # is 3 x (lead + 10 + 10)
    problem = cyclic(make, [[1, 1]] * 3, 1, lead=100).replace(measure="time")
    assert bound(problem) == 3 * 120
    assert bound(problem.replace(measure="idle")) == 0
    slow = cyclic(make, [[1, 1]] * 3, 1, lead=0, work=lambda rows: 1).replace(measure="time")
    # room for one byte: in each pass one of the two is missing
    assert bound(slow) == 3 * 30
    assert bound(slow.replace(measure="idle")) == 3 * 30 - 3 * 2


def test_weights(make: Any) -> None:
    # passes weigh 1, 3, 3; one of two items is missing in each. A copy for pass 1 may be made in
    # pass 0, which weighs 1: 1 + 1 + 3
    problem = cyclic(make, [[1, 1]] * 3, 1)
    weight = np.array([1, 3, 3], dtype=np.int64)
    assert bound(problem.replace(scenarios=problem.scenarios.with_weight(weight))) == 5


def test_what_short_start_units_leave_out(make: Any) -> None:
    # of three passes the first copies 2 bytes of a start unit of 12, the second 6: 2 + 6 + 12
    whole, short, half = Unit(12, 12, 3, 20, 20, 4), Unit(2, 12, 1, 0, 5), Unit(6, 12, 2, 20, 10, 4)
    scenarios = replace(make.scenarios([[[0]]] * 3), short=np.array([1, 2, 0]))
    stages = (Stage(whole, (), short_starts=(short, half)),) * 2
    twice = replace(make.scenarios([[[0], [0]]] * 3), short=scenarios.short)
    one = Problem(stages[:1], scenarios, 0, 0, measure="bytes")
    assert least_copied(one, np.ones(3, dtype=bool)) == 20
    # of two one stays all along; the other would be missed three times, 36 bytes, and at most the
    # first pass leaves out 10 of either, the second 6
    both = Problem(stages, twice, 12, 0, measure="bytes")
    assert least_copied(both, np.ones(3, dtype=bool)) == 36 - 20 - 12


def test_infeasible(make: Any) -> None:
    outcome = Belady().solve(cyclic(make, [[1, 1]], 0), Limits())
    assert outcome.stop is Stop.INFEASIBLE
    assert outcome.smallest_capacity_bytes == 1


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_schedule_is_below_it(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = make.problem(rng, zero=seed % 4 == 0)
    if seed % 3 == 0:
        problem = make.shortening(problem, seed)
    schedule = make.schedule(rng, problem)
    if schedule.eviction != "none":
        # a prefetch that was dropped into a cache may serve a much later pass
        stages = [
            c if s.sequential else type(c)(c.start_resident, c.resident)
            for s, c in zip(problem.stages, schedule.stages, strict=True)
        ]
        schedule = schedule.replace(stages=tuple(stages))
    result = replay(problem, schedule)
    for kind in ("bytes", "time", "idle"):
        one = problem.replace(capacity_bytes=used_bytes(problem, schedule), measure=kind)
        assert bound(one) <= measure(one, result), kind


def test_a_schedule_with_a_cache_is_held_against_the_best_cache(make: Any) -> None:
    # both items in all three passes, room for one: 3 x 30 copied, 3 x (1 + 1) computed
    problem = cyclic(make, [[1, 1]] * 3, 1, lead=0, work=lambda rows: 1).replace(measure="time")
    cached = Schedule((StageChoice(False, (), ()),), 1, 0, 1, "lru")
    assert cached_bound(problem, cached) == Bound(3 * 30, "cache")
    # what a residents' correction could save at most is taken off: of the two, 7
    less = problem.replace(correction_ns=np.array([[-7, 4]], dtype=np.int64))
    assert cached_bound(less, cached) == Bound(3 * 30 - 7, "cache")
    # where computing takes longer, that is what is needed: 3 x (100 + 10 + 10)
    slow = cyclic(make, [[1, 1]] * 3, 1, lead=100).replace(measure="time")
    assert cached_bound(slow, cached) == Bound(3 * 120, "physical")
    # and where copies ahead were dropped into the cache, nothing else is known
    listed = cached.replace(stages=(StageChoice(False, (), (0,)),))
    assert cached_bound(problem, listed) == Bound(3 * 2, "physical")
    ahead = cached.replace(stages=(StageChoice(False, (), (), looks_ahead=True),))
    assert cached_bound(problem, ahead) == Bound(3 * 2, "physical")


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_schedule_with_a_cache_is_below_its_bound(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = make.problem(rng, zero=seed % 4 == 0)
    schedule = make.schedule(rng, problem)
    one = problem.replace(capacity_bytes=used_bytes(problem, schedule), measure="time")
    assert cached_bound(one, schedule).value_ns <= measure(one, replay(one, schedule))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_the_best_cache_by_brute_force(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    items, passes, room = 4, int(rng.integers(2, 6)), int(rng.integers(1, 4))
    demand = (rng.random((passes, items)) < 0.5).astype(int).tolist()
    problem = cyclic(make, demand, room)
    # after each pass memory holds any `room` of what it held and what was used
    best = {frozenset(start): 0 for start in combinations(range(items), room)}
    for row in demand:
        used = {item for item, rows in enumerate(row) if rows}
        after: dict[frozenset[int], int] = {}
        for held, copies in best.items():
            for kept in combinations(sorted(held | used), min(room, len(held | used))):
                cost = copies + len(used - held)
                key = frozenset(kept)
                after[key] = min(after.get(key, cost), cost)
        best = after
    counted = np.ones(passes, dtype=bool)
    assert least_copied(problem, counted) == min(best.values())


def test_it_is_no_candidate() -> None:
    assert set(BOUNDS) == {"belady"}
    assert Feature.RUNNABLE not in load("belady").features


@pytest.mark.parametrize("name", sorted(HOSTED))
def test_what_cannot_work_says_what_is_missing(make: Any, name: str) -> None:
    with pytest.raises(UnsupportedError, match="needs costs of a CPU beside the device"):
        load(name).solve(cyclic(make, [[1]], 1), Limits())
