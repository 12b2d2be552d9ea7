"""Slowdowns of copies and computation, and what a layer computes first."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Factors", "LeadTimes"]


class Factors(NamedTuple):
    """How much longer copies, and computation in prefill and in decode, take than alone; ``raw``:
    copies of experts as they are, where the others are compressed."""

    copy: float = 1.0
    prefill: float = 1.0
    decode: float = 1.0
    raw: float = 1.0

    def of(self, phase: str) -> float:
        """The factor of computation."""
        return self.prefill if phase == "prefill" else self.decode


class LeadTimes(NamedTuple):
    """What a layer computes before its demand is known: (kind, item, rows, duration_ns)."""

    steps: tuple[tuple[str, int, int, int], ...]

    @property
    def total_ns(self) -> int:
        """All of it."""
        return sum(step[3] for step in self.steps)

    def of_batches(self, count: int) -> list[int]:
        """Attention of each of so many batches, in ns; 0 of those that a pass does not have."""
        times = [0] * count
        for kind, batch, _, duration in self.steps:
            if kind == "attention":
                times[batch] += duration
        return times
