"""Each stage whole: what does not stay is copied before it is needed, used or not.

Stands for offloading as accelerate does it: stages from the front are resident as far as memory
goes, every other one is copied as a whole in each pass.
"""

from __future__ import annotations

from solvers.layout import START, Layout, smallest_capacity, whole_in_memory
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress

__all__ = ["AllExperts"]


class AllExperts:
    """See the module."""

    name = "all-experts"
    features = frozenset({Feature.RUNNABLE})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """One rule, no search: two stages' worth of slots where they fit, fewer where not."""
        smallest = smallest_capacity(problem.stages, problem.slot_bytes)
        if problem.capacity_bytes < smallest:
            return Outcome(Stop.INFEASIBLE, None, None, smallest)
        whole = whole_in_memory(problem)
        if whole is not None:
            return Outcome(Stop.RULE, whole)
        order = [
            (index, item)
            for index, stage in enumerate(problem.stages)
            for item in (START, *range(len(stage.items)))
        ]
        width = max(len(stage.items) for stage in problem.stages)
        for slots, start_slots in _sizes(width):
            layout = Layout(problem, slots, start_slots)
            if layout.fits:
                layout.fill(order)
                prefetch = [range(len(stage.items)) for stage in problem.stages]
                return Outcome(Stop.RULE, layout.schedule(prefetch, reserve=0))
        raise AssertionError("one slot of each kind fits: smallest_capacity says so")


def _sizes(width: int) -> list[tuple[int, int]]:
    """Slots and start slots to try, the most first."""
    sizes, slots = [], 2 * width
    while slots > 1:
        sizes.append((slots, 2))
        slots = slots * 3 // 4
    return [*sizes, (1, 2), (1, 1), (0, 2), (0, 1)]
