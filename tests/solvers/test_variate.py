"""The correction of the objective: by hand, 0 on average, and below every schedule in the bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from solvers.checker import check_proofs
from solvers.errors import OptionError
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.registry import Limits, load
from solvers.relaxation import plan_bound
from solvers.replay import measure, objective, replay
from solvers.variate import corrected


def problem_of(
    make: Any, demand: list[list[list[int]]], mean: list[float], *, lead: int = 0
) -> Problem:
    """One stage; items of 4 bytes take 1 ms; a slot and a resident fit."""
    unit = make.unit(1_000_000, 4)
    scenarios = make.scenarios(demand, lead=lead, work=lambda rows: 0)
    expected = np.broadcast_to(np.array([mean]), scenarios.demand.shape)
    scenarios = replace(scenarios, mean_demanded=expected)
    return Problem((Stage(None, (unit,) * len(mean)),), scenarios, 8, 4)


def keeping(item: int) -> Schedule:
    return Schedule((StageChoice(False, (item,), ()),), slots=1, start_slots=0, reserve=1)


def test_by_hand(make: Any) -> None:
    # item 0 is demanded in 3 of 4 passes, where 2 are expected; item 1 in none, where 1 is.
    # No computation hides a copy, so that each counts in full: -1 ms for item 0, +1 ms for item 1.
    problem = corrected(problem_of(make, [[[1, 0]]] * 3 + [[[0, 0]]], [0.5, 0.25]))
    assert problem.correction.tolist() == [[-1_000_000, 1_000_000]]
    # with item 1 kept 3 copies are made and one of them was bad luck; with item 0 kept there is
    # none, and one was to be expected: just what 4 passes cost on average
    assert objective(problem, keeping(1)) == 3_000_000 - 1_000_000
    assert objective(problem, keeping(0)) == 0 + 1_000_000
    assert measure(problem, replay(problem, keeping(0))) == 0


def priced(make: Any, demand: Any, mean: list[float], start: int = 0, **times: Any) -> Any:
    """``corrected`` in us, of one stage: each item takes 1 ms, and all but ``kept`` stream."""
    kept, told = times.pop("kept"), times.pop("told", False)
    unit = make.unit(1_000_000, 4)
    scenarios = make.scenarios(demand, **times)
    expected = np.broadcast_to(np.array([mean]), scenarios.demand.shape)
    scenarios = replace(scenarios, mean_demanded=expected)
    stage = Stage(make.unit(start, 3) if start else None, (unit,) * len(mean))
    problem = Problem((stage,), scenarios, 4 * kept + 4, 4)
    if told:
        problem = problem.replace(ahead=np.zeros(scenarios.demand.shape, dtype=np.int32))
    problem = corrected(problem)
    assert (problem.price is None) == told
    return (problem.correction / 1_000).tolist()


@pytest.mark.parametrize(("work", "price"), [(100_000, 0.8), (250_000, 0.5), (500_000, 0.0)])
def test_what_other_work_hides_of_a_copy_costs_nothing(make: Any, work: int, price: float) -> None:
    # Items 0 and 1 stay, and their work hides as much of the copy of item 2, which four passes
    # demand with them; 3 is expected, both times 3 of 4, and item 3 is demanded in none.
    # Twice the computation, 6 x work, is less than the 1.5 ms of copies: none are made ahead.
    found = priced(
        make, [[[1, 1, 1, 0]]] * 4, [1.0, 1.0, 0.75, 0.75], kept=2, lead=0, work=lambda rows: work
    )
    assert found == [[0, 0, -1_000 * price, 3_000 * price]]


def test_a_copy_costs_the_share_of_copies_that_are_waited_for(make: Any) -> None:
    # Item 0 stays. One pass demands all four items: 3 ms of copies, behind 1.5 ms of work on
    # others than the last. One demands items 0 and 1, and 1.5 ms of work hide a copy of 1 ms. So
    # 3 of 4 copies are waited for. Item 1 is demanded twice, and expected in 1.5 passes; the start
    # unit leaves no time for copies ahead.
    found = priced(
        make,
        [[[1, 1, 1, 1]], [[3, 1, 0, 0]]],
        [1.0, 0.75, 0.5, 0.5],
        kept=1,
        start=4_000_000,
        work=lambda rows: 500_000 * rows,
    )
    assert found == [[0, -0.75 * 0.5 * 1_000, 0, 0]]


def test_what_no_pass_demands_is_priced_as_it_is_expected(make: Any) -> None:
    # Items 0 and 1 stay. Item 2 is expected in a quarter of four passes and comes in none; of its
    # copy the work on item 0 or 1 hides a quarter. The start unit takes all time for copies ahead.
    found = priced(
        make,
        [[[1, 1, 0]]] * 4,
        [1.0, 1.0, 0.25],
        kept=2,
        start=500_000,
        lead=0,
        work=lambda rows: 250_000,
    )
    assert found == [[0, 0, 750]]


@pytest.mark.parametrize(("lead", "price"), [(600_000, 1.0), (625_000, 0.25), (1_000_000, 0.0)])
def test_what_copies_ahead_hide_costs_nothing(make: Any, lead: int, price: float) -> None:
    # No work hides a copy. Item 1 is expected in 3 of 4 passes and item 2 in one: 1 ms of copies.
    # What twice the lead leaves, 200 us, 250 us, 1 ms, is nothing, as much as copying item 1 in
    # vain takes (then 3 of 4 copies hide), and what both do. Each is demanded in all four passes.
    # So much for who is told what to copy ahead; else copies ahead have a price of their own, and
    # this one is of copies on demand.
    mean, demand = [1.0, 0.75, 0.25], [[[1, 1, 1]]] * 4
    found = priced(make, demand, mean, kept=1, told=True, lead=lead, work=lambda rows: 0)
    assert found == [[0, -1_000 * price, -3_000 * price]]
    found = priced(make, demand, mean, kept=1, lead=lead, work=lambda rows: 0)
    assert found == [[0, -1_000, -3_000]]


def test_nothing_to_correct(make: Any) -> None:
    problem = problem_of(make, [[[1, 0]]], [0.5, 0.5])
    without = problem.replace(scenarios=replace(problem.scenarios, mean_demanded=None))
    for one in (without, problem.replace(measure="bytes"), problem.replace(capacity_bytes=3)):
        assert corrected(one) is one


def test_what_is_malformed_is_refused(make: Any) -> None:
    problem = problem_of(make, [[[1, 0]]], [0.5, 0.5])
    table: npt.NDArray[np.int64] = np.zeros((1, 2), dtype=np.int64)
    with pytest.raises(OptionError, match="bytes is minimised"):
        problem.replace(measure="bytes", correction_ns=table)
    with pytest.raises(OptionError, match="differ in stages or items"):
        problem.replace(correction_ns=table[:, :1])
    fewer = problem.replace(stages=(Stage(None, problem.stages[0].items[:1]),))
    with pytest.raises(OptionError, match="an item that does not exist"):
        fewer.replace(correction_ns=table + 1)


def drawn(make: Any, seed: int, *, passes: int, mean: list[float]) -> Problem:
    rng = np.random.default_rng([seed, 21])
    demand = (rng.random((passes, 1, len(mean))) < np.array(mean)).astype(int)
    return problem_of(make, demand.tolist(), mean, lead=50_000)


def test_on_average_it_is_nothing_and_takes_variance_away(make: Any) -> None:
    mean = [0.2, 0.5, 0.8]
    plain, own = [], []
    for seed in range(100):
        problem = corrected(drawn(make, seed, passes=4, mean=mean))
        plain.append(measure(problem, replay(problem, keeping(2))))
        own.append(objective(problem, keeping(2)))
    # 4 passes of 50 us and 0.2 + 0.5 copies
    error = np.std(plain) / np.sqrt(len(plain))
    assert np.mean(plain) == pytest.approx(4 * 750_000, abs=3 * error)
    assert np.mean(own) == pytest.approx(4 * 750_000, abs=3 * error)
    assert np.std(own) < 0.1 * np.std(plain)


def test_no_schedule_is_below_the_bounds(make: Any) -> None:
    """Problems of all kinds, with corrections at random and of either sign."""
    tight = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 22])
        stage = Stage(
            None,
            tuple(make.unit(int(rng.integers(1, 20)) * 100_000, 4) for _ in range(2)),
        )
        demand = (rng.random((3, 1, 2)) < 0.5).astype(int) * rng.integers(1, 4, (3, 1, 2))
        scenarios = make.scenarios(
            demand.tolist(), lead=100_000 * int(rng.integers(0, 20)), work=lambda rows: 90_000
        )
        table = rng.integers(-9, 10, (1, 2)) * 100_000
        problem = Problem((stage,), scenarios, int(rng.integers(8, 15)), 4, correction_ns=table)
        best = min(objective(problem, one) for one in make.every_schedule(problem))
        for bound in plan_bound(problem):
            assert bound is not None
            assert bound.value_ns <= best, seed
            assert list(check_proofs(problem, bound)) == [], seed
            tight += bound.value_ns > best - 100_000
        outcome = load("cpsat").solve(problem, Limits(work=0.1))
        assert outcome.schedule is not None
        assert objective(problem, outcome.schedule) >= best
    assert tight > 10
