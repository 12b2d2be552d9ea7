"""CP-SAT, HiGHS and CBC solve one and the same model."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest

from solvers.cpsat import solve_model
from solvers.layout import smallest_capacity
from solvers.milp import solve_with_cbc, solve_with_highs
from solvers.problem import Problem, Stage
from solvers.registry import Limits, load
from solvers.sets_model import SetsModel

LIMITS = Limits(work=5.0, seconds=600.0)
ENGINES = {"cpsat": solve_model, "highs": solve_with_highs, "cbc": solve_with_cbc}


def small(make: Any, seed: int) -> SetsModel:
    """Two stages of three items, times of milliseconds, some memory to share out."""
    rng = np.random.default_rng(seed)
    stages = tuple(
        Stage(
            make.unit(int(rng.integers(1, 5)) * 1_000_000, 4096 * 3),
            tuple(make.unit(int(rng.integers(2, 9)) * 1_000_000, 4096 * 2) for _ in range(3)),
        )
        for _ in range(2)
    )
    demand = (rng.random((4, 2, 3)) < 0.6) * rng.integers(1, 4, (4, 2, 3))
    scenarios = make.scenarios(
        demand.tolist(), lead=int(rng.integers(0, 6)) * 1_000_000, work=lambda r: r * 500_000
    )
    problem = Problem(stages, scenarios, 4096 * int(rng.integers(5, 14)), 4096 * 2)
    hint = load("on-demand").solve(problem, LIMITS).schedule
    assert hint is not None
    return SetsModel(problem, hint)


def brute_force(model: SetsModel) -> int:
    """The best over all binary values; times then follow row by row, by a small linear program."""
    best = None
    for bits in product((0, 1), repeat=model.binaries):
        if any(
            sum(c * bits[at] for at, c in zip(row.columns, row.coefficients, strict=True))
            < row.lower
            for row in model.rows
            if all(at < model.binaries for at in row.columns)
        ):
            continue
        value = _times(model, bits)
        best = value if best is None else min(best, value)
    assert best is not None
    return best


def _times(model: SetsModel, bits: tuple[int, ...]) -> int:
    """Least weighted time for fixed sets: all weights are 1 here, so being ahead as far as room and
    computation allow is best. Stage by stage, y is as large as t leaves for free."""
    columns = sorted(model.cost)
    total, ahead_before = 0, 0
    rows_of = {t: [row for row in model.rows if t in row.columns] for t in columns}
    for t in columns:
        needs, work = 0, 0
        for row in rows_of[t]:
            fixed = sum(
                c * bits[at]
                for at, c in zip(row.columns, row.coefficients, strict=True)
                if at < model.binaries
            )
            if t + 1 in row.columns:
                work = row.lower - fixed
            else:
                needs = max(needs, row.lower - fixed)
        duration = max(needs, work - ahead_before)
        # y <= t - work + y before, and it is bounded by the slots
        ahead_before = min(duration - work + ahead_before, model.upper[t + 1])
        total += duration
    return total


@pytest.mark.parametrize("seed", range(6))
def test_all_engines_reach_the_brute_force_optimum(make: Any, seed: int) -> None:
    model = small(make, seed)
    expected = brute_force(model)
    for name, engine in ENGINES.items():
        solved = engine(model, LIMITS)
        assert solved is not None, name
        assert solved.optimal, name
        assert solved.bound <= expected <= solved.objective, name
        assert solved.objective <= expected * 1.0002 + 1, name


@pytest.mark.parametrize("seed", range(8))
def test_engines_agree_within_their_gaps(make: Any, seed: int) -> None:
    problem = make.problem(np.random.default_rng(100 + seed))
    room = smallest_capacity(problem.stages, problem.slot_bytes) + 20
    problem = problem.replace(capacity_bytes=room)
    hint = load("on-demand").solve(problem, LIMITS).schedule
    assert hint is not None
    model = SetsModel(problem, hint)
    solved = [engine(model, LIMITS) for engine in ENGINES.values()]
    kept = [one for one in solved if one is not None and one.optimal]
    for one in kept:
        assert all(one.bound <= other.objective for other in kept)


def test_the_hint_is_feasible_in_its_own_model(make: Any) -> None:
    for seed in range(6):
        model = small(make, seed)
        bits = model.hinted()
        for row in model.rows:
            if all(at < model.binaries for at in row.columns):
                total = sum(
                    c * bits[at] for at, c in zip(row.columns, row.coefficients, strict=True)
                )
                assert total >= row.lower


@pytest.mark.parametrize("name", ["cpsat", "milp"])
def test_a_bound_that_nobody_asks_for_is_not_sought(make: Any, name: str) -> None:
    """The schedule is the same; whoever is told of progress gets one, which may be looser."""
    model = small(make, 3)
    whole = load(name).solve(model.problem, LIMITS)
    told: list[int | None] = []
    few = dataclasses.replace(LIMITS, bound=False)
    silent = load(name).solve(model.problem, few)
    shown = load(name).solve(
        model.problem, few, None, lambda _, objective, bound: told.append(bound)
    )
    assert whole.schedule == silent.schedule == shown.schedule
    assert whole.bound is not None
    assert silent.bound is None
    assert shown.bound is not None
    assert shown.bound.value_ns <= whole.bound.value_ns
    assert set(told) == {shown.bound.value_ns}
