"""The plots of ``compare``: along the time limit, the memory budget, and n."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.commands.common import searches
from moeplan.commands.sweep import frontier_chart
from moeplan.output import Steps, human_bytes
from moeplan.plots import Chart, Line
from planner.documents import Workload
from planner.groups import smallest_budget_bytes
from planner.kv import Place
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.sweep import budgets_between, by_group, by_time, sweep

__all__ = ["draw_curves"]

_SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Time limits, as shares of the whole one."""
_BUDGETS = 6
_MOST_RULES = 4
"""Strategies drawn beside the searching solvers."""


def draw_curves(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solvers: Sequence[str],
    objective: str,
    limit_seconds: float,
    seed: int,
    kv: Place,
    predictors: bool,
    steps: Steps,
) -> list[Chart]:
    """All charts that these solvers have.

    Searching solvers are planned anew under shorter limits; they and the first few strategies
    within smaller and larger budgets; and each group size is solved by itself.
    """
    searching = [name for name in solvers if searches(name)]
    rules = [name for name in solvers if name not in searching][:_MOST_RULES]
    total = len(searching) + len(searching[:1]) + len(rules) + bool(searching)
    done = 0
    times: list[Line] = []
    scale, unit = _scaled(objective, workload)
    for name in searching:
        steps(done, total, f"{name} under shorter time limits")
        points = by_time(
            profile,
            workload,
            [limit_seconds * share for share in _SHARES],
            memory_bytes=memory_bytes,
            solver=name,
            objective=objective,
            seed=seed,
            kv=kv,
            predictors=predictors,
        )
        done += 1
        seconds = tuple(point.seconds for point in points)
        times.append(Line(name, seconds, tuple(point.objective / scale for point in points)))
        bounds = tuple(None if p.bound is None else p.bound / scale for p in points)
        if any(bound is not None for bound in bounds):
            times.append(Line(f"{name}: bound", seconds, bounds, dashed=True))
    smallest = smallest_budget_bytes(profile, workload, kv)
    high = max(memory_bytes * 3 // 2, smallest + _BUDGETS)
    budgets = budgets_between(smallest, high, _BUDGETS)
    frontiers = {}
    for name in [*searching[:1], *rules]:
        steps(done, total, f"{name} within other budgets")
        frontiers[name] = sweep(
            profile,
            workload,
            budgets,
            solver=name,
            time_limit_seconds=limit_seconds / 4,
            seed=seed,
            kv=kv,
            predictors=predictors,
        )
        done += 1
    groups: list[Line] = []
    if searching:
        steps(done, total, "each group size")
        found = [
            point
            for point in by_group(
                profile,
                workload,
                memory_bytes=memory_bytes,
                solver=searching[0],
                seconds_each=limit_seconds / 8,
                seed=seed,
                kv=kv,
                predictors=predictors,
            )
            if point.objective
        ]
        groups.append(
            Line(
                searching[0],
                tuple(point.sequences for point in found),
                # throughput's objective is ns a token
                tuple(1e9 / point.objective for point in found if point.objective),
                texts=tuple(f"n x b = {p.n_batches} x {p.batch_size}" for p in found),
            )
        )
    return [
        Chart(
            "Objective against time limit",
            "time limit, s",
            f"{objective}, {unit}",
            tuple(times),
            "On held-out routing, so that a longer search may look no better than a short one; "
            "bounds are for the plan's own n and b.",
            log_x=True,
        ),
        frontier_chart(frontiers, smallest),
        Chart(
            "Throughput against n",
            "sequences that share a copy (n x b)",
            "tokens/s",
            tuple(groups),
            f"Each group size with the b that suits it best, within {human_bytes(memory_bytes)}; "
            "sizes that are not drawn do not fit.",
            log_x=True,
        ),
    ]


def _scaled(objective: str, workload: Workload) -> tuple[float, str]:
    """What values are divided by, and the unit that they have then."""
    unit = objective_named(objective, workload).unit
    first, _, rest = unit.partition(" ")
    scale, name = (1 << 20, "MiB") if first == "bytes" else (1e6, "ms")
    return scale, f"{name} {rest}".rstrip()
