"""Fiddler (arXiv 2402.07033, section 4): each demanded item is copied, or worked on where it lies,
whichever is quicker; the most demanded items stay.

Which is quicker depends on its rows alone: the host takes what has few (``solvers.host``), and
works beside the device. On a device that is the CPU itself there is no second place, and without
the host's costs no choice: there it would be a caching rule under another name, and is refused.
"""

from __future__ import annotations

from solvers.errors import UnsupportedError
from solvers.host import host_share_of
from solvers.layout import Layout
from solvers.outcome import Outcome, Schedule
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress
from solvers.sets import unit_order
from solvers.strategy import Strategy, on_demand_only

__all__ = ["REFUSAL", "Fiddler"]

REFUSAL = (
    "solver 'fiddler' copies each expert or computes it on the CPU, whichever is quicker: that "
    "needs costs of a CPU beside the device, and there are none"
)


class Fiddler(Strategy):
    """See the module."""

    name = "fiddler"
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND, Feature.HOST_WORK})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """As all strategies.

        Raises
        ------
        UnsupportedError
            If there is no host.
        """
        if problem.scenarios.host_work_ns is None:
            raise UnsupportedError(REFUSAL)
        return super().solve(problem, limits, hint, progress)

    def arrange(self, problem: Problem, layout: Layout) -> Outcome:
        """Units by expected copy time saved for each byte they hold; no copy ahead."""
        outcome = on_demand_only(layout, unit_order(problem, None))
        share = host_share_of(problem)
        if outcome.schedule is None or share is None:
            said = "no demanded expert is quicker on the CPU than copied: all are copied"
            return Outcome(outcome.stop, outcome.schedule, notes=(said,))
        return Outcome(outcome.stop, outcome.schedule.replace(host=share))
