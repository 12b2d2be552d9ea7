"""FlexGen's placement (arXiv 2303.06865): one fraction of every layer's weights stays.

With one copy channel and one memory its linear program has one variable, the fraction that is
resident; copies only grow with what is not, so its optimum is the largest fraction that fits next
to two stages' buffers. Fractions are uniform and know nothing of demand: items in index order, and
every other one is copied ahead, used or not.
"""

from __future__ import annotations

from solvers.layout import START, Layout
from solvers.outcome import Outcome, Stop
from solvers.problem import Problem
from solvers.strategy import Strategy

__all__ = ["FlexGen"]


class FlexGen(Strategy):
    """See the module."""

    name = "flexgen"

    def sizes(self, problem: Problem) -> list[tuple[int, int]]:
        """Two stages' buffers where they fit, fewer where not."""
        width = max(len(stage.items) for stage in problem.stages)
        wanted = [2 * width, width, max(width // 2, 1)]
        sizes = [*((slots, 0) for slots in wanted), *((slots, 2) for slots in wanted)]
        return [*sizes, (2, 2), (2, 1), (1, 1), (0, 2), (0, 1)]

    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """The largest uniform fraction, in whole items."""
        layout.fill((index, START) for index in range(len(problem.stages)))
        self._fill_evenly(problem, layout)
        prefetch = [range(len(stage.items)) for stage in problem.stages]
        return Outcome(Stop.RULE, layout.schedule(prefetch, reserve=0))

    @staticmethod
    def _fill_evenly(problem: Problem, layout: Layout) -> None:
        """Raise the same share of items in all stages until one does not fit."""
        width = max(len(stage.items) for stage in problem.stages)
        for step in range(width):
            for index, stage in enumerate(problem.stages):
                # the first item whose share of its stage this step reaches
                first, end = (at * len(stage.items) // width for at in (step, step + 1))
                for item in range(first, end):
                    if not layout.add(index, item):
                        return
