"""How long chunks take on the replay's channel (docs/runtime.md, "Credit")."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Credit", "Pace"]


class Credit(NamedTuple):
    """A channel that goes faster for a while after it has rested (a token bucket, in time).

    Attributes
    ----------
    depth_ns
        The most credit that there is; the channel begins with all of it, and gains what it rests.
    peak_ppm
        What a chunk takes at least, in millionths of what it takes without credit.
    """

    depth_ns: int
    peak_ppm: int

    def peak_ns(self, duration_ns: int) -> int:
        """The least that a chunk takes, rounded up."""
        return -(-duration_ns * self.peak_ppm // 1_000_000)


class Pace:
    """A channel's credit as it is spent and gained.

    With credit c the k-th chunk from now ends when k peak times have passed, and k lasting ones
    less c. Chunks that are asked for one by one, or some at a time, end at the same times.
    """

    def __init__(self, credit: Credit | None, now: int) -> None:
        self._credit = credit
        self._left_ns = 0 if credit is None else credit.depth_ns  # at ``_rests``
        self._rests = now  # since when the channel has copied nothing

    def begun(self, now: int, chunk_ns: int, limit: int) -> int:
        """How many of many chunks begin before ``limit``, which is later than ``now``."""
        if self._credit is None:
            return -(-(limit - now) // chunk_ns)
        # as many as have ended before then, and one
        within = limit - now - 1
        fast = within // self._credit.peak_ns(chunk_ns)
        return 1 + min(fast, (within + self._at_hand(now, self._credit)) // chunk_ns)

    def end(self, now: int, chunk_ns: int, chunks: int, last_ns: int = 0) -> int:
        """When so many chunks have ended, and a last one; their credit is spent."""
        spent = chunks * chunk_ns + last_ns
        if self._credit is None:
            return now + spent
        credit, peak_ns = self._at_hand(now, self._credit), self._credit.peak_ns
        took = max(chunks * peak_ns(chunk_ns) + peak_ns(last_ns), spent - credit)
        self._left_ns, self._rests = credit + took - spent, now + took
        return self._rests

    def _at_hand(self, now: int, credit: Credit) -> int:
        return min(credit.depth_ns, self._left_ns + now - self._rests)
