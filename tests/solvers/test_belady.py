"""The clairvoyant cache: hand-derived bounds, and none above what any schedule copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.belady import Belady
from solvers.checker import check_proofs, used_bytes
from solvers.errors import UnsupportedError
from solvers.outcome import Schedule, StageChoice, Stop
from solvers.problem import Problem, Stage, Unit
from solvers.proof_cache import proven_cached
from solvers.registry import BOUNDS, HOSTED, Feature, Limits, load
from solvers.replay import measure, replay


def cyclic(make: Any, demand: list[list[int]], capacity: int, **options: Any) -> Problem:
    """One stage; items of one byte that take 30 to copy."""
    stage = Stage(None, (make.unit(30),) * len(demand[0]))
    scenarios = make.scenarios([[row] for row in demand], **options)
    return Problem((stage,), scenarios, capacity, 1, measure="bytes")


def belady_value(problem: Problem) -> int:
    outcome = Belady().solve(problem, Limits())
    assert outcome.schedule is None
    assert outcome.bound is not None
    assert list(check_proofs(problem, outcome.bound)) == []
    return outcome.bound.value_ns


def test_it_gives_up_what_is_needed_last(make: Any) -> None:
    # uses: 0, 1, 2, 0, 1 with room for two: 0 and 1 are there from the start, and 2 only passes
    # through. So one copy.
    eye = np.eye(3, dtype=int).tolist()
    problem = cyclic(make, [eye[i] for i in (0, 1, 2, 0, 1)], 2)
    assert belady_value(problem) == 1
    # with room for one: that is 0 all along, used twice, and the other three uses are copied for
    assert belady_value(problem.replace(capacity_bytes=1)) == 3


def test_time_is_the_larger_of_copies_and_computation(make: Any) -> None:
    # both items in all three passes, room for one: the other is copied each time, 3 x 30; compute
    # is 3 x (lead + 10 + 10)
    problem = cyclic(make, [[1, 1]] * 3, 1, lead=100).replace(measure="time")
    assert belady_value(problem) == 3 * 120
    assert belady_value(problem.replace(measure="idle")) == 0
    slow = cyclic(make, [[1, 1]] * 3, 1, lead=0, work=lambda rows: 1).replace(measure="time")
    # room for one byte: in each pass one of the two is missing
    assert belady_value(slow) == 3 * 30
    assert belady_value(slow.replace(measure="idle")) == 3 * 30 - 3 * 2


def test_weights(make: Any) -> None:
    # passes weigh 1, 3, 3; one of two items is missing in each. A copy for pass 1 may be made in
    # pass 0, which weighs 1: 1 + 1 + 3
    problem = cyclic(make, [[1, 1]] * 3, 1)
    weight = np.array([1, 3, 3], dtype=np.int64)
    assert belady_value(problem.replace(scenarios=problem.scenarios.with_weight(weight))) == 5


def test_what_short_start_units_leave_out(make: Any) -> None:
    # of three passes the first copies 2 bytes of a start unit of 12, the second 6: 2 + 6 + 12
    whole, short, half = Unit(12, 12, 3, 20, 20, 4), Unit(2, 12, 1, 0, 5), Unit(6, 12, 2, 20, 10, 4)
    scenarios = replace(make.scenarios([[[0]]] * 3), short=np.array([1, 2, 0]))
    stages = (Stage(whole, (), short_starts=(short, half)),) * 2
    two = replace(make.scenarios([[[0]] * 2] * 3), short=scenarios.short)
    # one of the two stays, 20 of 40 are saved at most
    assert 19 <= belady_value(Problem(stages, two, 12, 0, measure="bytes")) <= 20
    # half of one, too, for all that bytes know: 10 of 20
    assert 9 <= belady_value(Problem(stages, two, 18, 0, measure="bytes")) <= 10


def test_what_copied_start_units_add_to_the_lead_hides_copies(make: Any) -> None:
    # Four start units that take 30, and make the lead 40 longer where they are copied; room for two
    # of them, and both rooms are slots. The first is waited for, the others come meanwhile.
    scenarios = make.scenarios([[[0]] * 4] * 3, lead=0)
    longer = replace(scenarios, start_lead_ns=np.full((3, 4), 40, dtype=np.int64))
    stages = (Stage(make.unit(30, 3), ()),) * 4
    problem = Problem(stages, longer, 6, 0, measure="idle")
    result = replay(problem, Schedule((StageChoice(),) * 4, 0, 2, 0))
    assert measure(problem, result) == 30
    assert belady_value(problem) <= 30
    # without that the two that cannot stay are waited for in each pass, but for half of the last
    # digit of a price
    plain = problem.replace(scenarios=scenarios)
    assert 3 * 60 - 2 <= belady_value(plain) <= 3 * 60
    # and what proves that proves nothing beside leads that are longer
    found = Belady().solve(plain, Limits()).bound
    assert found is not None
    assert found.cached is not None
    assert proven_cached(problem, found.cached) <= 30


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
    result = replay(problem, schedule)
    for kind in ("bytes", "time", "idle"):
        one = problem.replace(capacity_bytes=used_bytes(problem, schedule), measure=kind)
        assert belady_value(one) <= measure(one, result), kind


def test_it_is_no_candidate() -> None:
    assert set(BOUNDS) == {"belady"}
    assert Feature.RUNNABLE not in load("belady").features


@pytest.mark.parametrize("name", sorted(HOSTED))
def test_what_cannot_work_says_what_is_missing(make: Any, name: str) -> None:
    with pytest.raises(UnsupportedError, match="needs costs of a CPU beside the device"):
        load(name).solve(cyclic(make, [[1]], 1), Limits())
