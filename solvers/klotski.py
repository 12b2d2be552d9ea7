"""Klotski's pipeline (arXiv 2502.06888, section 6): each stage's start unit and its K most demanded
items are copied ahead, the others on demand; no item stays.

Its inequalities choose the number of batches, which is the caller's (``planner.klotski``). The
paper leaves memory out; here slots are cut to what fits.
"""

from __future__ import annotations

from solvers.layout import START, Layout
from solvers.outcome import Outcome, Stop
from solvers.problem import Problem
from solvers.registry import Feature
from solvers.sets import demand_share
from solvers.strategy import Strategy

__all__ = ["Klotski"]


class Klotski(Strategy):
    """See the module."""

    name = "klotski"
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND})

    def sizes(self, problem: Problem) -> list[tuple[int, int]]:
        """As many slots as the paper holds, fewer where they do not fit."""
        return [*((slots, 2) for slots in range(_wanted(problem), 0, -1)), (1, 1), (0, 2), (0, 1)]

    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """The K most demanded items of each stage are copied ahead."""
        share = demand_share(problem)
        hot = [
            sorted(range(len(stage.items)), key=lambda item: (-row[item], item))[: problem.fan_out]
            for stage, row in zip(problem.stages, share.tolist(), strict=True)
        ]
        layout.fill((index, START) for index in range(len(problem.stages)))
        wanted, slots = _wanted(problem), layout.slots
        notes = () if slots == wanted else (f"slots cut from {wanted} to {slots} to fit",)
        reserve = max(slots - problem.fan_out, 1)
        return Outcome(Stop.RULE, layout.schedule(hot, reserve), notes=notes)


def _wanted(problem: Problem) -> int:
    """The paper holds a stage's items while it works on them, and the next stage's hot ones."""
    return max(len(stage.items) for stage in problem.stages) + problem.fan_out
