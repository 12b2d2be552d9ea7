"""Polish: small changes to a schedule that the replay finds faster."""

from __future__ import annotations

import numpy as np

from solvers.checker import check_schedule
from solvers.outcome import Schedule, StageChoice
from solvers.polish import polish
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.sets import Search


def test_slots_that_nothing_streams_through_any_more_are_given_up() -> None:
    # one stage, one item and a start unit of 10 bytes and 10 ns each, both streamed through a slot
    # of their own; memory has room for both instead, and then there is nothing to copy
    unit = Unit(10, 10, 1, 0, 10, 10)
    one, none = np.ones((2, 1), np.int64), np.zeros((2, 1), np.int64)
    demand = np.ones((2, 1, 1), np.int32)
    scenarios = Scenarios(none, one, demand, demand.astype(np.int64), none, one[:, 0])
    problem = Problem((Stage(unit, (unit,)),), scenarios, 20, 10, 1)
    search = Search(problem, [])
    search.try_schedule(Schedule((StageChoice(False, (), ()),), 1, 1, 1))
    polish(search)
    best = search.best
    assert best is not None
    assert not list(check_schedule(problem, best))
    assert best == Schedule((StageChoice(True, (0,), ()),), 0, 0, 0)
