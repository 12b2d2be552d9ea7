"""Policies whose layers look ahead, with the memory shared out for that.

Where the next layer's router is asked a layer ahead, copies ahead are seldom wrong. Then fewer
slots are enough, or more of them keep what was copied: residents and slots are shared out anew,
with and without caching, and layers whose routers are too often wrong copy nothing ahead. Trials
are on the fitted sequences; the best of them are held against what is there on the choosing ones.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable

import numpy as np

from planner.candidate import Candidate
from planner.check import checked
from planner.credit import credit_of
from planner.documents import Plan
from planner.encode import schedule_of
from planner.entries import Entry
from planner.prefetching import choose_predictors
from planner.profiles import Profile
from planner.recompute import candidate_of
from solvers.caching import kept_order
from solvers.checker import check_schedule
from solvers.counting import counted
from solvers.layout import Layout
from solvers.outcome import Eviction, Schedule, StageChoice
from solvers.problem import Problem
from solvers.replay import measure, replay
from solvers.sets import demand_share

__all__ = ["looked", "with_predictors"]

_SLOTS = (2, 4, 8, 16, 32, 64, 128, 256)
_EVICTIONS: tuple[Eviction, ...] = ("none", "stale")
_KEPT = (0.75, 0.5, 0.25)
"""Shares of the layers that go on looking ahead, those whose routers are right most often."""
_TRIALS = 30
"""About so many are made: as many of the fitted passes are looked at as that allows."""
_ITEMS = 150_000
"""Demanded items of all trials together: the work limit."""
_SMALL_SECONDS = 2.0
"""Trials that take no more of a processor are made without a look at the clock, so that small plans
are the same on a busy machine."""
_WORTH = 0.01
"""Share by which looking ahead must be faster where nobody has asked for it, and share of the time
that computation must wait for copies for a trial to be worth while."""
_BY_BATCHES = (
    "predictors: none, as keys and values of batches are copied by themselves; with --kv below or "
    "--kv device there may be some"
)


def looked(entry: Entry, deadline: float = math.inf, cut: list[str] | None = None) -> Entry:
    """The same, or a policy of the same n and b that looks ahead where that is clearly faster on
    the choosing sequences.

    Parameters
    ----------
    entry
        What was found without.
    deadline
        By ``time.monotonic``: no trial begins after it, unless all of them take little time.
    cut
        Gets the words for what there was no time for.
    """
    candidate, own = entry.candidate, entry.schedule
    if not _may(candidate):
        return entry
    trials = _Trials(candidate, own, deadline)
    if trials.waiting < _WORTH:
        return entry
    trials.run()
    if trials.late and cut is not None:
        cut.append(f"looked ahead in {counted(len(trials.made), 'way')} only")
    found = [Entry.of(entry.solver, candidate, one, entry.stop) for one in trials.best()]
    best = min(found, key=lambda one: one.chosen_value, default=entry)
    if best.chosen_value > (1 - _WORTH) * entry.chosen_value:
        return entry
    faster = 1 - best.chosen_value / entry.chosen_value
    said = (
        f"{_words(candidate, best.schedule)}; on the sequences that choose that is {faster:.1%} "
        "better than lists of prefetches"
    )
    return dataclasses.replace(best, notes=(*entry.notes, said))


def with_predictors(plan: Plan, profile: Profile, seed: int = 0) -> Plan:
    """``plan`` with predictors where they find more than its lists, or one that looks ahead in all
    layers, with residents and slots for that: whichever is faster on the choosing sequences.

    Raises
    ------
    OptionError
        If the profile has fewer than two sequences.
    """
    return checked(_with_predictors(plan, profile, seed), profile, "predictors")


def _with_predictors(plan: Plan, profile: Profile, seed: int) -> Plan:
    if plan.asked is not None:
        plan = dataclasses.replace(plan, asked=dataclasses.replace(plan.asked, predictors=True))
    if plan.policy.kv == "batches":
        return dataclasses.replace(plan, notes=(*plan.notes, _BY_BATCHES))
    named = choose_predictors(plan, profile, seed)
    candidate = candidate_of(named, profile)
    own = schedule_of(named.policy)
    best, schedule = candidate.promised("choose", own), own
    if _may(candidate):
        trials = _Trials(candidate, own)
        trials.run()
        for tried in trials.best():
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
        f"with {counted(schedule.slots, 'slot')} and eviction {schedule.eviction} that is "
        f"{1 - restated.promised / before:.1%} better than predictors with the plan's own slots"
    )
    return dataclasses.replace(restated, notes=(*plan.notes, note))


def _may(candidate: Candidate) -> bool:
    """Whether routers were asked a layer ahead, and n and b and the objective are such that this
    can serve them."""
    asked = candidate.encoding.profile.arrays.ahead is not None
    asked = asked and candidate.encoding.kv != "batches"
    return asked and candidate.objective.measure in ("time", "idle")


def _restated(plan: Plan, candidate: Candidate, schedule: Schedule) -> Plan:
    """The plan with what follows from its policy's schedule: memory, prediction and bound."""
    account = candidate.encoding.account(schedule)
    return dataclasses.replace(
        plan,
        memory={**plan.memory, "device": account},
        **candidate.figures(schedule)._asdict(),
    )


class _Trials:
    """Schedules that look ahead, each with its value on a few fitted passes.

    Parameters
    ----------
    candidate, own
        The n and b, and the schedule without.
    deadline
        As of ``looked``.

    Attributes
    ----------
    waiting
        Share of the time in which computation waits under ``own``.
    made
        Value and schedule, in the order of trial.
    late
        Whether the deadline has ended the trials.
    """

    def __init__(self, candidate: Candidate, own: Schedule, deadline: float = math.inf) -> None:
        whole = candidate.problem("fit")
        scenarios = whole.scenarios
        cycle = len(candidate.shapes("fit"))
        each = max(int((scenarios.demand > 0).sum()) * cycle // scenarios.passes, 1)
        cycles = max(_ITEMS // _TRIALS // each, 1)
        self._problem = whole.replace(scenarios=scenarios.take_passes(cycles * cycle))
        self._left = _ITEMS // (min(cycles, scenarios.passes // cycle) * each)
        self._credit = credit_of(candidate.encoding)
        self._own, self._deadline = own, deadline
        self._right = _right(whole)
        share = demand_share(whole).round(9)
        self._order = kept_order(whole, own)
        self._ranked = [
            np.argsort(-row[: len(stage.items)], kind="stable").tolist()
            for stage, row in zip(whole.stages, share, strict=True)
        ]
        self.made: list[tuple[int, Schedule]] = []
        self.late = False
        began = time.thread_time()
        result = replay(self._problem, own, credit=self._credit)
        if (time.thread_time() - began) * min(self._left, _TRIALS) <= _SMALL_SECONDS:
            self._deadline = math.inf
        weight = self._problem.scenarios.weight
        waits = (result.wait_start_ns + result.wait_item_ns).sum(axis=1) * weight
        self.waiting = float(waits.sum()) / max(float((result.pass_ns * weight).sum()), 1.0)

    def best(self) -> list[Schedule]:
        """The best trial with each eviction."""
        found: dict[Eviction, tuple[int, Schedule]] = {}
        for value, made in self.made:
            if made.eviction not in found or value < found[made.eviction][0]:
                found[made.eviction] = value, made
        return [schedule for _, schedule in found.values()]

    def run(self) -> None:
        """All sizes of both kinds of slots, as long as they become better; then, around the best
        of each kind, copies that do not wait for names, and fewer layers that look ahead."""
        listed = tuple(
            choice
            if stage.sequential
            else dataclasses.replace(
                choice, prefetch=tuple(item for item in ranked if item not in set(choice.resident))
            )
            for stage, choice, ranked in zip(
                self._problem.stages, self._own.stages, self._ranked, strict=True
            )
        )
        self._try(self._own.replace(stages=listed, reserve=max(self._own.reserve, 1)))
        for eviction in _EVICTIONS:
            self._sizes(eviction)
        for first in self.best():
            self._around(first)

    def _around(self, first: Schedule) -> None:
        """The same with copies that do not wait for names, and with fewer layers that look."""
        stages = tuple(dataclasses.replace(choice, waits=False) for choice in first.stages)
        self._try(first.replace(stages=stages), looking=False)
        looking = [at for at, choice in enumerate(first.stages) if choice.looks_ahead]
        looking.sort(key=lambda at: (-self._right[at], at))
        for kept in _KEPT:
            stays = frozenset(looking[: math.ceil(kept * len(looking))])
            if len(stays) < len(looking):
                self._try(first.replace(stages=_only(first.stages, stays)), looking=False)

    def _sizes(self, eviction: Eviction) -> None:
        """Numbers of slots until two in turn are no better, then those beside the best; residents
        are those most often demanded of what is kept so far, then of the rest, and all others are
        in the lists."""
        best, at, worse = math.inf, 0, 0
        for slots in _SLOTS:
            if worse == 2:
                break
            value = self._with_slots(slots, eviction)
            if value is not None and value < best:
                best, at, worse = value, slots, 0
            else:
                worse += 1
        for slots in (at * 3 // 4, at * 3 // 2):
            if slots not in (0, at, *_SLOTS):
                self._with_slots(slots, eviction)

    def _with_slots(self, slots: int, eviction: Eviction) -> int | None:
        layout = Layout(self._problem, slots, self._own.start_slots)
        if not layout.fits:
            return None
        layout.fill(self._order)
        made = layout.schedule(self._ranked, 1, eviction)
        return self._try(made.replace(host=self._own.host if made.slots else None))

    def _try(self, schedule: Schedule, *, looking: bool = True) -> int | None:
        """The value of a schedule, in which all layers look ahead that can; None where it is none,
        looks nowhere, or there is no time or work left."""
        if self._left <= 0 or self.late:
            return None
        self.late = time.monotonic() >= self._deadline
        if looking:
            schedule = _looking(self._problem, schedule)
        looks = any(choice.looks_ahead for choice in schedule.stages)
        if self.late or not looks or any(check_schedule(self._problem, schedule)):
            return None
        if any(schedule == made for _, made in self.made):
            return None
        self._left -= 1
        value = measure(self._problem, replay(self._problem, schedule, credit=self._credit))
        self.made.append((value, schedule))
        return value


def _right(problem: Problem) -> list[float]:
    """[stages]: of the items that a stage is said to demand, the share that it does."""
    demand, ahead = problem.scenarios.demand > 0, problem.ahead
    if ahead is None:
        return [0.0] * len(problem.stages)
    said = ahead[: len(demand)] > 0
    right = (said & demand).sum(axis=(0, 2)) / np.maximum(said.sum(axis=(0, 2)), 1)
    found: list[float] = right.tolist()
    return found


def _words(candidate: Candidate, schedule: Schedule) -> str:
    """Where a schedule looks ahead, and how often that is right in the passes that choose."""
    looking = [at for at, choice in enumerate(schedule.stages) if choice.looks_ahead]
    right = _right(candidate.problem("choose"))
    shares = [right[at] for at in looking]
    lowest, mean = min(shares), sum(shares) / len(shares)
    return (
        f"routers are asked a layer ahead in {counted(len(looking), 'layer')}, where {mean:.0%} of "
        f"the experts that they name are needed ({lowest:.0%} at least)"
    )


def _looking(problem: Problem, schedule: Schedule) -> Schedule:
    """The same, each layer looking ahead that can: one with a router before it, its own resident
    and something to copy."""
    stages, before = [], False
    for stage, choice in zip(problem.stages, schedule.stages, strict=True):
        can = before and choice.start_resident and bool(choice.prefetch) and not stage.sequential
        stages.append(dataclasses.replace(choice, looks_ahead=can, waits=can))
        before = before or (bool(stage.items) and not stage.sequential)
    return schedule.replace(stages=tuple(stages))


def _only(stages: Iterable[StageChoice], stays: frozenset[int]) -> tuple[StageChoice, ...]:
    """Stages of which only these go on looking ahead; the others copy nothing ahead."""
    return tuple(
        choice.bare() if choice.looks_ahead and at not in stays else choice
        for at, choice in enumerate(stages)
    )
