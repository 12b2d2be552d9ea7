"""Items that the host works on where they lie: rule, replay, checker, bound and search."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.checker import check_bound, check_proofs, check_schedule
from solvers.errors import OptionError, UnsupportedError
from solvers.host import host_share_of, host_takes, physical_bound
from solvers.outcome import HostShare, Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.registry import Limits, load
from solvers.replay import measure, objective, replay

LIMITS = Limits(work=0.5, seconds=600.0)


def one_stage(
    make: Any, demand: list[int], copy_ns: int, host: list[int], capacity: int = 2
) -> Problem:
    """Lead 100, work 10 for each row, and the host's times as given."""
    stage = Stage(None, (make.unit(copy_ns),) * len(demand))
    problem = Problem((stage,), make.scenarios([[demand]]), capacity, 1)
    return hosted(problem, np.array([[host]], dtype=np.int64))


def hosted(problem: Problem, host: Any) -> Problem:
    scenarios = problem.scenarios
    fields = {name: getattr(scenarios, name) for name in scenarios.__dataclass_fields__}
    return problem.replace(scenarios=type(scenarios)(**{**fields, "host_work_ns": host}))


def streaming(slots: int, host: HostShare | None) -> Schedule:
    return Schedule((StageChoice(),), slots, 0, 1, host=host)


def test_the_host_works_beside_copies_and_the_device(make: Any) -> None:
    # lead 100. Demanded 0 (4 rows), 1 (2), 2 (1); half of three is one: item 2, on the host
    # 100-150. Copies of 30: item 0 100-130, item 1 130-160; works 130-170 and 170-190. The host
    # is done long before.
    problem = one_stage(make, [4, 2, 1], 30, [90, 60, 50])
    result = replay(problem, streaming(2, HostShare(4, 50)), record=True)
    assert result.pass_end_ns.tolist() == [190]
    assert result.stages[0].hosted == ((2, 100, 150),)
    assert (result.host_ns.tolist(), result.spared_ns.tolist()) == ([[50]], [[10]])
    # all of it is waiting for copies, 30 ns
    assert int(result.wait_item_ns.sum()) == 30
    assert result.copied_bytes.tolist() == [2]


def test_compute_waits_for_the_host(make: Any) -> None:
    # two of three: item 1 100-160, item 2 160-210; item 0 is copied by 130 and worked on until
    # 170: the stage ends at 210
    problem = one_stage(make, [4, 2, 1], 30, [90, 60, 50])
    result = replay(problem, streaming(2, HostShare(4, 67)), record=True)
    assert result.pass_end_ns.tolist() == [210]
    assert result.stages[0].hosted == ((1, 100, 160), (2, 160, 210))
    assert result.stages[0].host_wait_ns == 40
    assert int(result.wait_item_ns.sum()) == 30 + 40


def test_the_limit_on_rows_keeps_what_has_many(make: Any) -> None:
    # all may go, but of one row at most: item 2 alone; copies 100-130-160, works 130-170, -190
    problem = one_stage(make, [4, 2, 1], 30, [90, 60, 50])
    result = replay(problem, streaming(2, HostShare(1, 100)), record=True)
    assert [one[0] for one in result.stages[0].hosted] == [2]
    assert result.pass_end_ns.tolist() == [190]


@given(
    rows=st.lists(st.integers(1, 9), max_size=8),
    share=st.builds(HostShare, st.integers(1, 9), st.integers(1, 100)),
)
def test_the_rule_takes_the_last_ones(rows: list[int], share: HostShare) -> None:
    rows = sorted(rows, reverse=True)
    taken = rows[len(rows) - host_takes(rows, share) :]
    assert len(taken) * 100 <= len(rows) * share.percent
    assert all(count <= share.rows for count in taken)
    left = rows[: len(rows) - len(taken)]
    # one more would be too many, or has too many rows
    assert not left or left[-1] > share.rows or (len(taken) + 1) * 100 > len(rows) * share.percent


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    zero=st.booleans(),
    rows=st.integers(1, 4),
    percent=st.integers(1, 100),
)
def test_agrees_with_the_slow_replay(
    make: Any, seed: int, zero: bool, rows: int, percent: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = make.hosting(make.problem(rng, zero=zero), seed)
    schedule = make.schedule(rng, problem).replace(host=HostShare(rows, percent))
    assert list(check_schedule(problem, schedule)) == []
    fast, slow = replay(problem, schedule, record=True), make.slow(problem, schedule)
    assert fast.pass_end_ns.tolist() == slow.ends
    assert fast.wasted_bytes == slow.wasted
    if not zero:
        assert fast.copied_bytes.tolist() == slow.pass_bytes
    waits = int(fast.wait_start_ns.sum() + fast.wait_item_ns.sum())
    spent = int(problem.scenarios.compute_ns.sum() - fast.spared_ns.sum())
    assert fast.pass_end_ns[-1] == spent + waits
    value = measure(problem, fast)
    assert list(check_bound(value, physical_bound(problem))) == []


def test_the_checker_knows_the_host(make: Any) -> None:
    problem = one_stage(make, [1, 1], 30, [5, 5])
    plain = Problem(problem.stages, make.scenarios([[[1, 1]]]), 2, 1)

    def reasons(one: Problem, host: HostShare) -> list[str]:
        return [found.reason for found in check_schedule(one, streaming(2, host))]

    assert reasons(problem, HostShare(1, 100)) == []
    assert reasons(plain, HostShare(1, 100)) == ["host_missing"]
    for share in (HostShare(0, 50), HostShare(1, 0), HostShare(1, 101)):
        assert reasons(problem, share) == ["host_range"]


def test_host_times_must_fit_the_demand(make: Any) -> None:
    problem = one_stage(make, [1, 0], 30, [5, 0])
    with pytest.raises(OptionError, match="host_work_ns does not fit"):
        hosted(problem, np.zeros((1, 1, 3), dtype=np.int64))
    with pytest.raises(OptionError, match="not demanded"):
        hosted(problem, np.array([[[5, 5]]], dtype=np.int64))
    with pytest.raises(OptionError, match="host_work_ns has a negative"):
        hosted(problem, np.array([[[-5, 0]]], dtype=np.int64))


def test_the_bound_splits_the_work(make: Any) -> None:
    # lead 100. Works 40 and 20 on the device, 40 and 60 on the host. Item 0 is worth most there
    # (1 for 1): after it the device has 20 left, the host 40, which is too much. A share z of it:
    # 60 - 40 z = 40 z, z = 3/4: both take 30. 100 + 30.
    problem = one_stage(make, [4, 2], 30, [40, 60])
    assert physical_bound(problem).value_ns == 130
    assert physical_bound(problem).policies == "physical"


def test_the_bound_looks_behind_an_item_without_work(make: Any) -> None:
    # the last item takes no time anywhere, and is no reason not to share the others as above
    problem = one_stage(make, [4, 2, 1], 30, [40, 60, 0])
    works = problem.scenarios.work_ns.copy()
    works[0, 0, 2] = 0
    idle = problem.replace(scenarios=replace(problem.scenarios, work_ns=works))
    assert physical_bound(idle).value_ns == 130


@settings(max_examples=50)
@given(works=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99)), min_size=1, max_size=6))
def test_no_split_beats_the_bound(make: Any, works: list[tuple[int, int]]) -> None:
    problem = one_stage(make, [rows for rows, _ in works], 30, [host for _, host in works])
    best = min(
        max(
            sum(10 * rows for (rows, _), there in zip(works, split, strict=True) if not there),
            sum(host for (_, host), there in zip(works, split, strict=True) if there),
        )
        for split in product((False, True), repeat=len(works))
    )
    assert physical_bound(problem).value_ns <= 100 + best


def test_fiddler_takes_what_is_quicker(make: Any) -> None:
    # work 10 a row and copies of 30: 40, 50, 70 for 1, 2 and 4 rows; the host takes 30 a row
    problem = one_stage(make, [4, 2, 1], 30, [120, 60, 30])
    assert host_share_of(problem) == HostShare(1, 100)
    outcome = load("fiddler").solve(problem, LIMITS)
    assert outcome.schedule is not None
    assert outcome.schedule.host == HostShare(1, 100)
    # lead 100: item 2 on the host 100-130; the others, of 4 and 2 rows, would take it 120 and 60:
    # copied 100-130 and 130-160, they are worked on 130-170 and 170-190
    (times,) = replay(problem, outcome.schedule, record=True).stages
    assert times.hosted == ((2, 100, 130),)
    assert times.works == ((0, 100, 130, 170), (1, 170, 170, 190))
    assert times.end_ns == 190


def test_fiddler_copies_where_that_is_always_quicker(make: Any) -> None:
    problem = one_stage(make, [2, 1], 30, [99, 99], capacity=1)
    outcome = load("fiddler").solve(problem, LIMITS)
    assert outcome.schedule is not None
    assert outcome.schedule.host is None
    assert "all are copied" in outcome.notes[0]


def test_fiddler_needs_a_host(make: Any) -> None:
    stage = Stage(None, (make.unit(30),))
    problem = Problem((stage,), make.scenarios([[[1]]]), 2, 1)
    with pytest.raises(UnsupportedError, match="needs costs of a CPU beside the device"):
        load("fiddler").solve(problem, LIMITS)


def test_search_reaches_the_best_rule(make: Any) -> None:
    """Stages of two items and of one, in room for two, slots and residents: all schedules with all
    shares of the host. The search is nowhere below the best of them, and mostly there."""
    reached, gained = 0, 0
    shares = [None, HostShare(1, 100), HostShare(2, 50), HostShare(2, 100)]
    schedules: list[Schedule] = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        stages = tuple(Stage(None, (make.unit(20),) * count) for count in (2, 1))
        demand = rng.integers(0, 3, (2, 2, 2))
        demand[:, 1, 1] = 0
        plain = Problem(stages, make.scenarios(demand.tolist(), lead=10), 2, 1)
        problem = make.hosting(plain, seed)
        # what is valid depends on no demand
        schedules = schedules or make.every_schedule(problem)
        values = {
            share: min(objective(problem, one.replace(host=share)) for one in schedules)
            for share in shares
        }
        best = min(values.values())
        outcome = load("cpsat").solve(problem, Limits(work=0.05, seconds=600.0))
        assert outcome.schedule is not None
        assert outcome.bound is not None
        found = objective(problem, outcome.schedule)
        assert physical_bound(problem).value_ns <= best <= found
        assert outcome.bound.value_ns <= found
        assert outcome.bound.policies == "clairvoyant"
        assert list(check_proofs(problem, outcome.bound)) == []
        reached += found <= best * 1.02
        gained += found < values[None]
    assert reached >= 2
    assert gained >= 1
