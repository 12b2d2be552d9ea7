"""A plan's time: what a search and comparisons may take, where judging and checking is to fit, too.

What comes after a search is replays, mostly. What one takes of a processor is known from the first
look, and how busy the machine is from how long that look took.
"""

from __future__ import annotations

import time

from planner.candidate import Candidate

__all__ = ["Budget"]

_JUDGED = 10
"""Replays of the judging passes that judging and checking a plan take, a bound among them."""
_SMALL_SECONDS = 2.0
"""Where all that comes after the search takes no more of a processor, it is done without a look at
the clock, so that small plans are the same on a busy machine."""
_MOST_BUSY = 8.0


class Budget:
    """The time of one plan.

    Parameters
    ----------
    seconds
        For everything from now on.
    whole
        Whether what comes after the search counts; otherwise it takes what it takes.

    Attributes
    ----------
    deadline
        When the search is to end, by ``time.monotonic``.
    end
        When comparisons are to end, so that judging and checking fit.
    cut
        What there was no time for, in words.
    """

    def __init__(self, seconds: float, *, whole: bool) -> None:
        self._began = time.monotonic(), time.thread_time()
        self.deadline = self.end = self._began[0] + seconds
        self.cut: list[str] = []
        self._whole = whole
        self._busy = 1.0
        self._held: Candidate | None = None

    def hold(self, candidate: Candidate, baselines: int, tried: int) -> None:
        """Hold back time for judging, and at most half of what is left then for baselines.

        Parameters
        ----------
        candidate
            One that was looked at.
        baselines, tried
            How many there are, and on how many n and b each is tried.
        """
        fit, choose, judge = (candidate.seconds(which) for which in ("fit", "choose", "judge"))
        judging, comparing = _JUDGED * judge, baselines * (tried * fit + choose + judge)
        if not self._whole or judging + comparing <= _SMALL_SECONDS:
            return
        wall, own = time.monotonic() - self._began[0], time.thread_time() - self._began[1]
        self._busy = min(max(wall / own, 1.0), _MOST_BUSY) if own > 0 else 1.0
        self._held = candidate
        self.end -= self._busy * judging
        left = max(self.end - time.monotonic(), 0.0)
        self.deadline = self.end - min(self._busy * comparing, left / 2)

    def tries(self, wanted: int, baselines: int, least: int = 0) -> int:
        """On how many n and b the next of so many baselines may be tried, ``least`` in any case; 0:
        no time for it."""
        if self._held is None:
            return wanted
        fit, choose, judge = (self._held.seconds(which) for which in ("fit", "choose", "judge"))
        left = (self.end - time.monotonic()) / self._busy
        if left < fit + choose + judge and not least:
            return 0
        # it is judged later
        self.end -= self._busy * judge
        return min(max(int((left / baselines - choose - judge) / max(fit, 1e-9)), 1), wanted)

    def compared(self) -> None:
        """What comparisons have left is the search's."""
        self.deadline = self.end
