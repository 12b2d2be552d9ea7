"""Plans along one axis: the memory budget, or n; ``planner.curves`` has more for plots.

A plan for a budget is as valid within a larger one, so along the budgets the best so far is kept:
more memory never makes the frontier worse.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from planner.documents import Asked, MemoryAccount, Plan, Workload
from planner.encode import Encoding, schedule_of
from planner.entries import (
    Entry,
    Patience,
    first_looks,
    housed,
    mixed,
    run_solver,
    run_strategy,
)
from planner.groups import batch_sizes, candidates, group_sizes
from planner.kv import Place, kv_places
from planner.looking_ahead import looked, with_predictors
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.recompute import candidate_of
from planner.smallest import CHUNK_BYTES, needed_bytes
from planner.solve import document, solve
from solvers.counting import counted
from solvers.errors import BudgetError, OptionError
from solvers.registry import Feature, Limits, load
from solvers.told import Told, untold

__all__ = [
    "GroupPoint",
    "SweepPoint",
    "budgets_between",
    "by_group",
    "sweep",
]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One budget.

    Attributes
    ----------
    memory_bytes
        The budget.
    plan
        The best plan for it; None where none is possible.
    smallest_bytes
        Where none is possible: the smallest budget with one.
    made_for_bytes
        The budget that the plan was found for: this one, or a smaller one.
    seconds
        Wall time of planning.
    """

    memory_bytes: int
    plan: Plan | None
    smallest_bytes: int | None
    made_for_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupPoint:
    """One n and b, searched for by itself.

    Attributes
    ----------
    n_batches, batch_size, sequences
        The group.
    objective
        On held-out sequences, with the credit of a link that has one; None where the group does not
        fit, or did not look worth a search.
    needed_bytes
        The smallest budget with which it fits.
    fits
        Whether it fits.
    """

    n_batches: int
    batch_size: int
    sequences: int
    objective: float | None
    needed_bytes: int
    fits: bool


def budgets_between(low_bytes: int, high_bytes: int, steps: int) -> tuple[int, ...]:
    """Evenly spaced budgets, both ends among them.

    Raises
    ------
    OptionError
        If they are not so many different ones.
    """
    if steps < 2:
        raise OptionError(f"a range has 2 steps or more, not {steps}")
    if high_bytes - low_bytes < steps - 1:
        raise OptionError(
            f"from {low_bytes:,} to {high_bytes:,} bytes there are no "
            f"{counted(steps, 'different budget')}: take at most "
            f"{counted(high_bytes - low_bytes + 1, 'step')}"
            if high_bytes > low_bytes
            else f"from {low_bytes:,} to {high_bytes:,} is no range; write the smaller one first"
        )
    return tuple(low_bytes + (high_bytes - low_bytes) * i // (steps - 1) for i in range(steps))


def sweep(
    profile: Profile,
    workload: Workload,
    budgets: Sequence[int],
    *,
    solver: str = "cpsat",
    objective: str = "throughput",
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    kv: Place = "auto",
    predictors: bool | None = None,
    progress: Told = untold,
) -> list[SweepPoint]:
    """The best plan within each budget (ascending).

    On the sequences that judge, a plan for a smaller budget stands in where the one made for this
    budget is no better: it is as valid here.

    Parameters
    ----------
    profile, workload, solver, objective, time_limit_seconds, seed, kv, predictors
        As for ``make_plan``.
    budgets
        In bytes of the device.
    progress
        See ``Told``.

    Raises
    ------
    OptionError
        As ``make_plan``.
    """
    points: list[SweepPoint] = []
    kept: _Kept | None = None
    asked = Asked(solver, kv, predictors)
    for done, budget in enumerate(budgets):
        progress(done, len(budgets), f"{solver} within {budget / (1 << 20):,.1f} MiB")
        started = time.monotonic()
        try:
            entry, rivals = solve(
                profile,
                workload,
                memory_bytes=budget,
                solver=solver,
                objective=objective,
                time_limit_seconds=time_limit_seconds,
                seed=seed,
                kv=kv,
                predictors=predictors,
            )
        except BudgetError as error:
            spent = time.monotonic() - started
            points.append(SweepPoint(budget, None, error.smallest_bytes, budget, spent))
            continue
        made = document(profile, entry, rivals, seed, asked)
        looks = with_predictors(made, profile, seed) if predictors else made
        if kept is None or looks.promised < kept.plan.promised:
            kept = _Kept(entry, rivals, budget, looks, len(made.notes))
        plan = looks if kept.budget == budget else _housed(profile, kept, budget)
        points.append(SweepPoint(budget, plan, None, kept.budget, time.monotonic() - started))
    return points


class _Kept(NamedTuple):
    """The best plan so far, for which budget it was made, and how many notes it had at first."""

    entry: Entry
    rivals: list[Entry]
    budget: int
    plan: Plan
    notes: int


def _housed(profile: Profile, kept: _Kept, memory_bytes: int) -> Plan:
    """The same plan within a larger budget, with what follows from that."""
    entry, plan = housed(kept.entry, memory_bytes), kept.plan
    again = document(profile, entry, kept.rivals, plan.seed, plan.asked)
    notes = (*again.notes, *plan.notes[kept.notes :])
    if again.policy == plan.policy:
        return replace(again, notes=notes)
    # layers follow predictors, and memory may be shared out for that
    account = MemoryAccount(memory_bytes, plan.memory["device"].by_purpose)
    plan = replace(plan, memory={**plan.memory, "device": account}, notes=notes)
    figures = candidate_of(plan, profile).figures(schedule_of(plan.policy))
    return replace(plan, **figures._asdict())


def by_group(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solver: str = "cpsat",
    objective: str = "throughput",
    seconds_each: float = 1.0,
    cap_seconds: float | None = None,
    seed: int = 0,
    kv: Place = "auto",
    predictors: bool | None = None,
    only: Sequence[int] | None = None,
    progress: Told = untold,
) -> list[GroupPoint]:
    """Each group size with the b that suits it best, solved by itself.

    Parameters
    ----------
    profile, workload, memory_bytes, solver, objective, seed, kv, predictors
        As for ``make_plan``.
    seconds_each
        Time limit for each n and b, of a solver that searches.
    cap_seconds
        The cap, where it is to be another: the work stays that of ``seconds_each``.
    only
        Group sizes (sequences) to look at; None: all.
    progress
        See ``Told``.
    """
    goal = objective_named(objective, workload)
    found = candidates(profile, workload, memory_bytes, seed, goal, kv)
    searches = Feature.BOUND in load(solver).features
    cap = seconds_each if cap_seconds is None else cap_seconds
    sizes = sorted(group_sizes(workload.requests) if only is None else only)
    points = []
    for done, size in enumerate(sizes):
        progress(done, len(sizes), f"groups of {size}")
        best: GroupPoint | None = None
        for candidate in found:
            encoding = candidate.encoding
            if encoding.group != size:
                continue
            looks = first_looks([candidate], float("inf"), Patience(False))
            if not looks:
                continue
            if searches:
                limits = Limits(0.05 * seconds_each, cap, seed)
                entry = run_solver(solver, candidate, limits, looks[0][1])
                if profile.costs.raw is not None:
                    deadline = time.monotonic() + cap
                    entry = mixed(entry, partial(replace, limits), deadline)
            else:
                entry = run_strategy(solver, profile, [candidate], looks, seed)
            if searches and predictors is None:
                entry = looked(entry)
            if predictors:
                bare = document(profile, entry, [], seed)
                value = with_predictors(bare, profile, seed).promised
            else:
                value = entry.candidate.promised("judge", entry.schedule)
            if best is None or best.objective is None or value < best.objective:
                needed = needed_bytes(encoding)
                shape = encoding.n_batches, encoding.batch_size
                best = GroupPoint(*shape, size, value, needed, True)
        if best is None:
            batches, batch, needed = _least(profile, workload, size, kv)
            best = GroupPoint(batches, batch, size, None, needed, needed <= memory_bytes)
        points.append(best)
    return points


def _least(profile: Profile, workload: Workload, group: int, kv: Place) -> tuple[int, int, int]:
    """The n and b of a group size that need the least memory, and how much that is."""
    encodings = [
        Encoding(profile, workload, -(-group // batch), batch, 0, chunk, place)
        for batch in batch_sizes(group)
        for chunk in CHUNK_BYTES
        for place in kv_places(profile.model, profile.hardware.device, kv)
    ]
    needed, _, least = min((needed_bytes(one), i, one) for i, one in enumerate(encodings))
    return least.n_batches, least.batch_size, needed
