"""The most demanded items stay; nothing is copied before it is known to be needed."""

from __future__ import annotations

from solvers.layout import Layout, smallest_capacity, whole_in_memory
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress
from solvers.sets import unit_order

__all__ = ["Frequency"]


class Frequency:
    """See the module."""

    name = "frequency"
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Units by expected copy time saved for each byte they hold."""
        smallest = smallest_capacity(problem.stages, problem.slot_bytes)
        if problem.capacity_bytes < smallest:
            return Outcome(Stop.INFEASIBLE, None, None, smallest)
        whole = whole_in_memory(problem)
        if whole is not None:
            return Outcome(Stop.RULE, whole)
        order = unit_order(problem, None)
        for slots, start_slots in ((4, 0), (4, 2), (2, 2), (2, 1), (1, 1), (0, 2), (0, 1)):
            layout = Layout(problem, slots, start_slots)
            if layout.fits:
                layout.fill(order)
                nothing: list[tuple[int, ...]] = [()] * len(problem.stages)
                return Outcome(Stop.RULE, layout.schedule(nothing, reserve=max(slots - 1, 1)))
        raise AssertionError("one slot of each kind fits: smallest_capacity says so")
