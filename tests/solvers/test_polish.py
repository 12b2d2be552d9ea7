"""Polish: small changes to a schedule that the replay finds faster."""

from __future__ import annotations

import numpy as np

from benchmarks.solver_cells import small
from solvers.checker import check_schedule
from solvers.joint import solve_joint
from solvers.outcome import Schedule, StageChoice
from solvers.polish import polish
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.registry import Limits, load
from solvers.replay import measure, replay
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


def test_units_of_different_stages_change_places() -> None:
    # copies of 10, 20 and 5 ns and no computation: there is room for a slot and one item, and with
    # the first one in memory a pass takes 25. Neither giving it up nor a second resident instead of
    # the slot gets anywhere; with the second one in its place a pass takes 15
    items = [Unit(4, 4, 1, 0, copy, 4) for copy in (10, 20, 5)]
    zero = np.zeros((1, 3), np.int64)
    demand = np.ones((1, 3, 1), np.int32)
    scenarios = Scenarios(zero, zero, demand, zero[:, :, None], zero, np.ones(1, np.int64))
    problem = Problem(tuple(Stage(None, (item,)) for item in items), scenarios, 8, 4)
    search = Search(problem, [])
    nothing = StageChoice(False, (), ())
    search.try_schedule(Schedule((StageChoice(False, (0,), ()), nothing, nothing), 1, 0, 1))
    assert search.best_value == 25
    polish(search)
    assert search.best is not None
    assert not list(check_schedule(problem, search.best))
    assert search.best.stages[1].resident == (0,)
    assert search.best_value == 15


def test_start_units_leave_for_items() -> None:
    # Start units of 3 ns, leads of 10; in each of two stages an item of 20 ns, on which work takes
    # 1. With both start units in memory, and a slot, a pass takes 2 x (10 + 20 + 1). One slot for
    # both start units leaves room for both items: 3 + 10 + 1, and the second start unit comes from
    # the end of the first lead, when the slot is free, by 16: 16 + 10 + 1.
    start, item = Unit(4, 4, 1, 0, 3, 4), Unit(4, 4, 1, 0, 20, 4)
    zero = np.zeros((1, 2), np.int64)
    demand = np.ones((1, 2, 1), np.int32)
    scenarios = Scenarios(zero, zero + 10, demand, demand.astype(np.int64), zero, zero[:, 0] + 1)
    problem = Problem((Stage(start, (item,)),) * 2, scenarios, 12, 4)
    search = Search(problem, [])
    search.try_schedule(Schedule((StageChoice(True, (), ()),) * 2, 1, 0, 1))
    assert search.best_value == 62
    polish(search)
    best = search.best
    assert best is not None
    assert not list(check_schedule(problem, best))
    assert best.stages == (StageChoice(False, (0,), ()),) * 2
    assert search.best_value == 27


def test_a_single_slot_copies_ahead_where_everything_is_listed() -> None:
    """Room for four units, one pass: of all 693,388 schedules that keep nothing undemanded the best
    takes 135,624, by enumeration; it keeps one start unit and one item, and copies what is demanded
    first and the shortest of the rest behind. Step by step from what copies on demand nothing below
    144,330 is found. The joint model, which copies nothing undemanded, takes 124,688."""
    problem = small(28)
    found = load("cpsat").solve(problem, Limits(work=0.1, seconds=600.0)).schedule
    assert found is not None
    assert found.reserve == 0
    assert list(check_schedule(problem, found)) == []
    assert measure(problem, replay(problem, found)) == 135_624
    assert solve_joint(problem, Limits(work=5.0, seconds=600.0)).value_ns == 124_688
