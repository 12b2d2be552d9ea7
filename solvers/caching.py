"""Residents or a cache: how much of the memory keeps what was used last, by trial.

A resident is there whatever is demanded; a slot with an eviction keeps what was used. Where what
was demanded comes again more often than its popularity says, memory is worth more as a cache. Moves
and models know no caching, so shares of the memory are tried here, from the search's best schedule;
the replay decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from solvers.checker import check_schedule
from solvers.layout import START, Layout, settled
from solvers.outcome import Eviction, Schedule
from solvers.polish import polish
from solvers.problem import Problem
from solvers.sets import Search, demand_share

__all__ = ["kept_order", "tune_caches"]

_EVICTIONS: tuple[Eviction, ...] = ("stale", "plan")
_SLOTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_ITEMS = 200_000
"""Demanded items of all replays together: the work limit."""
_WORTH = 0.01
"""Share by which a cache must be faster: bounds of schedules without one say nothing of it."""


def tune_caches(search: Search) -> None:
    """Try caches of all sizes in place of residents; the best, polished, is kept where it is
    clearly faster."""
    problem, best = search.problem, search.best
    if best is None or not best.slots or best.eviction != "none":
        return
    each = max(int((problem.scenarios.demand > 0).sum()), problem.scenarios.passes, 1)
    own = Search(problem, [], search.deadline)
    for schedule in islice(_schedules(problem, best), _ITEMS // each):
        if own.out_of_time:
            break
        if not any(check_schedule(problem, schedule)):
            own.try_schedule(schedule)
    if own.best is None or own.best_value >= search.best_value:
        return
    polish(own)
    if search.best_value - own.best_value >= _WORTH * abs(search.best_value):
        search.try_schedule(own.best)


def _schedules(problem: Problem, best: Schedule) -> Iterator[Schedule]:
    """All sizes and evictions, with only start units copied ahead, or what ``best`` copies."""
    order = kept_order(problem, best)
    nothing: list[tuple[int, ...]] = [()] * len(problem.stages)
    lists = [choice.prefetch for choice in best.stages]
    for slots in _sizes(problem, best):
        layout = Layout(problem, slots, best.start_slots)
        if not layout.fits:
            return
        layout.fill(order)
        for eviction in _EVICTIONS:
            for ahead in (nothing, lists):
                # one slot is left for what is known beforehand, the tiles of a sequential stage
                reserve = max(slots - 1, 1) if ahead is nothing else max(best.reserve, 1)
                made = layout.schedule(ahead, reserve, eviction)
                sizes = made.slots, made.start_slots, made.reserve
                yield settled(problem, made.stages, *sizes, eviction, best.host, best.hold)


def kept_order(problem: Problem, schedule: Schedule) -> list[tuple[int, int]]:
    """In which order units become residents where memory is shared out anew: the schedule's start
    units and items of sequential stages, then other items, those demanded most first, of what the
    schedule keeps and then of the rest."""
    share = demand_share(problem).round(9)
    fixed = [(index, START) for index, one in enumerate(schedule.stages) if one.start_resident]
    others: list[tuple[bool, float, int, int]] = []
    for index, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        if stage.sequential:
            fixed += [(index, item) for item in choice.resident]
            continue
        kept = set(choice.resident)
        others += [
            (item not in kept, -float(share[index, item]), index, item)
            for item in range(len(stage.items))
        ]
    return [*fixed, *((index, item) for _, _, index, item in sorted(others))]


def _sizes(problem: Problem, best: Schedule) -> list[int]:
    """Numbers of slots, the last one with no room for a resident beside."""
    free = Layout(problem, 0, best.start_slots)
    total = sum(len(stage.items) for stage in problem.stages)
    held = int(problem.item_bytes.sum())
    most = min((free.free_bytes + held) // max(problem.slot_bytes, 1), total)
    return [*(size for size in _SLOTS if size < most), max(most, 1)]
