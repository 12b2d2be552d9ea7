"""The best of all policies, against a second enumeration timed by the second replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from solvers.errors import OptionError
from solvers.joint import solve_joint
from solvers.outcome import StageChoice, Stop
from solvers.policies import best_policy, every_policy
from solvers.problem import Problem, Stage, Unit
from solvers.registry import Limits, load
from solvers.replay import objective

LIMITS = Limits(work=5.0, seconds=600.0)


def tiny(make: Any, seed: int) -> Problem:
    """Three stages of three items in all, copied in pieces; two passes with demands of their own.
    Slots and start units take 4, there is room for four to six things."""
    rng = np.random.default_rng([seed, 31])
    width = rng.permutation([0, 1, 2]).tolist() if seed % 2 else [1, 1, 1]

    def unit() -> Unit:
        pieces = int(rng.integers(1, 3))
        return Unit(4, 4, pieces, int(rng.integers(1, 12)), int(rng.integers(1, 12)), 2)

    stages = tuple(
        Stage(unit() if at == 2 or rng.random() < 0.6 else None, tuple(unit() for _ in range(many)))
        for at, many in enumerate(width)
    )
    demand = np.zeros((2, 3, 2), dtype=int)
    for at, many in enumerate(width):
        demand[:, at, :many] = (rng.random((2, many)) < 0.6) * rng.integers(1, 3, (2, many))
    scenarios = make.scenarios(
        demand.tolist(), lead=int(rng.integers(1, 16)), work=lambda rows: 4 * rows, epilogue=1
    )
    return Problem(stages, scenarios, 4 * int(rng.integers(4, 7)), 4)


def slowly(make: Any, problem: Problem, schedule: Any) -> int:
    ends = make.slow(problem, schedule).ends
    return int(ends[-1])  # one run, all weights are 1


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_by_the_second_replay(make: Any, seed: int) -> None:
    problem = tiny(make, seed)
    found = best_policy(problem)
    assert found is not None
    schedule, taken = found
    assert taken == objective(problem, schedule) == slowly(make, problem, schedule)
    best = None
    for one in make.every_schedule(problem):
        starts = any(
            stage.start and not choice.start_resident
            for stage, choice in zip(problem.stages, one.stages, strict=True)
        )
        for hold in (None, 0, 1, 2) if starts else (None,):
            value = slowly(make, problem, one.replace(hold=hold))
            best = value if best is None else min(best, value)
    assert taken == best


def test_holding_back_is_among_them(make: Any) -> None:
    # of three stages the second next one is the farthest that may be copied ahead of
    policies = list(every_policy(tiny(make, 0)))
    assert {one.hold for one in policies} == {None, 0, 1}
    assert len(set(policies)) == len(policies)


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_better_but_who_knows_the_demand(make: Any, seed: int) -> None:
    problem = tiny(make, seed)
    found = best_policy(problem)
    assert found is not None
    joint = solve_joint(problem, LIMITS)
    assert joint.stop is Stop.OPTIMAL
    assert joint.value_ns is not None
    assert joint.value_ns <= found[1]
    for name in ("cpsat", "on-demand", "frequency", "all-experts", "klotski"):
        schedule = load(name).solve(problem, LIMITS).schedule
        if schedule is not None and schedule.eviction == "none":
            assert objective(problem, schedule) >= found[1], name


def test_what_nothing_fits_into_and_what_stays_whole(make: Any) -> None:
    stages = (Stage(make.unit(3, 4), (make.unit(5, 4),)),)
    scenarios = make.scenarios([[[1]]], lead=2, work=lambda rows: 1)
    assert best_policy(Problem(stages, scenarios, 7, 4)) is None
    found = best_policy(Problem(stages, scenarios, 8, 4))
    assert found is not None
    assert found[0].stages == (StageChoice(True, (0,), ()),)
    assert found[1] == 3


def test_too_many_are_refused(make: Any) -> None:
    stages = (Stage(None, (make.unit(5, 4),) * 6),) * 2
    problem = Problem(stages, make.scenarios([[[1] * 6] * 2]), 20, 4)
    with pytest.raises(OptionError, match="take a smaller instance"):
        best_policy(problem)
    with pytest.raises(OptionError, match="leave the host's times out"):
        best_policy(make.hosting(problem, 0))
