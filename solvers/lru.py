"""One cache for all items, least recently used out first; nothing is copied ahead.

Start units stay as far as memory goes, then items of sequential stages (each pass needs them all);
the rest of memory is slots.
"""

from __future__ import annotations

from solvers.layout import START, Layout, smallest_capacity, whole_in_memory
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress

__all__ = ["Lru"]


class Lru:
    """See the module."""

    name = "lru"
    features = frozenset({Feature.RUNNABLE})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """One rule, no search."""
        smallest = smallest_capacity(problem.stages, problem.slot_bytes)
        if problem.capacity_bytes < smallest:
            return Outcome(Stop.INFEASIBLE, None, None, smallest)
        whole = whole_in_memory(problem)
        if whole is not None:
            return Outcome(Stop.RULE, whole)
        order = [(index, START) for index in range(len(problem.stages))]
        order += [
            (index, item)
            for index, stage in enumerate(problem.stages)
            if stage.sequential
            for item in range(len(stage.items))
        ]
        for slots, start_slots in ((4, 0), (4, 2), (2, 2), (2, 1), (1, 1), (0, 2), (0, 1)):
            layout = Layout(problem, slots, start_slots)
            if layout.fits:
                layout.fill(order)
                # what is left over becomes slots, too; a slot more than there are items is no use
                total = sum(len(stage.items) for stage in problem.stages)
                if slots:
                    more = layout.free_bytes // max(problem.slot_bytes, 1)
                    layout.slots = min(slots + more, max(total, slots))
                nothing: list[tuple[int, ...]] = [()] * len(problem.stages)
                reserve = max(layout.slots - 1, 1)
                return Outcome(Stop.RULE, layout.schedule(nothing, reserve, "lru"))
        raise AssertionError("one slot of each kind fits: smallest_capacity says so")
