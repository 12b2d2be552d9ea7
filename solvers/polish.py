"""Small changes to a schedule, kept where the replay is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from solvers.checker import check_schedule
from solvers.layout import HOLDS, settled
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem
from solvers.sets import Search

__all__ = ["polish"]

_ITEMS = 50_000
"""Items of all replays together: the work limit."""


def polish(search: Search) -> None:
    """Try neighbours of the search's best schedule until none is better or the work is used up."""
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
            if neighbour in search.tried or any(check_schedule(problem, neighbour)):
                continue
            left -= 1
            if search.try_schedule(neighbour):
                improved = True
                break


def _neighbours(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """Slots and reserve first, then what is held back, then one stage's sets at a time."""
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
