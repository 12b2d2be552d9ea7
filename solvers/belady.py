"""A clairvoyant cache (Belady's rule: give up what is needed last): a bound, never a schedule.

Whoever copies a unit for its next use, at most one pass ahead, may keep it in memory until then
instead; what fits is kept, byte by byte, and where memory is full the bytes whose next use is
furthest away go. Uses of a unit are the ends of intervals, each worth the copy that it saves, and
among intervals of equal worth the rule keeps as many as can be kept. So no schedule copies fewer
bytes, with a cache or without, if all units take as long for each byte; the least of them stands
for all. Time is bounded only through the larger of copies and computation.
"""

from __future__ import annotations

import heapq
from collections import Counter
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from solvers.host import physical_bound
from solvers.layout import START, infeasible
from solvers.outcome import Bound, Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress

__all__ = ["Belady", "cached_bound", "least_copied"]


class Belady:
    """See the module."""

    name = "belady"
    features = frozenset({Feature.USES_DEMAND, Feature.BOUND})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """The bound alone; none where a host may work on items instead of copying them."""
        if problem.scenarios.host_work_ns is not None:
            return infeasible(problem) or Outcome(Stop.RULE, None)
        return infeasible(problem) or Outcome(
            Stop.RULE, None, Bound(_value(problem), "clairvoyant")
        )


def cached_bound(problem: Problem, schedule: Schedule) -> Bound:
    """No schedule with a cache takes less time than this, with the lists of ``schedule`` or none:
    the larger of all computation and what must be copied, where that can be said.

    A unit of a list that was dropped into a cache may have been copied in a pass that weighs less
    than the one before its use, and a host may compute what else would be copied: there computation
    is all that is certain. Of a correction (``Problem.correction_ns``) as much counts as could be
    saved at most.

    Parameters
    ----------
    problem
        Measured in time.
    schedule
        One with a cache.
    """
    physical = physical_bound(problem)
    listed = any(
        choice.prefetch or choice.looks_ahead
        for stage, choice in zip(problem.stages, schedule.stages, strict=True)
        if not stage.sequential
    )
    if listed or problem.scenarios.host_work_ns is not None:
        return physical
    value = _value(problem) + problem.most_corrected_ns
    return physical if value <= physical.value_ns else Bound(value, "cache")


def _value(problem: Problem) -> int:
    """Weighted sum over the passes: with weights w, the sum over steps of w of what the passes that
    weigh as much or more take."""
    scenarios = problem.scenarios
    weight = scenarios.weight
    compute = scenarios.compute_ns.sum(axis=1)
    before = np.roll(weight, 1)
    starts = list(scenarios.run_starts)
    before[starts] = weight[starts]
    # a copy may be made in the pass before: it counts where both passes do
    counted = np.minimum(weight, before)
    total = below = 0
    for step in sorted({int(w) for w in weight if w > 0}):
        copies = least_copied(problem, counted >= step)
        if problem.measure == "bytes":
            each = copies
        elif problem.measure == "time":
            each = max(copies, int(compute[weight >= step].sum()))
        else:
            each = max(copies - int(compute[weight >= step].sum()), 0)
        total += (step - below) * each
        below = step
    return total


def least_copied(problem: Problem, counted: npt.NDArray[np.bool_]) -> int:
    """Least copies for uses in the passes that count ([passes]): bytes, or ns.

    At the start of a run memory may hold anything, for nothing. What short start units leave out
    counts as missed with all others, and is taken off again as if it were missed each time.
    """
    held: dict[tuple[int, int], int] = {}
    rates: list[Fraction] = []
    numbers = zip(counted.tolist(), problem.scenarios.shortened, strict=True)
    short = Counter(number for counts, number in numbers if counts and number)
    left_out = 0
    for index, stage in enumerate(problem.stages):
        named = [(START, stage.start)] if stage.start is not None else []
        for item, unit in (*named, *enumerate(stage.items)):
            if unit is None:
                continue
            held[index, item] = min(unit.held_bytes, unit.size_bytes)
            if held[index, item]:
                cost = unit.size_bytes if problem.measure == "bytes" else unit.copy_ns
                rates.append(Fraction(cost, held[index, item]))
                for number, passes in short.items() if item == START else ():
                    less = stage.start_in(number) or unit
                    size = min(held[index, item], less.size_bytes)
                    left_out += passes * (held[index, item] - size)
                    cost = less.size_bytes if problem.measure == "bytes" else less.copy_ns
                    rates += [Fraction(cost, size)] if size else []
    if not rates:
        return 0
    missed = sum(_missed_bytes(problem, run, counted, held) for run in problem.scenarios.runs())
    return int(max(missed - left_out, 0) * min(rates))


def _missed_bytes(
    problem: Problem, run: range, counted: npt.NDArray[np.bool_], held: dict[tuple[int, int], int]
) -> int:
    """Bytes that are not in memory when they are used, in one run."""
    demand = problem.scenarios.demand
    uses: list[list[tuple[int, int]]] = []
    for index in run:
        for stage, one in enumerate(problem.stages):
            items = np.flatnonzero(demand[index, stage]).tolist()
            uses.append([(stage, item) for item in ([START] if one.start else []) + items])
    count = len(problem.stages)
    never = len(uses)
    following: dict[tuple[int, int], int] = {}
    after: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in uses]
    for here in range(never - 1, -1, -1):
        for unit in uses[here]:
            after[here].append((following.get(unit, never), unit))
            following[unit] = here
    kept: dict[tuple[int, int], int] = {}
    furthest: list[tuple[int, tuple[int, int]]] = []
    free = problem.capacity_bytes
    missed = 0

    def keep(use: int, unit: tuple[int, int]) -> None:
        """Keep a unit until its next use, and give up what is needed last where memory is full."""
        nonlocal free
        if use == never or not counted[run.start + use // count]:
            return
        kept[unit] = held[unit]
        free -= held[unit]
        heapq.heappush(furthest, (-use, unit))
        while free < 0:
            # an entry of a use that has passed lies far below: its use is nearer than all others
            _, victim = furthest[0]
            cut = min(kept[victim], -free)
            kept[victim] -= cut
            free += cut
            if not kept[victim]:
                heapq.heappop(furthest)
                del kept[victim]

    for unit, use in sorted(following.items()):
        keep(use, unit)
    for here, units in enumerate(uses):
        for unit in units:
            there = kept.pop(unit, 0)
            free += there
            if counted[run.start + here // count]:
                missed += held[unit] - there
        for use, unit in after[here]:
            keep(use, unit)
    return missed
