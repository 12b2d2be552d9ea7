"""The replay's times of many sets of residents at once, where nothing but start units is copied
ahead.

A chunk of a start unit that has begun delays what is demanded, and by how much depends on which
stages stream theirs: so much that a fluid clock picks the wrong ones where a chunk takes as long as
a stage computes. This clock follows the rules of docs/runtime.md as the replay does, chunk by chunk
of start units, for all sets together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.layout import START
from solvers.moves import Move, Sets
from solvers.problem import Problem

__all__ = ["ChunkClock"]

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FAR = 1 << 40
"""Stages on, where no start unit streams."""


class ChunkClock:
    """Measures sets of residents.

    Parameters
    ----------
    problem
        Items of sequential stages are always copied ahead: none of them may stream.
    slots, start_slots, hold
        As in a schedule; items are copied on demand only.
    """

    def __init__(
        self, problem: Problem, slots: int, start_slots: int, hold: int | None = None
    ) -> None:
        self._problem, self._hold = problem, hold
        # of each set: the last stage that start units may be copied of for now; None: any
        self._farthest: Int64 | None = None
        self._slots, self._start_slots = slots, start_slots
        # of each stage's start unit, whole and short ones: chunks, how long one takes, how much
        # longer the last one
        kinds = problem.start_kinds
        starts = [[s.start_in(short) for s in problem.stages] for short in kinds]
        self._units: Int64 = np.array(
            [
                [(u.chunks, u.chunk_ns, u.last_ns - u.chunk_ns) if u else (0, 0, 0) for u in row]
                for row in starts
            ],
            dtype=np.int64,
        ).reshape(len(kinds), len(problem.stages), 3)
        # the same of a run's stages, and nothing beyond its end
        self._chunks = self._chunk = self._more = np.zeros(1, dtype=np.int64)
        self._here = self._end = 0
        # of each set: when the channel chooses next, free start slots, chunks left of the unit
        # that it copies, the unit's stage (counted through the run, in its pass, and counted again,
        # but not beyond the run's end), when the last one came
        self._now: Int64 = np.zeros(0, dtype=np.int64)
        self._free = self._left = self._cursor = self._stage = self._at = self._came = self._now
        self._columns = self._now
        # [stages, sets]: how many stages on the next start unit is that streams
        self._beyond: Int64 = np.zeros((0, 0), dtype=np.int64)

    def measure(self, base: Sets, moves: list[Move]) -> Int64:
        """The objective (ns) of ``base`` after each of the moves."""
        problem, count = self._problem, len(moves)
        gone = np.repeat(~base.items[:, :, None], count, axis=2)
        streams = np.repeat(~base.starts[:, None], count, axis=1)
        for at, move in enumerate(moves):
            for units, left in ((move.leave, True), (move.come, False)):
                for stage, item in units:
                    if item == START:
                        streams[stage, at] = left
                    else:
                        gone[stage, item, at] = left
        streams &= (self._units[0, :, 0] > 0)[:, None]
        total: Int64 = np.tensordot(problem.correction, gone.astype(np.int64), axes=2)
        for run in problem.scenarios.runs():
            total = total + self._follow(run, gone, streams)
        return total

    def _follow(self, run: range, gone: Bools, streams: Bools) -> Int64:
        """Weighted time of the passes of a run."""
        scenarios, stages = self._problem.scenarios, len(self._problem.stages)
        copy, order = self._problem.copy_ns.tolist(), scenarios.order
        longer = scenarios.start_lead_ns
        # items that some of the sets, and that all of them copy
        some = np.any(gone, axis=2)
        every = np.all(gone, axis=2)
        demands = np.any(gone, axis=1)  # [stages, sets]
        count = streams.shape[1]
        self._begin(streams, run)
        now = np.zeros(count, dtype=np.int64)
        total = np.zeros(count, dtype=np.int64)
        for index in run:
            began = now
            for stage in range(stages):
                now = now + int(scenarios.prologue_ns[index, stage])
                self._advance(now)
                now = self._arrived(now, streams[stage])
                if self._hold is not None:
                    self._advance(now)
                    farthest = self._here + self._hold
                    self._farthest = np.where(demands[stage], farthest, self._end)
                now = now + int(scenarios.lead_ns[index, stage])
                if longer is not None:
                    now = now + int(longer[index, stage]) * streams[stage]
                self._advance(now)
                self._farthest = None
                self._free = self._free + streams[stage]
                self._now = np.maximum(self._now, now)
                rows: list[tuple[Bools | None, Int64 | int, int]] = []
                for item, work in order[index][stage]:
                    if not some[stage, item]:
                        now = now + work
                    elif every[stage, item]:
                        rows.append((None, copy[stage][item], work))
                    else:
                        own = gone[stage, item]
                        rows.append((own, copy[stage][item] * own, work))
                now = self._work(now, rows)
                now = now + int(scenarios.epilogue_ns[index, stage])
                self._advance(now)
                self._here += 1
                self._now = np.maximum(self._now, now)
            total += int(scenarios.weight[index]) * (now - began)
        return total

    def _begin(self, streams: Bools, run: range) -> None:
        """The channel at the start of a run."""
        stages, count = streams.shape
        self._here, self._end = 0, len(run) * stages
        short = self._problem.scenarios.shortened[run.start : run.stop]
        units = self._units[np.array(short, dtype=np.int64)].reshape(self._end, 3)
        self._chunks, self._chunk, self._more = np.concatenate([units, [(0, 0, 0)]]).T
        self._now = np.zeros(count, dtype=np.int64)
        self._free = np.full(count, self._start_slots, dtype=np.int64)
        self._left = np.zeros(count, dtype=np.int64)
        self._columns = np.arange(count)
        # how many stages on the next start unit is that streams, from each stage; far if none
        after = np.full((2 * stages + 1, count), _FAR, dtype=np.int64)
        for stage in reversed(range(2 * stages)):
            after[stage] = np.where(streams[stage % stages], 0, after[stage + 1] + 1)
        self._beyond = after[1 : stages + 1] + 1
        self._cursor = after[0]
        self._stage = np.where(after[0] < stages, after[0], 0)
        self._at = np.minimum(self._cursor, self._end)
        self._came = np.zeros(count, dtype=np.int64)

    def _advance(self, limit: Int64) -> None:
        """Begin all chunks of start units that may begin before ``limit``."""
        self._step_while(self._now < limit, limit)

    def _step_while(self, may: Bools, limit: Int64 | None) -> None:
        stages, count = len(self._beyond), len(self._columns)
        last = min(self._here + stages, self._end)
        while may.any():
            if self._farthest is not None:
                may = may & (self._cursor <= self._farthest)
            fresh = self._left == 0
            may = may & (~fresh | ((self._free > 0) & (self._cursor < last)))
            begins = may & fresh
            self._free = self._free - begins
            self._left = np.where(begins, self._chunks[self._at], self._left) - may
            ends = may & (self._left == 0)
            self._now = self._now + may * self._chunk[self._at]
            if ends.any():
                self._now = self._now + ends * self._more[self._at]
                self._came = np.where(ends, self._now, self._came)
                beyond = ends * self._beyond.take(self._stage * count + self._columns)
                self._cursor, at = self._cursor + beyond, self._stage + beyond
                self._stage = np.where(at >= stages, at - stages, at)
                self._at = np.minimum(self._cursor, self._end)
            may = may & (self._cursor <= self._here if limit is None else self._now < limit)

    def _arrived(self, now: Int64, streams: Bools) -> Int64:
        """When the start unit of the stage is there, ``now`` at the earliest."""
        missing = streams & (self._cursor <= self._here)
        if missing.any():
            self._step_while(missing, None)
        # the last one that came may be that of a later stage
        beyond = self._beyond[self._here % len(self._beyond)]
        own = streams & (self._cursor == self._here + beyond)
        return np.where(own, np.maximum(now, self._came), now)

    def _work(self, now: Int64, rows: list[tuple[Bools | None, Int64 | int, int]]) -> Int64:
        """From when the demand is known to the last work's end, in the order of the queue.

        ``rows`` are which sets copy an item (None: all do), how long that takes each of them, and
        the work. The channel waits for a slot while as many as there are hold items whose work has
        not ended, and goes on with start units meanwhile.
        """
        for copied, _, work in rows:
            if copied is not None:
                now = now + work * ~copied
        # when the work on the last items of each queue ended, the last of all at the end
        ended = [np.zeros(len(now), dtype=np.int64)] * (
            self._slots if len(rows) > self._slots else 0
        )
        for copied, copy, work in rows:
            if ended:
                free = ended[0] if copied is None else ended[0] * copied
                self._advance(free)
                self._now = np.maximum(self._now, free)
            self._now = self._now + copy
            done = np.maximum(now, self._now) + work
            now = done if copied is None else np.where(copied, done, now)
            if ended:
                shifted = [*ended[1:], now]
                if copied is not None:
                    pairs = zip(ended, shifted, strict=True)
                    shifted = [np.where(copied, later, one) for one, later in pairs]
                ended = shifted
        return now
