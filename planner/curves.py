"""Points of plots: what a plan would state of its objective, without making the plan.

A plan states its rivals, a bound, a timeline and notes as well, which take several times as long as
the search where that is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.documents import Workload
from planner.entries import Entry, Looks
from planner.formats import streamed
from planner.groups import candidates
from planner.kv import Place
from planner.looking_ahead import with_predictors
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.solve import document, solve
from solvers.registry import Feature, load
from solvers.told import Told, untold

__all__ = ["FrontierPoint", "TimePoint", "by_time", "frontiers"]


class FrontierPoint(NamedTuple):
    """What a plot says of one budget.

    ``tokens_per_second`` is None where nothing fits; ``n_batches`` and ``batch_size`` are of the
    best plan.
    """

    memory_bytes: int
    tokens_per_second: float | None
    n_batches: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class TimePoint:
    """A plan under one time limit; ``objective`` and ``bound`` on held-out sequences, both without
    a link's credit."""

    seconds: float
    objective: float
    bound: float | None


def by_time(
    profile: Profile,
    workload: Workload,
    limits: Sequence[float],
    *,
    memory_bytes: int,
    solver: str,
    objective: str,
    seed: int = 0,
    kv: Place = "auto",
    predictors: bool | None = None,
    progress: Told = untold,
) -> list[TimePoint]:
    """What a searching solver reaches under each time limit, in seconds."""
    goal, looks = objective_named(objective, workload), None
    if goal.measure != "memory":  # whose plans are made for another budget and objective
        looks = Looks.of(candidates(profile, workload, memory_bytes, seed, goal, kv))
    points = []
    for done, seconds in enumerate(limits):
        progress(done, len(limits), f"{solver} within {seconds:g} s")
        entry, _ = solve(
            profile,
            workload,
            memory_bytes=memory_bytes,
            solver=solver,
            objective=objective,
            time_limit_seconds=seconds,
            seed=seed,
            kv=kv,
            predictors=predictors,
            looks=looks,
        )
        if predictors:
            plan = with_predictors(document(profile, entry, [], seed), profile, seed)
            points.append(TimePoint(seconds, plan.objective, plan.bound))
            continue
        candidate = streamed(entry.candidate, entry.schedule)
        proven = candidate.bound(entry.schedule)
        bound = None if proven is None else candidate.value("judge", proven.value_ns)
        points.append(TimePoint(seconds, candidate.score("judge", entry.schedule), bound))
    return points


def frontiers(
    profile: Profile,
    workload: Workload,
    budgets: Sequence[int],
    solvers: Sequence[str],
    *,
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    kv: Place = "auto",
    predictors: bool | None = None,
    progress: Told = untold,
) -> dict[str, list[FrontierPoint]]:
    """The throughput of each solver within each budget (ascending), as ``sweep`` has it.

    Nothing is proven, and what is not asked for is not compared: a rule's policies alone are made,
    of groups that all solvers share.
    """
    goal = objective_named("throughput", workload)
    best: dict[str, FrontierPoint] = {}
    lines: dict[str, list[FrontierPoint]] = {name: [] for name in solvers}
    for done, budget in enumerate(budgets):
        looks = Looks.of(candidates(profile, workload, budget, seed, goal, kv))
        for at, name in enumerate(solvers):
            what = f"{name} within {budget / (1 << 20):,.1f} MiB"
            progress(done * len(solvers) + at, len(budgets) * len(solvers), what)
            if not looks.found:
                lines[name].append(FrontierPoint(budget, None, 0, 0))
                continue
            if Feature.BOUND in load(name).features:
                entry, _ = solve(
                    profile,
                    workload,
                    memory_bytes=budget,
                    solver=name,
                    objective=goal.name,
                    time_limit_seconds=time_limit_seconds,
                    seed=seed,
                    kv=kv,
                    predictors=predictors,
                    looks=looks,
                )
            else:
                entry = looks.strategy(name, profile, seed)
            # throughput's objective is ns a token
            rate = 1e9 / _judged(profile, entry, seed, predictors)
            encoding = entry.candidate.encoding
            if name not in best or rate > (best[name].tokens_per_second or 0.0):
                best[name] = FrontierPoint(budget, rate, encoding.n_batches, encoding.batch_size)
            lines[name].append(best[name]._replace(memory_bytes=budget))
    return lines


def _judged(profile: Profile, entry: Entry, seed: int, predictors: bool | None) -> float:
    """What a plan would promise on the sequences that judge, without the plan."""
    if predictors:
        return with_predictors(document(profile, entry, [], seed), profile, seed).promised
    return streamed(entry.candidate, entry.schedule).promised("judge", entry.schedule)
