"""The plots of ``compare``: along the time limit, the memory budget, and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeplan.commands.common import searches
from moeplan.commands.sweep import frontier_chart
from moeplan.output import human_bytes
from moeplan.plots import Chart, Line
from planner.curves import TimePoint, by_time, frontiers
from planner.documents import Workload
from planner.groups import group_sizes
from planner.kv import Place
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.smallest import smallest_budget_bytes
from planner.sweep import budgets_between, by_group
from solvers.told import Told

__all__ = ["curve_steps", "draw_curves"]

_SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Time limits, as shares of the whole one."""
_BUDGETS = 6
_MOST_RULES = 4
"""Strategies drawn beside the searching solvers."""


def curve_steps(solvers: Sequence[str], workload: Workload) -> int:
    """How many plans are made for the charts, by ``draw_curves``."""
    searching, rules = _drawn(solvers)
    lines = len(searching[:1]) + len(rules)
    groups = len(group_sizes(workload.requests)) if searching else 0
    return len(searching) * len(_SHARES) + _BUDGETS * lines + groups


def _drawn(solvers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Solvers that search, and rules, that are drawn."""
    searching = [name for name in solvers if searches(name)]
    return searching, [name for name in solvers if name not in searching][:_MOST_RULES]


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
    predictors: bool | None,
    whole: Mapping[str, TimePoint],
    steps: Told,
) -> list[Chart]:
    """All charts that these solvers have.

    Searching solvers are asked anew under shorter limits; the first of them and the first few
    strategies within smaller and larger budgets; and each group size is solved by itself. ``whole``
    is what is known of solvers under the whole limit; ``steps`` is told of ``curve_steps`` steps.
    """
    searching, rules = _drawn(solvers)
    total, before = curve_steps(solvers, workload), 0

    def told(done: int, _: int, what: str) -> None:
        steps(before + done, total, what)

    times: list[Line] = []
    scale, unit = _scaled(objective, workload)
    for name in searching:
        known = [whole[name]] if name in whole else []
        points = by_time(
            profile,
            workload,
            [limit_seconds * share for share in _SHARES[: -1 if known else None]],
            memory_bytes=memory_bytes,
            solver=name,
            objective=objective,
            seed=seed,
            kv=kv,
            predictors=predictors,
            progress=told,
        )
        points += known
        before += len(_SHARES)
        seconds = tuple(point.seconds for point in points)
        times.append(Line(name, seconds, tuple(point.objective / scale for point in points)))
        bounds = tuple(None if p.bound is None else p.bound / scale for p in points)
        if any(bound is not None for bound in bounds):
            times.append(Line(f"{name}: bound", seconds, bounds, dashed=True))
    smallest = smallest_budget_bytes(profile, workload, kv)
    high = max(memory_bytes * 3 // 2, smallest + _BUDGETS)
    found_within = frontiers(
        profile,
        workload,
        budgets_between(smallest, high, _BUDGETS),
        [*searching[:1], *rules],
        time_limit_seconds=limit_seconds / 4,
        seed=seed,
        kv=kv,
        predictors=predictors,
        progress=told,
    )
    before += _BUDGETS * len(found_within)
    groups: list[Line] = []
    if searching:
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
                progress=told,
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
    ahead = any(channel.burst is not None for channel in profile.hardware.channels)
    return [
        Chart(
            "Objective against time limit",
            "time limit, s",
            f"{objective}, {unit}",
            tuple(times),
            "On held-out routing, so that a longer search may look no better than a short one; "
            "bounds are for the plan's own n and b."
            + (" Neither counts what a rested link is ahead." if ahead else ""),
            log_x=True,
        ),
        frontier_chart(found_within, smallest),
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
