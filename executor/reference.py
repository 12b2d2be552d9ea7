"""A reference operation that watches the machine's drift: beside each run and through a profile."""

from __future__ import annotations

import time

import torch

from executor.threads import ComputeThreads
from planner.documents import ThreadUse

__all__ = ["Reference"]


class Reference:
    """A fixed operation, repeated: its spread is the machine's drift.

    A product of matrices that fit the processor's caches: cores, clock and neighbours show,
    nothing else does.

    Parameters
    ----------
    moments
        Taken at once, one right after the other. One is as long as a neighbour's time slice and
        says little of the seconds around it.
    threads
        As large operations have them beside it.

    Attributes
    ----------
    moments
        As given.
    samples
        Durations in ns, in the order in which they were taken.
    at_once
        Samples of one moment.
    threads
        As given.
    """

    at_once = 3
    _SIZE = 256

    def __init__(self, moments: int = 1, threads: ThreadUse | None = None) -> None:
        self.moments = moments
        self.threads = ComputeThreads(threads)
        generator = torch.Generator().manual_seed(0)
        shape = (self._SIZE, self._SIZE)
        self._left = torch.randn(shape, generator=generator)
        self._right = torch.randn(shape, generator=generator)
        self._out = torch.empty(shape)
        self.samples: list[int] = []

    def take(self) -> None:
        """Add samples: each of a few products in a row, after one that wakes the threads."""
        with self.threads:
            self.threads.all()
            for turn in range(self.moments * self.at_once + 1):
                begin = time.perf_counter_ns()
                for _ in range(8):
                    torch.mm(self._left, self._right, out=self._out)
                if turn:
                    self.samples.append(time.perf_counter_ns() - begin)
