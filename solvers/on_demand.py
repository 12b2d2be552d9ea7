"""Nothing is copied before it is known to be needed.

Start units are resident as far as memory goes, then items in index order, without a look at what
is demanded; everything else is copied when the lead has ended.
"""

from __future__ import annotations

from solvers.layout import START, Layout, smallest_capacity, whole_in_memory
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress

__all__ = ["OnDemand"]


class OnDemand:
    """See the module."""

    name = "on-demand"
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
        # items go round the stages, so that each keeps as many as the others
        width = max(len(stage.items) for stage in problem.stages)
        order = [(index, START) for index in range(len(problem.stages))]
        order += [
            (index, item)
            for item in range(width)
            for index, stage in enumerate(problem.stages)
            if item < len(stage.items)
        ]
        for slots, start_slots in ((4, 0), (4, 2), (2, 2), (2, 1), (1, 1), (0, 2), (0, 1)):
            layout = Layout(problem, slots, start_slots)
            if layout.fits:
                layout.fill(order)
                nothing: list[tuple[int, ...]] = [()] * len(problem.stages)
                # one slot stays for the head's tiles, which are known beforehand
                return Outcome(Stop.RULE, layout.schedule(nothing, reserve=max(slots - 1, 1)))
        raise AssertionError("one slot of each kind fits: smallest_capacity says so")
