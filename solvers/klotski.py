"""Klotski's pipeline (arXiv 2502.06888, section 6): each stage's start unit and its K most demanded
items are copied ahead, the others on demand; no item stays.

Its inequalities choose the number of batches, which is the caller's (``planner.klotski``). The
paper leaves memory out; here slots are cut to what fits.
"""

from __future__ import annotations

from solvers.layout import START, Layout, smallest_capacity, whole_in_memory
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress
from solvers.sets import demand_share

__all__ = ["Klotski"]


class Klotski:
    """See the module."""

    name = "klotski"
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND})

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
        share = demand_share(problem)
        hot = [
            sorted(range(len(stage.items)), key=lambda item: (-row[item], item))[: problem.fan_out]
            for stage, row in zip(problem.stages, share.tolist(), strict=True)
        ]
        # the paper holds a stage's items while it works on them, and the next stage's hot ones
        width = max(len(stage.items) for stage in problem.stages)
        wanted = width + problem.fan_out
        sizes = [(slots, 2) for slots in range(wanted, 0, -1)]
        for slots, start_slots in [*sizes, (1, 1), (0, 2), (0, 1)]:
            layout = Layout(problem, slots, start_slots)
            if layout.fits:
                layout.fill((index, START) for index in range(len(problem.stages)))
                notes = () if slots == wanted else (f"slots cut from {wanted} to {slots} to fit",)
                reserve = max(slots - problem.fan_out, 1)
                return Outcome(Stop.RULE, layout.schedule(hot, reserve), notes=notes)
        raise AssertionError("one slot of each kind fits: smallest_capacity says so")
