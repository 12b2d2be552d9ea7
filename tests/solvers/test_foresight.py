"""Stages that look ahead, by hand and against the replay that is told the names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.checker import check_schedule
from solvers.errors import OptionError
from solvers.foresight import named_ahead
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.replay import replay

LISTS = (StageChoice(), StageChoice(prefetch=(0, 1, 2)))
LOOKING = (StageChoice(), StageChoice(prefetch=(0, 1, 2), looks_ahead=True))


@pytest.fixture
def problem(make: Any) -> Problem:
    """Two passes of two stages with three items each; one item of each is demanded."""
    scenarios = make.scenarios([[[1, 0, 0], [0, 0, 2]], [[1, 0, 0], [0, 1, 0]]])
    ahead = np.array([[[0, 0, 0], [0, 1, 1]], [[0, 0, 0], [0, 1, 0]]], np.int32)
    stage = Stage(None, (make.unit(30),) * 3)
    return Problem((stage, stage), scenarios, 100, 1, ahead=ahead)


def test_names_come_by_rows_then_by_how_often_they_are_demanded(problem: Problem) -> None:
    # pass 0: items 1 and 2 by one row each; over both passes 2 is demanded by more rows
    named = named_ahead(problem, Schedule(LOOKING, 2, 0, 1))
    assert named == {(0, 0): (1, (2, 1)), (1, 0): (1, (1,))}


def test_nothing_is_said_without_a_stage_that_looks_or_something_to_say(problem: Problem) -> None:
    assert named_ahead(problem, Schedule(LISTS, 2, 0, 1)) is None
    assert named_ahead(problem.replace(ahead=None), Schedule(LOOKING, 2, 0, 1)) is None
    # the first stage has none before it, in which anything could be known
    first = (StageChoice(prefetch=(0,), looks_ahead=True), StageChoice())
    assert named_ahead(problem, Schedule(first, 2, 0, 1)) is None


def test_what_is_named_is_copied_instead_of_the_list(make: Any) -> None:
    """Copies take 120, leads 100. Item 0 of stage 1 is copied from 0 to 120, before anybody has
    spoken. The list goes on with item 1, until 240; item 2, demanded at 210, comes from 240 to 360,
    its two rows take 20. Stage 0's router names item 2 at 100: it comes from 120 to 240 instead."""
    stage = Stage(None, (make.unit(120),) * 3)
    scenarios = make.scenarios([[[1, 0, 0], [0, 0, 2]]])
    ahead = np.array([[[0, 0, 0], [0, 0, 2]]], np.int32)
    problem = Problem((stage, stage), scenarios, 100, 1, ahead=ahead)
    first, second = StageChoice(resident=(0,)), StageChoice(prefetch=(0, 1))
    lists = replay(problem, Schedule((first, second), 3, 0, 1))
    assert (lists.pass_end_ns.tolist(), lists.wasted_bytes) == ([380], 2)
    second = StageChoice(prefetch=(0, 1), looks_ahead=True)
    looking = replay(problem, Schedule((first, second), 3, 0, 1))
    assert (looking.pass_end_ns.tolist(), looking.wasted_bytes) == ([260], 1)


@given(st.integers(0, 10_000))
def test_the_replay_says_to_itself_what_it_could_be_told(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, schedule = make.problem(rng), None
    ahead = rng.integers(0, 3, problem.scenarios.demand.shape).astype(np.int32)
    for index, stage in enumerate(problem.stages):
        ahead[:, index, len(stage.items) :] = 0
    problem = problem.replace(ahead=ahead)
    schedule = make.schedule(rng, problem)
    looks = tuple(bool(rng.integers(2)) for _ in problem.stages)
    stages = tuple(
        StageChoice(one.start_resident, one.resident, one.prefetch, look)
        for one, look in zip(schedule.stages, looks, strict=True)
    )
    looking = schedule.replace(stages=stages)
    told = replay(problem, schedule, named=named_ahead(problem, looking) or {})
    alone = replay(problem, looking)
    assert alone.pass_end_ns.tolist() == told.pass_end_ns.tolist()
    assert alone.wasted_bytes == told.wasted_bytes


def test_what_is_said_of_other_passes_is_refused(problem: Problem) -> None:
    assert problem.ahead is not None
    with pytest.raises(OptionError, match="differ in passes"):
        problem.replace(ahead=problem.ahead[:1].copy())
    # of more passes than there are scenarios: the first ones count
    problem.replace(scenarios=problem.scenarios.take_passes(1))


def test_nothing_is_copied_before_it_is_named_where_the_stage_waits(make: Any) -> None:
    """As above, but the list does not begin: the channel rests until stage 0's router has named
    item 2 at 100, which then comes from 100 to 220 and is worked on until 240. Its lead of stage 1
    ends at 210. Nothing is copied in vain."""
    stage = Stage(None, (make.unit(120),) * 3)
    scenarios = make.scenarios([[[1, 0, 0], [0, 0, 2]]])
    ahead = np.array([[[0, 0, 0], [0, 0, 2]]], np.int32)
    problem = Problem((stage, stage), scenarios, 100, 1, ahead=ahead)
    second = StageChoice(prefetch=(0, 1), looks_ahead=True, waits=True)
    schedule = Schedule((StageChoice(resident=(0,)), second), 3, 0, 1)
    waiting = replay(problem, schedule)
    assert (waiting.pass_end_ns.tolist(), waiting.wasted_bytes) == ([240], 0)
    # where nothing is said, the list does not begin either: demanded at 210, there at 330
    silent = replay(problem.replace(ahead=None), schedule)
    assert (silent.pass_end_ns.tolist(), silent.wasted_bytes) == ([350], 0)


def test_asking_takes_time_of_the_stage_that_is_asked_from(make: Any) -> None:
    """As above, with 7 more in front of the names: item 2 comes from 107 to 227 and is worked on
    until 247. Lists ask nobody."""
    stage = Stage(None, (make.unit(120),) * 3)
    scenarios = make.scenarios([[[1, 0, 0], [0, 0, 2]]])
    scenarios = replace(scenarios, asking_ns=np.array([[7, 5]]))
    ahead = np.array([[[0, 0, 0], [0, 0, 2]]], np.int32)
    problem = Problem((stage, stage), scenarios, 100, 1, ahead=ahead)
    first, second = StageChoice(resident=(0,)), StageChoice(prefetch=(0, 1))
    schedule = Schedule((first, second), 3, 0, 1)
    assert replay(problem, schedule).pass_end_ns.tolist() == [380]
    second = replace(second, looks_ahead=True, waits=True)
    assert replay(problem, schedule.replace(stages=(first, second))).pass_end_ns.tolist() == [247]


def test_the_checker_knows_stages_that_wait_for_nobody(problem: Problem) -> None:
    stages = (StageChoice(), StageChoice(prefetch=(0, 1, 2), waits=True))
    (fault,) = check_schedule(problem, Schedule(stages, 2, 0, 1))
    assert (fault.reason, fault.where) == ("waits", "stage 1")
