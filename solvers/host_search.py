"""How much the host takes, by trial: the replay decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from solvers.host import host_share_of
from solvers.layout import settled
from solvers.outcome import HostShare, Schedule
from solvers.polish import polish
from solvers.problem import Problem
from solvers.sets import Search

__all__ = ["tune_host"]

_PERCENTS = (25, 34, 50, 67, 75, 100)
"""A quarter of what is demanded, a third, a half, ..."""
_LIMITS = 5
"""Limits on rows that are tried, beside that of each item by itself."""
_ROUNDS = 2


def tune_host(search: Search, starts: Sequence[Schedule]) -> None:
    """Let the host take more or less of what schedules demand, with their copies ahead and without,
    and change the best of those with a host step by step; the search keeps what is faster.

    Parameters
    ----------
    search
        Whose best schedule is one of those that are looked at.
    starts
        Others.
    """
    problem, best = search.problem, search.best
    rows = _limits(problem)
    if not rows or best is None:
        return
    own = Search(problem, [], search.deadline)
    whole = [HostShare(rows[-1], percent) for percent in (50, 100)]
    alone = host_share_of(problem)
    for one in (best, *starts):
        for base in (one, _bare(problem, one)):
            if base.slots:
                for share in (*whole, *([] if alone is None else [alone])):
                    own.try_schedule(base.replace(host=share))
    for _ in range(_ROUNDS):
        chosen, before = own.best, own.best_value
        if chosen is None or chosen.host is None:
            return
        base, share = chosen, chosen.host
        share = _try(own, base, share, (HostShare(share.rows, one) for one in _PERCENTS))
        share = _try(own, base, share, (HostShare(one, share.percent) for one in rows))
        _try(own, base, share, (HostShare(share.rows, one) for one in _PERCENTS))
        polish(own)
        if own.best_value == before:
            break
    search.try_schedule(own.best)


def _try(
    search: Search, base: Schedule, share: HostShare, others: Iterable[HostShare]
) -> HostShare:
    """The last of ``others`` with which the search has found something better, or ``share``."""
    for one in others:
        if search.try_schedule(base.replace(host=one)):
            share = one
    return share


def _limits(problem: Problem) -> list[int]:
    """Limits on rows, ascending, from those that items are demanded by; none without a
    host."""
    if problem.scenarios.host_work_ns is None:
        return []
    several = [index for index, stage in enumerate(problem.stages) if not stage.sequential]
    demand = problem.scenarios.demand[:, several]
    different = np.unique(demand[demand > 0])
    if not different.size:
        return []
    picks = np.unique(np.linspace(0, len(different) - 1, _LIMITS).round().astype(int))
    found = {int(different[pick]) for pick in picks}
    alone = host_share_of(problem)
    return sorted(found if alone is None else {*found, alone.rows})


def _bare(problem: Problem, schedule: Schedule) -> Schedule:
    """The same without copies ahead of demand."""
    stages = tuple(
        choice if stage.sequential else choice.bare()
        for stage, choice in zip(problem.stages, schedule.stages, strict=True)
    )
    sizes = schedule.slots, schedule.start_slots, schedule.reserve
    rules = schedule.eviction, schedule.host, schedule.hold
    return settled(problem, stages, *sizes, *rules)
