"""One cache for all items, least recently used out first; nothing is copied ahead.

Start units stay as far as memory goes, then items of sequential stages (each pass needs them all);
the rest of memory is slots.
"""

from __future__ import annotations

from solvers.layout import START, Layout
from solvers.outcome import Eviction, Outcome, Stop
from solvers.problem import Problem
from solvers.strategy import Strategy

__all__ = ["Lru"]


class Lru(Strategy):
    """See the module."""

    name = "lru"
    eviction: Eviction = "lru"

    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """Start units and sequential stages stay; what is left over becomes slots."""
        order = [(index, START) for index in range(len(problem.stages))]
        order += [
            (index, item)
            for index, stage in enumerate(problem.stages)
            if stage.sequential
            for item in range(len(stage.items))
        ]
        layout.fill(order)
        # a slot more than there are items is no use
        total = sum(len(stage.items) for stage in problem.stages)
        if layout.slots:
            more = layout.free_bytes // max(problem.slot_bytes, 1)
            layout.slots = min(layout.slots + more, max(total, layout.slots))
        nothing: list[tuple[int, ...]] = [()] * len(problem.stages)
        return Outcome(Stop.RULE, layout.schedule(nothing, max(layout.slots - 1, 1), self.eviction))
