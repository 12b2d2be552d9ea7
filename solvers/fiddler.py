"""Fiddler (arXiv 2402.07033): each demanded item is copied, or worked on where it lies, whichever
is quicker.

The second way needs what a ``Problem`` does not have yet: a channel that computes beside the
device, and for each demanded item the time that this takes (``host_work_ns`` next to
``Scenarios.work_ns``), with a replay that follows it. On a device that is the CPU itself there is
no second place either. So it is refused by name: without that choice it would be ``on-demand``
under another name.
"""

from __future__ import annotations

from solvers.errors import UnsupportedError
from solvers.outcome import Outcome, Schedule
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress

__all__ = ["REFUSAL", "Fiddler"]

REFUSAL = (
    "solver 'fiddler' copies each expert or computes it on the CPU, whichever is quicker: that "
    "needs costs of a CPU beside the device, and this problem has none (the device is the CPU, or "
    "its host was not profiled); use 'on-demand', which only copies"
)


class Fiddler:
    """See the module."""

    name = "fiddler"
    features = frozenset({Feature.HOST_WORK})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Refused.

        Raises
        ------
        UnsupportedError
            Saying what is missing.
        """
        raise UnsupportedError(REFUSAL)
