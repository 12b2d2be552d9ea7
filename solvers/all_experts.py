"""Each stage whole: what does not stay is copied before it is needed, used or not.

Stands for offloading as accelerate does it: stages from the front are resident as far as memory
goes, every other one is copied as a whole in each pass.
"""

from __future__ import annotations

from solvers.layout import START, Layout
from solvers.outcome import Outcome, Stop
from solvers.problem import Problem
from solvers.strategy import Strategy

__all__ = ["AllExperts"]


class AllExperts(Strategy):
    """See the module."""

    name = "all-experts"

    def sizes(self, problem: Problem) -> list[tuple[int, int]]:
        """Two stages' worth of slots where they fit, fewer where not."""
        sizes, slots = [], 2 * max(len(stage.items) for stage in problem.stages)
        while slots > 1:
            sizes.append((slots, 2))
            slots = slots * 3 // 4
        return [*sizes, (1, 2), (1, 1), (0, 2), (0, 1)]

    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """Stages from the front stay."""
        layout.fill(
            (index, item)
            for index, stage in enumerate(problem.stages)
            for item in (START, *range(len(stage.items)))
        )
        prefetch = [range(len(stage.items)) for stage in problem.stages]
        return Outcome(Stop.RULE, layout.schedule(prefetch, reserve=0))
