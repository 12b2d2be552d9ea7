"""The replay: hand-derived timelines, and agreement with a second, slow one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from solvers.checker import check_schedule
from solvers.errors import OptionError
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Stage, Unit
from solvers.replay import DeadlockError, measure, replay


def one_stage(make: Any, items: int, copy_ns: int, demand: list[int], **options: int) -> Problem:
    scenarios = make.scenarios([[demand]], **options)
    stage = Stage(None, (make.unit(copy_ns),) * items)
    return Problem((stage,), scenarios, 100, 1)


def choose(*, resident: tuple[int, ...] = (), prefetch: tuple[int, ...] = ()) -> tuple[Any, ...]:
    return (StageChoice(False, resident, prefetch),)


def test_on_demand_copies_start_at_the_router_and_compute_overlaps(make: Any) -> None:
    # lead 100; copies of 30 from 100: item 1 (3 rows) at 130, item 0 (2 rows) at 160.
    # item 1 computes 130-160, item 0 160-180: waits 30 and 0.
    problem = one_stage(make, 2, 30, [2, 3])
    result = replay(problem, Schedule(choose(), 2, 0, 1))
    assert result.pass_end_ns.tolist() == [180]
    assert result.wait_item_ns.sum() == 30
    assert result.copied_bytes.tolist() == [2]


def test_one_slot_makes_copies_wait_for_work(make: Any) -> None:
    # one slot: 100-130 copy, 130-160 work on item 1, 160-190 copy, 190-210 work on item 0
    problem = one_stage(make, 2, 30, [2, 3])
    assert replay(problem, Schedule(choose(), 1, 0, 1)).pass_end_ns.tolist() == [210]


def test_prefetch_before_the_router_hides_copies(make: Any) -> None:
    # both copied by 60, before the lead ends at 100; then 30 + 20 of work
    problem = one_stage(make, 2, 30, [2, 3])
    result = replay(problem, Schedule(choose(prefetch=(0, 1)), 3, 0, 1))
    assert result.pass_end_ns.tolist() == [150]
    assert result.wait_item_ns.sum() == 0


def test_reserve_holds_prefetches_back(make: Any) -> None:
    # 3 slots, 2 reserved: item 0 is prefetched, item 1 is not and copied 100-130;
    # item 0 computes 100-120, item 1 130-160
    problem = one_stage(make, 2, 30, [2, 3])
    result = replay(problem, Schedule(choose(prefetch=(0, 1)), 3, 0, 2))
    assert result.pass_end_ns.tolist() == [160]


def test_a_wrong_prefetch_is_cancelled_at_its_chunk_boundary(make: Any) -> None:
    # lead 100. Item 0 (not demanded) has 5 chunks of 30: at 100 its 4th chunk (90-120) is on the
    # channel. Item 1 is copied 120-270 and computes until 280. 4 of 5 bytes are wasted.
    scenarios = make.scenarios([[[0, 1]]])
    stage = Stage(None, (make.unit(30, 1, chunks=5),) * 2)
    problem = Problem((stage,), scenarios, 100, 5)
    result = replay(problem, Schedule(choose(prefetch=(0,)), 3, 0, 1), record=True)
    assert result.pass_end_ns.tolist() == [280]
    assert result.wasted_bytes == 4
    assert [tuple(part) for part in result.copies] == [
        ("prefetch", 0, 0, 0, 0, 120, 4),
        ("demand", 0, 0, 1, 120, 270, 5),
    ]


def test_an_active_partial_prefetch_goes_first_on_demand(make: Any) -> None:
    # item 0 (1 row) has 4 chunks of 30: at 100 its 4th is on the channel until 120. It is demanded
    # first although item 1 has more rows: computes 120-130; item 1 copied 120-240, computes -270.
    scenarios = make.scenarios([[[1, 3]]])
    stage = Stage(None, (make.unit(30, 1, chunks=4),) * 2)
    problem = Problem((stage,), scenarios, 100, 4)
    result = replay(problem, Schedule(choose(prefetch=(0,)), 3, 0, 1), record=True)
    assert result.pass_end_ns.tolist() == [270]
    assert [work[0] for work in result.stages[0].works] == [0, 1]


def test_a_start_unit_is_waited_for_and_its_slot_freed_at_the_router(make: Any) -> None:
    # two stages, start units of 50, one start slot. Stage 0: wait until 50, lead until 150, no
    # demand. Stage 1's start is copied 150-200, lead until 300.
    scenarios = make.scenarios([[[0], [0]]])
    stage = Stage(make.unit(50), (make.unit(1),))
    problem = Problem((stage, stage), scenarios, 100, 1)
    result = replay(problem, Schedule((StageChoice(), StageChoice()), 1, 1, 1))
    assert result.pass_end_ns.tolist() == [300]
    assert result.wait_start_ns.tolist() == [[50, 50]]
    # with two slots the second copy (50-100) hides behind the first lead
    assert replay(problem, Schedule((StageChoice(), StageChoice()), 1, 2, 1)).pass_end_ns[0] == 250


def test_the_chain_runs_on_into_the_next_pass_but_not_into_a_new_run(make: Any) -> None:
    # one item, copy 80, prefetched; lead 100, work 10. Pass 0 ends at 110. Its item's slot and the
    # next pass's: the chain may be ahead by less than one pass, so the next copy starts when
    # stage 0 of pass 0 has ended, at 110, and has ended by 190, before the router at 210.
    stage = Stage(None, (make.unit(80),))
    two = make.scenarios([[[1]], [[1]]])
    schedule = Schedule(choose(prefetch=(0,)), 2, 0, 1)
    problem = Problem((stage,), two, 100, 1)
    assert replay(problem, schedule).pass_end_ns.tolist() == [110, 220]
    stages = (stage, stage)
    demand = [[[1], [1]], [[1], [1]]]
    both = Schedule(choose(prefetch=(0,)) * 2, 3, 0, 1)
    slow = make.scenarios(demand, lead=10)
    # copies 0-80 and 80-160, works 80-90 and (lead 90-100) 160-170; then in one run the third copy
    # begins at 160 (stage 0 of pass 1 is less than a pass ahead of stage 1 of pass 0), ends at 240
    assert replay(Problem(stages, slow, 100, 1), both).pass_end_ns.tolist() == [170, 330]
    # a new run begins with nothing: its first copy begins at 170
    cold = make.scenarios(demand, lead=10, run_starts=(0, 1))
    assert replay(Problem(stages, cold, 100, 1), both).pass_end_ns.tolist() == [170, 340]


def test_lru_keeps_what_was_used(make: Any) -> None:
    # pass 0: copy 100-130, work 130-140; pass 1: lead until 240, cached, work until 250
    problem = one_stage(make, 1, 30, [1]).replace(scenarios=make.scenarios([[[1]], [[1]]]))
    kept = replay(problem, Schedule(choose(), 1, 0, 1, "lru"))
    assert kept.pass_end_ns.tolist() == [140, 250]
    assert kept.copied_bytes.tolist() == [1, 0]
    assert replay(problem, Schedule(choose(), 1, 0, 1)).pass_end_ns.tolist() == [140, 280]


def test_lru_evicts_the_least_recently_used(make: Any) -> None:
    # two slots, demands 0+1, then 2, then 1: item 0 (fewer rows, but computed last in pass 0) is
    # younger than item 1; item 2 evicts item 1; pass 2 copies item 1 again
    problem = one_stage(make, 3, 30, [1, 2, 0])
    problem = problem.replace(scenarios=make.scenarios([[[1, 2, 0]], [[0, 0, 1]], [[0, 1, 0]]]))
    result = replay(problem, Schedule(choose(), 2, 0, 1, "lru"))
    assert result.copied_bytes.tolist() == [2, 1, 1]


def test_lifo_gives_up_what_came_last(make: Any) -> None:
    # two slots, demands 0+1, then 2, then 0: item 1 (more rows) came first, item 0 last; item 2
    # takes the slot of item 0, which pass 2 copies again, and pass 3 finds item 1 still there
    problem = one_stage(make, 3, 30, [1, 2, 0])
    demand = [[[1, 2, 0]], [[0, 0, 1]], [[1, 0, 0]], [[0, 1, 0]]]
    problem = problem.replace(scenarios=make.scenarios(demand))
    result = replay(problem, Schedule(choose(), 2, 0, 1, "lifo"))
    assert result.copied_bytes.tolist() == [2, 1, 1, 0]
    # lru gives up item 1 for item 2, and still has item 0
    lru = replay(problem, Schedule(choose(), 2, 0, 1, "lru"))
    assert lru.copied_bytes.tolist() == [2, 1, 0, 1]


def test_lifo_shares_the_slots_among_the_stages(make: Any) -> None:
    # two stages with items, two slots: one each. In stage 0 item 0 and then item 1 go through its
    # one slot, while stage 1's item stays: pass 1 copies only both of stage 0's, which then has
    # item 1 (item 0 with more rows is first each time)
    scenarios = make.scenarios([[[2, 1], [1, 0]], [[2, 1], [1, 0]]])
    stage = Stage(None, (make.unit(30),) * 2)
    problem = Problem((stage, stage), scenarios, 100, 1)
    schedule = Schedule((StageChoice(), StageChoice()), 2, 0, 1, "lifo")
    result = replay(problem, schedule)
    # pass 1: item 1 is there and computed first, item 0 takes its slot after that
    assert result.copied_bytes.tolist() == [3, 1]
    # stage 0: lead 100, copies 100-130, work 130-150, copy 150-180, work 180-190;
    # stage 1: lead until 290, copy 290-320, work until 330
    assert result.pass_end_ns.tolist()[0] == 330


def test_deadlock_is_an_error_not_a_hang(make: Any) -> None:
    # two stages, one slot, nothing reserved: stage 1's prefetch holds the slot that stage 0 needs
    scenarios = make.scenarios([[[1], [1]]])
    stage = Stage(None, (make.unit(10),))
    problem = Problem((stage, stage), scenarios, 100, 1)
    schedule = Schedule((StageChoice(), StageChoice(False, (), (0,))), 1, 0, 0)
    assert [v.reason for v in check_schedule(problem, schedule)] == ["reserve_missing"]
    with pytest.raises(DeadlockError, match="stage 0: item 0"):
        replay(problem, schedule)


def test_measures(make: Any) -> None:
    problem = one_stage(make, 2, 30, [2, 3])
    result = replay(problem, Schedule(choose(), 2, 0, 1))
    assert measure(problem, result) == 180
    assert measure(problem.replace(measure="idle"), result) == 30
    assert measure(problem.replace(measure="bytes"), result) == 2
    weight = np.array([7], dtype=np.int64)
    heavy = problem.replace(scenarios=problem.scenarios.with_weight(weight))
    assert measure(heavy, result) == 7 * 180


def test_a_short_start_unit_by_hand(make: Any) -> None:
    # One stage, a lead of 10 and a resident that works 10; the start unit takes three chunks of 20,
    # the short one of passes 0 and 3 a single chunk of 7, that of pass 2 one of 20 and one of 5.
    # Nothing is copied a whole pass ahead, so that each pass waits for its own: 7 + 10 + 10, then
    # 60 + 10 + 10, then 25 + 10 + 10, then 27 again.
    start = make.unit(20, 4, chunks=3)
    short = Unit(2, 4, 1, 0, 7), Unit(5, 4, 2, 20, 5, 4)
    stage = Stage(start, (make.unit(5),), short_starts=short)
    scenarios = replace(make.scenarios([[[1]]] * 4, lead=10), short=np.array([1, 0, 2, 1]))
    result = replay(
        Problem((stage,), scenarios, 100, 1),
        Schedule((StageChoice(False, (0,), ()),), 0, 1, 0),
        record=True,
    )
    assert result.pass_end_ns.tolist() == [27, 107, 152, 179]
    assert [part.size_bytes for part in result.copies] == [2, 12, 5, 2]
    assert result.wait_start_ns.ravel().tolist() == [7, 60, 25, 7]


@pytest.mark.parametrize(
    "short",
    [Unit(13, 4, 1, 0, 1), Unit(2, 3, 1, 0, 1), Unit(2, 4, 1, 0, 61)],
    ids=["more bytes", "another slot", "longer"],
)
def test_a_short_start_unit_is_no_more_than_the_whole(make: Any, short: Unit) -> None:
    with pytest.raises(OptionError, match="more than the whole"):
        Stage(make.unit(20, 4, chunks=3), (), short_starts=(Unit(2, 4, 1, 0, 7), short))
    with pytest.raises(OptionError, match="more than the whole"):
        Stage(None, (), short_starts=(short,))
    with pytest.raises(OptionError, match=r"short is not \[2\]"):
        replace(make.scenarios([[[1]]] * 2), short=np.array([1]))
    with pytest.raises(OptionError, match="short has a negative entry"):
        replace(make.scenarios([[[1]]] * 2), short=np.array([1, -1]))
    stage = Stage(make.unit(20, 4, chunks=3), (make.unit(5),), short_starts=(Unit(2, 4, 1, 0, 7),))
    scenarios = replace(make.scenarios([[[1]]] * 2), short=np.array([1, 2]))
    with pytest.raises(OptionError, match="stage 0: a pass copies a start unit that does not"):
        Problem((stage,), scenarios, 100, 1)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32 - 1), zero=st.booleans(), short=st.booleans())
def test_agrees_with_the_slow_replay(make: Any, seed: int, zero: bool, short: bool) -> None:
    rng = np.random.default_rng(seed)
    problem = make.problem(rng, zero=zero)
    if short:
        problem = make.shortening(problem, seed)
    schedule = make.schedule(rng, problem)
    assert list(check_schedule(problem, schedule)) == []
    fast, slow = replay(problem, schedule, record=True), make.slow(problem, schedule)
    assert fast.pass_end_ns.tolist() == slow.ends
    assert fast.wasted_bytes == slow.wasted
    if not zero:
        assert fast.copied_bytes.tolist() == slow.pass_bytes
    # the record accounts for every nanosecond of compute
    now = 0
    for times in fast.stages:
        assert times.begin_ns == now
        now = times.end_ns
    waits = int(fast.wait_start_ns.sum() + fast.wait_item_ns.sum())
    longer = 0
    if short:
        streams = [
            stage.start is not None and not choice.start_resident
            for stage, choice in zip(problem.stages, schedule.stages, strict=True)
        ]
        longer = int((problem.scenarios.start_lead_ns * np.array(streams)).sum())
    assert now == int(problem.scenarios.compute_ns.sum()) + longer + waits


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=393_160)  # a chunk is on the channel when one run ends and the next begins
def test_the_channel_does_one_thing_at_a_time(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = make.problem(rng)
    result = replay(problem, make.schedule(rng, problem), record=True)
    # each run begins with a channel at rest: the last chunk of the run before is not waited for
    for run in problem.scenarios.runs():
        own = [part for part in result.copies if part.pass_index in run]
        parts = sorted(own, key=lambda part: part.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(parts))
    ends = {index: result.pass_end_ns[run[-1]] for run in problem.scenarios.runs() for index in run}
    ended = [part.size_bytes for part in result.copies if part.end_ns <= ends[part.pass_index]]
    assert sum(ended) <= int(result.copied_bytes.sum())
