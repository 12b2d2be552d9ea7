"""Nothing is copied before it is known to be needed.

Start units are resident as far as memory goes, then items in index order, without a look at what
is demanded; everything else is copied when the lead has ended.
"""

from __future__ import annotations

from solvers.layout import START, Layout
from solvers.outcome import Outcome
from solvers.problem import Problem
from solvers.strategy import Strategy, on_demand_only

__all__ = ["OnDemand"]


class OnDemand(Strategy):
    """See the module."""

    name = "on-demand"

    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """Items go round the stages, so that each keeps as many as the others."""
        width = max(len(stage.items) for stage in problem.stages)
        order = [(index, START) for index in range(len(problem.stages))]
        order += [
            (index, item)
            for item in range(width)
            for index, stage in enumerate(problem.stages)
            if item < len(stage.items)
        ]
        return on_demand_only(layout, order)
