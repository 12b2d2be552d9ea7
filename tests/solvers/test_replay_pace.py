"""Credit of a channel that has rested: times by hand, and that it composes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.checker import used_bytes
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.replay import Credit, replay
from solvers.replay_pace import Pace
from solvers.sets import optimistic

THIRD = 333_333


def test_credit_is_spent_at_the_peak_and_gained_at_rest() -> None:
    # chunks of 30, at least 10 (a third, rounded up), 50 of credit: they end when both k x 10 and
    # k x 30 - 50 have passed, at 10, 20, 40 and 70
    for chunks, end in enumerate((0, 10, 20, 40, 70)):
        assert Pace(Credit(50, THIRD), 0).end(0, 30, chunks) == end
    pace = Pace(Credit(50, THIRD), 0)
    assert pace.end(0, 30, 4) == 70
    # nothing is left; 30 at rest bring 30, of which one chunk, 10 long, spends 20; the next 10 less
    assert pace.end(100, 30, 1) == 110
    assert pace.end(110, 30, 1) == 130
    # a long rest brings no more than 50; a shorter last chunk of 12 takes 4 at least
    assert pace.end(1_000, 30, 1, 12) == 1_014


def test_chunks_that_begin_before_a_limit() -> None:
    # they begin at 0, 10, 20 and 40
    pace = Pace(Credit(50, THIRD), 0)
    assert [pace.begun(0, 30, limit) for limit in (1, 10, 11, 20, 21, 40, 41)] == [
        1, 1, 2, 2, 3, 3, 4,
    ]  # fmt: skip
    # without credit at 0, 30, 60
    assert [Pace(None, 0).begun(0, 30, limit) for limit in (1, 30, 31, 61)] == [1, 1, 2, 3]


def test_a_replay_with_credit(make: Any) -> None:
    # lead 100; the channel has rested: item 1 (3 rows) is there after 10, item 0 after 30 more, as
    # the 20 of credit are spent. Item 1 computes 110-140, item 0 140-160. Without: 180.
    scenarios = make.scenarios([[[2, 3]]])
    problem = Problem((Stage(None, (make.unit(30),) * 2),), scenarios, 100, 1)
    schedule = Schedule((StageChoice(False, (), ()),), 2, 0, 1)
    result = replay(problem, schedule, record=True, credit=Credit(20, THIRD))
    assert result.pass_end_ns.tolist() == [160]
    assert [(part.start_ns, part.end_ns) for part in result.copies] == [(100, 110), (110, 140)]
    assert result.busy_ns.sum() == 40
    assert replay(problem, schedule).pass_end_ns.tolist() == [180]


def test_each_run_begins_with_all_credit(make: Any) -> None:
    # as above, twice: the second run finds its channel rested, too
    scenarios = make.scenarios([[[2, 3]], [[2, 3]]], run_starts=(0, 1))
    problem = Problem((Stage(None, (make.unit(30),) * 2),), scenarios, 100, 1)
    schedule = Schedule((StageChoice(False, (), ()),), 2, 0, 1)
    result = replay(problem, schedule, credit=Credit(20, THIRD))
    assert result.pass_end_ns.tolist() == [160, 320]


@pytest.mark.parametrize("credit", [Credit(0, 1), Credit(1_000, 1_000_000)], ids=["none", "slow"])
def test_no_credit_and_no_peak_change_nothing(make: Any, credit: Credit) -> None:
    scenarios = make.scenarios([[[2, 3]]])
    problem = Problem((Stage(None, (make.unit(30, chunks=3),) * 2),), scenarios, 100, 1)
    schedule = Schedule((StageChoice(False, (), (0,)),), 2, 0, 1)
    plain = replay(problem, schedule, record=True)
    counted = replay(problem, schedule, record=True, credit=credit)
    assert counted.copies == plain.copies
    assert counted.stages == plain.stages


@given(
    credit=st.builds(Credit, st.integers(0, 500), st.integers(1, 1_000_000)),
    chunk_ns=st.integers(1, 60),
    rests=st.lists(st.integers(0, 200), min_size=1, max_size=3),
    parts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_parts_compose(credit: Credit, chunk_ns: int, rests: list[int], parts: list[int]) -> None:
    whole, pieces = Pace(credit, 0), Pace(credit, 0)
    now = 0
    for rest in rests:
        now += rest
        end = whole.end(now, chunk_ns, sum(parts))
        begins = []
        begin = now
        for part in parts:
            for _ in range(part):
                begins.append(begin)
                limits = [begin + 1, begin + chunk_ns // 2 + 1, begin + chunk_ns]
                told = {limit: pieces.begun(begin, chunk_ns, limit) for limit in limits}
                begin = pieces.end(begin, chunk_ns, 1)
                assert begin > begins[-1]
                assert all(told[limit] == 1 for limit in limits if limit <= begin)
        assert begin == end
        now = end


def test_what_can_be_reached_with_credit(make: Any) -> None:
    # 12 items that take 10 each after a lead of 100: 220 of computation; none fits, and copies of
    # 30 are 360 at the lasting rate
    scenarios = make.scenarios([[[1] * 12]])
    problem = Problem((Stage(None, (make.unit(30),) * 12),), scenarios, 0, 1)
    assert optimistic(problem) == 360
    # 50 ahead: 310, where the peak alone would take 120
    assert optimistic(problem, Credit(50, THIRD)) == 310
    # with 200 it is computation's 220; at a peak of nine tenths no less than 324
    assert optimistic(problem, Credit(200, THIRD)) == 220
    assert optimistic(problem, Credit(200, 900_000)) == 324
    # a second run begins with all of it, a second pass of the same run only where it weighs more
    twice = [[[1] * 12], [[1] * 12]]
    for starts, weight, ahead in (((0, 1), (1, 1), 100), ((0,), (1, 1), 50), ((0,), (1, 3), 150)):
        more = make.scenarios(twice, run_starts=starts).with_weight(np.array(weight))
        both = Problem(problem.stages, more, 0, 1)
        assert optimistic(both, Credit(50, THIRD)) == 360 * sum(weight) - ahead


@given(
    seed=st.integers(0, 10_000),
    credit=st.builds(Credit, st.integers(0, 200), st.integers(1, 1_000_000)),
)
def test_no_replay_is_faster_than_what_can_be_reached(make: Any, seed: int, credit: Credit) -> None:
    """Where all passes weigh the same, so that it does not matter in which a copy ahead is made."""
    rng = np.random.default_rng(seed)
    problem = make.problem(rng)
    schedule = make.schedule(rng, problem).replace(eviction="none")
    even = problem.scenarios.with_weight(np.ones(problem.scenarios.passes, dtype=np.int64))
    problem = problem.replace(scenarios=even, capacity_bytes=used_bytes(problem, schedule))
    taken = int(replay(problem, schedule, credit=credit).pass_ns.sum())
    assert optimistic(problem, credit) <= taken
