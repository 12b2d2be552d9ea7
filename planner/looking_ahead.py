"""A plan whose layers look ahead, with the memory shared out for that.

Where the next layer's router is asked a layer ahead, copies ahead are seldom wrong. Then fewer
slots are enough, or more of them keep what was copied: residents and slots are shared out anew,
with and without caching, and the replay on the choosing sequences decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from planner.documents import Plan
from planner.encode import schedule_of
from planner.groups import Candidate
from planner.prefetching import choose_predictors
from planner.profiles import Profile
from planner.recompute import candidate_of
from solvers.caching import kept_order
from solvers.checker import check_schedule
from solvers.layout import Layout
from solvers.outcome import Eviction, Schedule
from solvers.problem import Problem
from solvers.sets import demand_share

__all__ = ["with_predictors"]

_SLOTS = (2, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_EVICTIONS: tuple[Eviction, ...] = ("none", "plan", "lru", "stale")


def with_predictors(plan: Plan, profile: Profile, seed: int = 0) -> Plan:
    """``plan`` with predictors where they find more than its lists, or one that looks ahead in all
    layers, with residents and slots for that: whichever is faster on the choosing sequences.

    Raises
    ------
    OptionError
        If the profile has fewer than two sequences.
    """
    if plan.asked is not None:
        plan = dataclasses.replace(plan, asked=dataclasses.replace(plan.asked, predictors=True))
    named = choose_predictors(plan, profile, seed)
    candidate = candidate_of(named, profile)
    own = schedule_of(named.policy)
    best, schedule = candidate.promised("choose", own), own
    if profile.arrays.ahead is not None and candidate.objective.measure != "memory":
        for tried in _schedules(candidate.problem("fit"), own):
            value = candidate.promised("choose", tried)
            if value < best:
                best, schedule = value, tried
    if schedule is own:
        # memory and prediction know of no other predictor than lookahead
        told = own == schedule_of(plan.policy)
        return named if told else _restated(named, candidate, own)
    before = candidate.promised("judge", own)
    policy = candidate.encoding.policy(schedule)
    restated = _restated(dataclasses.replace(plan, policy=policy), candidate, schedule)
    note = (
        f"predictors by layers: lookahead in {sum(one.looks_ahead for one in schedule.stages)}; "
        f"with {schedule.slots} slots and eviction {schedule.eviction} that is "
        f"{1 - restated.promised / before:.1%} better than predictors with the plan's own slots"
    )
    return dataclasses.replace(restated, notes=(*plan.notes, note))


def _restated(plan: Plan, candidate: Candidate, schedule: Schedule) -> Plan:
    """The plan with what follows from its policy's schedule: memory, prediction and bound."""
    account = candidate.encoding.account(schedule)
    return dataclasses.replace(
        plan,
        memory={**plan.memory, "device": account},
        **candidate.figures(schedule)._asdict(),
    )


def _schedules(problem: Problem, own: Schedule) -> Iterator[Schedule]:
    """Every number of slots with every eviction; residents are those most often demanded of what
    the plan keeps, then of the rest, and all others are in the lists."""
    share, order = demand_share(problem).round(9), kept_order(problem, own)
    ranked = [
        np.argsort(-row[: len(stage.items)], kind="stable").tolist()
        for stage, row in zip(problem.stages, share, strict=True)
    ]
    for slots in _SLOTS:
        layout = Layout(problem, slots, own.start_slots)
        if not layout.fits:
            return
        layout.fill(order)
        for eviction in _EVICTIONS:
            schedule = _looking(problem, layout.schedule(ranked, 1, eviction))
            if not any(check_schedule(problem, schedule)):
                yield schedule


def _looking(problem: Problem, schedule: Schedule) -> Schedule:
    """The same, each layer looking ahead that can: one with a router before it, its own resident
    and something to copy."""
    stages, before = [], False
    for stage, choice in zip(problem.stages, schedule.stages, strict=True):
        can = before and choice.start_resident and bool(choice.prefetch) and not stage.sequential
        stages.append(dataclasses.replace(choice, looks_ahead=can))
        before = before or (bool(stage.items) and not stage.sequential)
    return schedule.replace(stages=tuple(stages))
