"""Torch's threads, operation by operation.

Two threads that share a tenth of a millisecond of work wait for each other longer than they save,
most of all where a reader has taken one's core. How many serve which operation is measured
(``profiler.threads``) and stands in the policy.
"""

from __future__ import annotations

import torch

from executor.allocator import usable_cores
from planner.documents.threads import Threaded, ThreadUse

__all__ = ["ComputeThreads"]


class ComputeThreads:
    """Sets the threads of each operation of a pass. Use as a context manager around a pass: what
    the process had before, it has again behind it.

    Torch keeps the number by thread of the process, so it is set anew each time, whoever computes;
    that takes 0.2 microseconds.

    Parameters
    ----------
    use
        As planned; None: as many as the process has, for all alike. No more than there are cores.
    """

    def __init__(self, use: ThreadUse | None) -> None:
        self._use = use
        self._most = usable_cores()
        self._before = 1

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()

    def __exit__(self, *_: object) -> None:
        if self._use is not None:
            torch.set_num_threads(self._before)

    def __call__(self, kind: Threaded, rows: int) -> None:
        """An operation of ``rows`` comes next."""
        if self._use is not None:
            torch.set_num_threads(min(self._use.of(kind, rows), self._most))

    def all(self) -> None:
        """Something comes next that is as large as any."""
        if self._use is not None:
            torch.set_num_threads(min(self._use.count, self._most))
