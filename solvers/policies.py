"""The best of all policies, by trying each, for tiny instances: the other referee of the search.

The joint model (``solvers.joint``) knows what passes demand. What is planned does not: residents,
lists of what is copied ahead, slots, and whether copies are held back are the same in all passes.
Here every such schedule without eviction caching, with any order of its lists, is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product
from math import prod

from solvers.checker import check_schedule
from solvers.errors import OptionError
from solvers.layout import settled
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.replay import objective

__all__ = ["MOST_POLICIES", "best_policy", "every_policy"]

MOST_POLICIES = 1_000_000
"""Combinations of sets, lists and slots that are looked at."""


def best_policy(problem: Problem) -> tuple[Schedule, int] | None:
    """The first of the schedules that take least, and what it takes; None where none fits.

    Raises
    ------
    OptionError
        If the instance is too large, or may have items worked on by a host.
    """
    if problem.scenarios.host_work_ns is not None:
        raise OptionError("not all policies with a host are tried: leave the host's times out")
    best: tuple[Schedule, int] | None = None
    for schedule in every_policy(problem):
        taken = objective(problem, schedule)
        if best is None or taken < best[1]:
            best = schedule, taken
    return best


def every_policy(problem: Problem) -> Iterator[Schedule]:
    """All schedules without eviction caching and host that differ, and that the checker accepts.

    No more slots than there are units that stream, a reserve only where something is copied
    ahead, and nothing held back that could not be copied anyway: a pass's last stages are no
    farther on than all stages but one.
    """
    options = [list(_choices(stage)) for stage in problem.stages]
    units = sum(len(stage.items) for stage in problem.stages)
    count = prod(map(len, options)) * (units + 1) * (len(options) + 1) * (len(options) + 1)
    if count > MOST_POLICIES:
        raise OptionError(f"more than {MOST_POLICIES} policies ({count}): take a smaller instance")
    seen: set[Schedule] = set()
    for stages in product(*options):
        pairs = list(zip(stages, problem.stages, strict=True))
        items = sum(len(stage.items) - len(choice.resident) for choice, stage in pairs)
        starts = sum(
            stage.start is not None and not choice.start_resident for choice, stage in pairs
        )
        ahead = any(choice.prefetch for choice in stages)
        holds = (None, *range(len(stages) - 1)) if starts and items else (None,)
        for slots, start_slots in product(range(items + 1), range(starts + 1)):
            for reserve in range(slots + 1 if ahead else 1):
                for hold in holds:
                    one = settled(problem, stages, slots, start_slots, reserve, hold=hold)
                    if one not in seen and not any(check_schedule(problem, one)):
                        seen.add(one)
                        yield one


def _choices(stage: Stage) -> Iterator[StageChoice]:
    """All that may be decided for a stage."""
    count = len(stage.items)
    for first in (False, True) if stage.start else (False,):
        if stage.sequential:
            for kept in range(count + 1):
                yield StageChoice(first, tuple(range(kept)), tuple(range(kept, count)))
            continue
        for size in range(count + 1):
            for resident in combinations(range(count), size):
                rest = [item for item in range(count) if item not in resident]
                for many in range(len(rest) + 1):
                    for prefetch in permutations(rest, many):
                        yield StageChoice(first, resident, prefetch)
