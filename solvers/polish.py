"""Small changes to a schedule, kept where the replay is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, islice

from solvers.checker import check_schedule
from solvers.layout import HOLDS, START, settled
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem
from solvers.sets import Search, demand_share

__all__ = ["polish", "polish_ahead"]

_ITEMS = 50_000
"""Items of all replays together: the work limit."""
_FEW_SLOTS = 2
"""Up to how many slots the one that is left to copies on demand is much of them."""
_TRADES = 2_000
"""Trades between stages that are looked at from one schedule."""


def polish(search: Search, *, reserves: bool = True) -> None:
    """Try neighbours of the search's best schedule until none is better or the work is used up;
    without ``reserves`` only those that leave no slot to copies on demand."""
    problem = search.problem
    each = max(int((problem.scenarios.demand > 0).sum()), problem.scenarios.passes, 1)
    left = _ITEMS // each
    improved = True
    while improved and search.best is not None:
        improved = False
        for changed in _neighbours(problem, search.best):
            # where nothing streams any more there are no slots
            sizes = (changed.slots, changed.start_slots, changed.reserve)
            rules = (changed.eviction, changed.host, changed.hold)
            neighbour = settled(problem, changed.stages, *sizes, *rules)
            if left <= 0 or search.out_of_time:
                return
            if neighbour.reserve and not reserves:
                continue
            if neighbour in search.tried or any(check_schedule(problem, neighbour)):
                continue
            left -= 1
            if search.try_schedule(neighbour):
                improved = True
                break


def polish_ahead(search: Search) -> None:
    """Polish what copies all items ahead, too, those demanded most first, of equals the shortest:
    no slot is left to copies on demand then, and a single one is enough to copy ahead. One item
    less on a list is on demand and takes that slot, so that such schedules are not found step by
    step from others."""
    best, problem = search.best, search.problem
    if best is None or not best.slots or best.slots > _FEW_SLOTS or best.eviction != "none":
        return
    share = demand_share(problem).round(9)
    own = Search(problem, [], search.deadline)
    stages = []
    for index, (choice, stage) in enumerate(zip(best.stages, problem.stages, strict=True)):
        listed = {*choice.resident, *choice.prefetch}
        rest = sorted(
            (-float(share[index, item]), unit.copy_ns, item)
            for item, unit in enumerate(stage.items)
            if item not in listed
        )
        ahead = (*choice.prefetch, *(item for _, _, item in rest))
        stages.append(replace(choice, prefetch=ahead))
    sizes = best.slots, best.start_slots, 0
    own.try_schedule(settled(problem, tuple(stages), *sizes, host=best.host, hold=best.hold))
    polish(own, reserves=False)
    search.try_schedule(own.best)


def _neighbours(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Slots and reserve first, then what is held back, then one stage's sets at a time, then units
    that change places."""
    for slots in (-1, 0, 1):
        for start_slots in (-1, 0, 1):
            for reserve in (-1, 0, 1):
                yield schedule.replace(
                    slots=max(schedule.slots + slots, 0),
                    start_slots=max(schedule.start_slots + start_slots, 0),
                    reserve=max(schedule.reserve + reserve, 0),
                )
    for hold in (None, *HOLDS):
        yield schedule.replace(hold=hold)
    for index, stage in enumerate(problem.stages):
        for choice in _choices(len(stage.items), stage.sequential, schedule.stages[index]):
            stages = (*schedule.stages[:index], choice, *schedule.stages[index + 1 :])
            yield schedule.replace(stages=stages)
            # a resident less may make room for a slot, and a slot less for a resident
            for slots, start_slots in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                yield schedule.replace(
                    stages=stages,
                    slots=max(schedule.slots + slots, 0),
                    start_slots=max(schedule.start_slots + start_slots, 0),
                    reserve=min(schedule.reserve, max(schedule.slots + slots, 0)),
                )
    yield from islice(_trades(problem, schedule), _TRADES)


def _trades(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """A unit comes for one or two of any stages that leave, to be copied ahead or on demand."""
    kept: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for index, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        if stage.start is not None:
            (kept if choice.start_resident else others).append((index, START))
        for item in () if stage.sequential else range(len(stage.items)):
            (kept if item in choice.resident else others).append((index, item))
    for leaves in chain(combinations(kept, 1), combinations(kept, 2)):
        for comes in others:
            items = any(item != START for _, item in leaves)
            for ahead in ("last", "first", "not") if items else ("not",):
                stages = list(schedule.stages)
                for index, item in leaves:
                    stages[index] = _without(stages[index], item, ahead)
                stages[comes[0]] = _with(stages[comes[0]], comes[1])
                yield schedule.replace(
                    stages=tuple(stages),
                    slots=max(schedule.slots, 1),
                    start_slots=max(schedule.start_slots, 1),
                )


def _without(choice: StageChoice, item: int, ahead: str) -> StageChoice:
    """A resident less, which is copied ahead of the stage's others, behind them, or is not."""
    if item == START:
        return replace(choice, start_resident=False)
    rest = tuple(one for one in choice.resident if one != item)
    before, after = (item,) * (ahead == "first"), (item,) * (ahead == "last")
    return replace(choice, resident=rest, prefetch=(*before, *choice.prefetch, *after))


def _with(choice: StageChoice, item: int) -> StageChoice:
    """A resident more."""
    if item == START:
        return replace(choice, start_resident=True)
    rest = tuple(one for one in choice.prefetch if one != item)
    return replace(choice, resident=tuple(sorted((*choice.resident, item))), prefetch=rest)


def _choices(count: int, sequential: bool, choice: StageChoice) -> Iterator[StageChoice]:
    yield replace(choice, start_resident=not choice.start_resident)
    if sequential:
        for kept in (len(choice.resident) - 1, len(choice.resident) + 1):
            if 0 <= kept <= count:
                yield replace(
                    choice, resident=tuple(range(kept)), prefetch=tuple(range(kept, count))
                )
        return
    resident, prefetch = choice.resident, choice.prefetch
    others = [item for item in range(count) if item not in resident]
    for item in others:
        rest = tuple(one for one in prefetch if one != item)
        if item in prefetch:
            yield replace(choice, prefetch=rest)
            yield replace(choice, prefetch=(item, *rest))
        else:
            yield replace(choice, prefetch=(*prefetch, item))
            yield replace(choice, prefetch=(item, *prefetch))
        yield replace(choice, resident=tuple(sorted((*resident, item))), prefetch=rest)
        for kept in resident:
            swapped = tuple(sorted((*(one for one in resident if one != kept), item)))
            yield replace(choice, resident=swapped, prefetch=rest)
            yield replace(choice, resident=swapped, prefetch=(*rest, kept))
    for kept in resident:
        fewer = tuple(one for one in resident if one != kept)
        yield replace(choice, resident=fewer)
        yield replace(choice, resident=fewer, prefetch=(kept, *prefetch))
