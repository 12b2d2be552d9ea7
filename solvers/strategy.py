"""What the strategies share: rules without a search, tried with fewer slots until memory holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from solvers.layout import Layout, infeasible, whole_in_memory
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress

__all__ = ["FEW_SLOTS", "Strategy", "on_demand_only"]

FEW_SLOTS = ((4, 0), (4, 2), (2, 2), (2, 1), (1, 1), (0, 2), (0, 1))
"""Slots and start slots of a strategy that copies on demand, the most wanted first."""


class Strategy(ABC):
    """A rule: ``sizes`` says which slots to try, ``arrange`` what to do with the first that fit."""

    name: str
    features = frozenset({Feature.RUNNABLE})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """One rule, no search; everything stays where it fits."""
        refused = infeasible(problem)
        if refused is not None:
            return refused
        whole = whole_in_memory(problem)
        if whole is not None:
            return Outcome(Stop.RULE, whole)
        for slots, start_slots in self.sizes(problem):
            layout = Layout(problem, slots, start_slots)
            if layout.fits:
                return self.arrange(problem, layout)
        raise AssertionError("one slot of each kind fits: smallest_capacity says so")

    def sizes(self, problem: Problem) -> Iterable[tuple[int, int]]:
        """Slots and start slots to try; the last ones are those that always fit."""
        return FEW_SLOTS

    @abstractmethod
    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """The schedule, from a layout whose slots fit."""


def on_demand_only(layout: Layout, order: Iterable[tuple[int, int]]) -> Outcome:
    """Residents in this order; nothing is copied ahead."""
    layout.fill(order)
    nothing: list[tuple[int, ...]] = [()] * len(layout.problem.stages)
    # one slot stays for the head's tiles, which are known beforehand
    return Outcome(Stop.RULE, layout.schedule(nothing, reserve=max(layout.slots - 1, 1)))
