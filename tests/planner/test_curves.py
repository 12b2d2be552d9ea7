"""What plots say is what the plans of the same searches state."""

from __future__ import annotations

import time
from typing import Any

import pytest

from planner.curves import FrontierPoint, TimePoint, by_time, frontiers
from planner.documents import Workload
from planner.looking_ahead import with_predictors
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from planner.sweep import sweep

WORKLOAD = Workload(requests=1, prompt_tokens=4, new_tokens=2)
LIMIT = 0.02


@pytest.fixture
def profile(profile_factory: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny one, and a clock that stands still: work alone ends a search."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    return profile_factory(layers=1, experts=3, sequences=12, prompt=4, new=4)


@pytest.mark.parametrize("predictors", [False, True])
def test_time_limits(profile: Any, predictors: bool) -> None:
    memory = smallest_budget_bytes(profile, WORKLOAD) + profile.model.expert_bytes // 2
    told: list[tuple[int, int, str]] = []
    asked: dict[str, Any] = {"memory_bytes": memory, "solver": "cpsat", "objective": "throughput"}
    points = by_time(
        profile,
        WORKLOAD,
        [LIMIT],
        predictors=predictors,
        progress=lambda *now: told.append(now),
        **asked,
    )
    assert told == [(0, 1, "cpsat within 0.02 s")]
    plan = make_plan(profile, WORKLOAD, time_limit_seconds=LIMIT, **asked)
    if predictors:
        plan = with_predictors(plan, profile, 0)
    assert points == [TimePoint(LIMIT, plan.objective, plan.bound)]


def test_budgets(profile: Any) -> None:
    least, expert = smallest_budget_bytes(profile, WORKLOAD), profile.model.expert_bytes
    budgets = [least - 1, least, least + 2 * expert]
    solvers = ["cpsat", "lru"]
    told: list[tuple[int, int, str]] = []
    lines = frontiers(
        profile,
        WORKLOAD,
        budgets,
        solvers,
        time_limit_seconds=LIMIT,
        progress=lambda *now: told.append(now),
    )
    assert list(lines) == solvers
    assert [(done, total) for done, total, _ in told] == [(at, 6) for at in range(6)]
    for name, points in lines.items():
        assert [point.memory_bytes for point in points] == budgets
        assert points[0] == FrontierPoint(least - 1, None, 0, 0)
        plans = sweep(profile, WORKLOAD, budgets, solver=name, time_limit_seconds=LIMIT)
        for point, made in zip(points[1:], plans[1:], strict=True):
            assert made.plan is not None
            rate = made.plan.predicted.tokens_per_second.value
            assert point.tokens_per_second == pytest.approx(rate, rel=1e-6)  # rounded to whole ns
            shape = made.plan.policy.n_batches, made.plan.policy.batch_size
            assert (point.n_batches, point.batch_size) == shape
