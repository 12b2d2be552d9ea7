"""What every back end must do, whichever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from solvers.checker import check_bound, check_schedule
from solvers.errors import OptionError
from solvers.layout import smallest_capacity
from solvers.outcome import Outcome, Stop
from solvers.problem import Problem, Stage
from solvers.registry import Feature, Limits, load, names
from solvers.replay import measure, replay

LIMITS = Limits(work=0.5, seconds=600.0)


def solved(name: str, problem: Problem) -> tuple[Outcome, int]:
    """Outcome and objective; the schedule passes the checker."""
    outcome = load(name).solve(problem, LIMITS)
    assert outcome.schedule is not None
    assert list(check_schedule(problem, outcome.schedule)) == []
    value = measure(problem, replay(problem, outcome.schedule))
    assert list(check_bound(value, outcome.bound)) == []
    assert (outcome.bound is not None) == (Feature.BOUND in load(name).features)
    return outcome, value


def uniform(make: Any, *, stages: int = 3, items: int = 4, capacity: int = 60) -> Problem:
    """Items of 5 bytes that take 30, starts of 7 bytes that take 40; every second item demanded."""
    stage = Stage(make.unit(40, 7), (make.unit(30, 5),) * items)
    demand = [[[1 + (i + p) % 2 for i in range(items)] for _ in range(stages)] for p in range(3)]
    for row in demand:
        for stage_row in row:
            stage_row[-1] = 0
    return Problem((stage,) * stages, make.scenarios(demand), capacity, 5)


@pytest.mark.parametrize("name", names())
def test_feasible_at_every_capacity(make: Any, name: str) -> None:
    problem = uniform(make)
    smallest = smallest_capacity(problem.stages, problem.slot_bytes)
    assert smallest == 7 + 5
    for capacity in (smallest, smallest + 1, 20, 30, 45, 60, 81):
        solved(name, problem.replace(capacity_bytes=capacity))


@pytest.mark.parametrize("name", names())
def test_infeasible_names_the_smallest_capacity(make: Any, name: str) -> None:
    outcome = load(name).solve(uniform(make, capacity=11), LIMITS)
    assert outcome.stop is Stop.INFEASIBLE
    assert outcome.schedule is None
    assert outcome.bound is None
    assert outcome.smallest_capacity_bytes == 12


@pytest.mark.parametrize("name", names())
def test_everything_stays_where_it_fits(make: Any, name: str) -> None:
    # 3 x (7 + 4 x 5) = 81 bytes; then nothing waits: 3 passes x 3 stages x (100 + work).
    # rows a stage: pass 0 and 2: 1 + 2 + 1 = 4, pass 1: 2 + 1 + 2 = 5
    _, value = solved(name, uniform(make, capacity=81))
    assert value == 3 * (100 + 40) + 3 * (100 + 50) + 3 * (100 + 40)


@pytest.mark.parametrize("name", names())
def test_zero_durations(make: Any, name: str) -> None:
    stage = Stage(make.unit(0, 7), (make.unit(0, 5),) * 3)
    scenarios = make.scenarios([[[1, 2, 0]] * 2] * 2, work=lambda rows: 0, lead=0)
    _, value = solved(name, Problem((stage,) * 2, scenarios, 20, 5))
    assert value == 0


@pytest.mark.parametrize("name", names())
def test_nothing_is_ever_demanded(make: Any, name: str) -> None:
    stage = Stage(make.unit(40, 7), (make.unit(30, 5),) * 2)
    scenarios = make.scenarios([[[0, 0]] * 2])
    _, value = solved(name, Problem((stage,) * 2, scenarios, 12, 5))
    # lead 100 twice, and at least the first start unit's copy unless it stays; one start and one
    # slot fit: 40 + 100, then 40 + 100, if both stream through one slot
    assert value <= 280


@pytest.mark.parametrize("name", names())
def test_stages_without_items(make: Any, name: str) -> None:
    item = make.unit(30, 5)
    stages = (Stage(make.unit(40, 7), ()), Stage(None, (item, item), sequential=True))
    problem = Problem(stages, make.scenarios([[[0, 0], [1, 1]]] * 2), 14, 5)
    solved(name, problem)


@pytest.mark.parametrize("name", names())
def test_the_same_each_time(make: Any, name: str) -> None:
    problem = make.problem(np.random.default_rng(5)).replace(capacity_bytes=80)
    first, again = (load(name).solve(problem, LIMITS) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("name", names())
def test_random_problems(make: Any, name: str) -> None:
    for seed in range(12):
        problem = make.problem(np.random.default_rng(seed), zero=seed % 3 == 0)
        smallest = smallest_capacity(problem.stages, problem.slot_bytes)
        for extra in (0, 10, 40):
            solved(name, problem.replace(capacity_bytes=smallest + extra))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(OptionError, match="solver 'simplex' is unknown; there are cpsat"):
        load("simplex")


def test_cpsat_keeps_what_saves_most(make: Any) -> None:
    # one stage; item 0 is always demanded, item 1 every second pass, item 2 never. Capacity: one
    # slot and one resident. Item 0 stays and item 1 is prefetched before the router each time
    # (30 < 40), into the one slot, which may be since nothing but prefetches is ever copied:
    # nothing waits, and passes take 40 + 10 + 10, 40 + 10, 40 + 10 + 10, 40 + 10. Without a
    # resident two copies (60) are not hidden.
    stage = Stage(None, (make.unit(30, 5),) * 3)
    demand = [[[1, 1, 0]], [[1, 0, 0]], [[1, 1, 0]], [[1, 0, 0]]]
    problem = Problem((stage,), make.scenarios(demand, lead=40), 10, 5)
    outcome, value = solved("cpsat", problem)
    assert outcome.schedule is not None
    assert outcome.schedule.stages[0].resident == (0,)
    assert value == 60 + 50 + 60 + 50


def test_cpsat_takes_a_hint(make: Any) -> None:
    problem = uniform(make, capacity=40)
    hint, best = load("on-demand").solve(problem, LIMITS), solved("cpsat", problem)
    assert hint.schedule is not None
    outcome = load("cpsat").solve(problem, LIMITS, hint.schedule)
    assert outcome.schedule is not None
    value = measure(problem, replay(problem, outcome.schedule))
    assert value <= measure(problem, replay(problem, hint.schedule))
    assert value <= best[1]


def test_klotski_prefetches_the_hot_ones_and_keeps_nothing(make: Any) -> None:
    problem = uniform(make, capacity=60).replace(fan_out=2)
    outcome, _ = solved("klotski", problem)
    assert outcome.schedule is not None
    # rows by item over three passes: item 0 and 2 have 4 + 4 demands of rows, all of 0..2 are
    # demanded in every pass, item 3 never: the first two by index
    assert [choice.prefetch for choice in outcome.schedule.stages] == [(0, 1)] * 3
    assert [choice.resident for choice in outcome.schedule.stages] == [()] * 3
