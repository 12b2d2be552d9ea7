"""Memory as residents or as a cache, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from solvers.caching import tune_caches
from solvers.checker import check_bound, check_proofs, check_schedule
from solvers.outcome import Eviction, Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.registry import Limits, load
from solvers.replay import measure, objective, replay
from solvers.sets import Search, unit_order


def in_turns(make: Any) -> Problem:
    """One stage of three items, of which each is demanded four times running; room for two."""
    demand = [[[int(item == index // 4) for item in range(3)]] for index in range(12)]
    stage = Stage(None, (make.unit(30, 5),) * 3)
    return Problem((stage,), make.scenarios(demand, lead=1), 10, 5)


def test_what_comes_again_is_worth_a_cache(make: Any) -> None:
    """A resident saves the copies of four passes; the other eight take 240 of the channel's time.

    A resident and a slot that keeps what was used copy each of the other two items once, at 30; all
    passes compute 1 + 10.
    """
    problem = in_turns(make)
    search = Search(problem, unit_order(problem, None))
    search.run()
    assert search.best is not None
    assert search.best.eviction == "none"
    assert search.best_value >= 240
    tune_caches(search)
    assert search.best.eviction != "none"
    assert list(check_schedule(problem, search.best)) == []
    assert search.best_value == measure(problem, replay(problem, search.best)) == 12 * 11 + 2 * 30


def test_a_bound_of_schedules_without_caches_is_not_told_of_one_with(make: Any) -> None:
    problem = in_turns(make)
    outcome = load("cpsat").solve(problem, Limits(work=0.5, seconds=600.0))
    assert outcome.schedule is not None
    assert outcome.bound is not None
    value = measure(problem, replay(problem, outcome.schedule))
    assert value == 192
    assert list(check_bound(value, outcome.bound)) == []
    # all that is computed: 12 x 11
    assert (outcome.bound.value_ns, outcome.bound.policies) == (132, "physical")


def test_where_copies_take_longer_a_cache_has_a_bound_of_its_own(make: Any) -> None:
    """An item in whole or in part is resident, or copied when it is first used and kept for three
    passes more. With r1 + r2 + r3 = R of the three resident the rest of each fits while it is kept
    if R + 1 - r <= 2: R <= 3 / 2, and what is not resident takes 300 an item, 450. A cache with one
    resident takes 600 and what it computes meanwhile.
    """
    stage = Stage(None, (make.unit(300, 5),) * 3)
    problem = in_turns(make).replace(stages=(stage,))
    outcome = load("cpsat").solve(problem, Limits(work=0.5, seconds=600.0))
    assert outcome.schedule is not None
    assert outcome.schedule.eviction != "none"
    assert outcome.bound is not None
    assert outcome.bound.policies == "cache"
    assert 440 < outcome.bound.value_ns <= 450
    assert list(check_proofs(problem, outcome.bound)) == []
    assert 600 < objective(problem, outcome.schedule) <= 12 * 11 + 600


def test_a_slot_that_keeps_what_it_has_saves_a_copy_where_all_is_demanded(make: Any) -> None:
    """With item 2 resident, pass 0 (lead 1, then work of 10 each) works on 2 while 0 is copied, to
    31, on 0 while 1 waits for the one slot, then copies 1, to 71: 81. In each other pass one of 0
    and 1 is there from before: it is worked on first, to 11, and while 2 is, the other one is
    copied, from 11 to 41: 51.
    """
    demand = [[[1, 1, 1]]] * 6
    stage = Stage(None, (make.unit(30, 5),) * 3)
    problem = Problem((stage,), make.scenarios(demand, lead=1), 10, 5)
    search = Search(problem, unit_order(problem, None))
    search.run()
    assert search.best_value > 81 + 5 * 51
    tune_caches(search)
    assert search.best_value == 81 + 5 * 51


@pytest.mark.parametrize(("eviction", "misses"), [("lru", 12), ("stale", 7)])
def test_turns_and_not_time_say_what_is_old(make: Any, eviction: Eviction, misses: int) -> None:
    """Three stages demand their item 0 in each of four passes; two slots.

    The least recently used is always the one that is needed next: every copy is made each time.
    None is stale, so with ``stale`` the one goes whose turn is farthest: in pass 0 stage 1's for 2,
    in pass 1 stage 0's for 1, in pass 2 stage 2's for 0 and 1's for 2, in pass 3 stage 0's for 1,
    and all others are there: 3 + 1 + 2 + 1 copies. A stage computes 100 + 10, a copy takes 30.
    """
    stage = Stage(None, (make.unit(30, 5),))
    problem = Problem((stage,) * 3, make.scenarios([[[1]] * 3] * 4), 10, 5)
    schedule = Schedule((StageChoice(),) * 3, 2, 0, 1, eviction)
    assert list(check_schedule(problem, schedule)) == []
    assert measure(problem, replay(problem, schedule)) == 12 * 110 + 30 * misses
