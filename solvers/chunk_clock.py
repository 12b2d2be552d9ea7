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


class ChunkClock:
    """Measures sets of residents.

    Parameters
    ----------
    problem
        Items of sequential stages are always copied ahead: none of them may stream.
    slots, start_slots
        As in a schedule; items are copied on demand only.
    """

    def __init__(self, problem: Problem, slots: int, start_slots: int) -> None:
        self._problem = problem
        self._slots, self._start_slots = slots, start_slots
        starts = [stage.start for stage in problem.stages]
        self._chunks = np.array([one.chunks if one else 0 for one in starts], dtype=np.int64)
        self._chunk = np.array([one.chunk_ns if one else 0 for one in starts], dtype=np.int64)
        self._last = np.array([one.last_ns if one else 0 for one in starts], dtype=np.int64)
        self._here = self._end = 0
        # of each set: when the channel chooses next, free start slots, chunks left of the unit
        # that it copies, the unit's stage (counted through the run), when the last one came
        self._now: Int64 = np.zeros(0, dtype=np.int64)
        self._free = self._left = self._cursor = self._came = self._columns = self._now
        self._after: Int64 = np.zeros((0, 0), dtype=np.int64)

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
        streams &= (self._chunks > 0)[:, None]
        total: Int64 = np.tensordot(problem.correction, gone.astype(np.int64), axes=2)
        for run in problem.scenarios.runs():
            total = total + self._follow(run, gone, streams)
        return total

    def _follow(self, run: range, gone: Bools, streams: Bools) -> Int64:
        """Weighted time of the passes of a run."""
        scenarios, stages = self._problem.scenarios, len(self._problem.stages)
        copy, order = self._problem.copy_ns.tolist(), scenarios.order
        longer = scenarios.start_lead_ns
        count = streams.shape[1]
        self._begin(streams, len(run) * stages)
        now = np.zeros(count, dtype=np.int64)
        total = np.zeros(count, dtype=np.int64)
        for index in run:
            began = now
            for stage in range(stages):
                now = now + int(scenarios.prologue_ns[index, stage])
                self._advance(now)
                now = self._arrived(now, streams[stage])
                now = now + int(scenarios.lead_ns[index, stage])
                if longer is not None:
                    now = now + int(longer[index, stage]) * streams[stage]
                self._advance(now)
                self._free = self._free + streams[stage]
                self._now = np.maximum(self._now, now)
                rows = [
                    (gone[stage, item], copy[stage][item], work)
                    for item, work in order[index][stage]
                ]
                now = self._work(now, rows)
                now = now + int(scenarios.epilogue_ns[index, stage])
                self._advance(now)
                self._here += 1
                self._now = np.maximum(self._now, now)
            total += int(scenarios.weight[index]) * (now - began)
        return total

    def _begin(self, streams: Bools, end: int) -> None:
        """The channel at the start of a run of so many stages."""
        stages, count = streams.shape
        self._here, self._end = 0, end
        self._now = np.zeros(count, dtype=np.int64)
        self._free = np.full(count, self._start_slots, dtype=np.int64)
        self._left = np.zeros(count, dtype=np.int64)
        self._columns = np.arange(count)
        # how many stages on the next start unit is that streams, from each stage; far if none
        after = np.full((2 * stages + 1, count), 2 * stages + 2, dtype=np.int64)
        for stage in reversed(range(2 * stages)):
            after[stage] = np.where(streams[stage % stages], 0, after[stage + 1] + 1)
        self._after = after[:stages]
        self._cursor = self._after[0].copy()
        self._came = np.zeros(count, dtype=np.int64)

    def _advance(self, limit: Int64) -> None:
        """Begin all chunks of start units that may begin before ``limit``."""
        self._step_while(self._now < limit, limit)

    def _step_while(self, may: Bools, limit: Int64 | None) -> None:
        last = min(self._here + len(self._chunks), self._end)
        while True:
            fresh = self._left == 0
            may = may & (~fresh | ((self._free > 0) & (self._cursor < last)))
            if not may.any():
                return
            stage = self._cursor % len(self._chunks)
            begins = may & fresh
            self._free = self._free - begins
            self._left = np.where(begins, self._chunks[stage], self._left) - may
            ends = may & (self._left == 0)
            took = np.where(ends, self._last[stage], self._chunk[stage])
            self._now = self._now + took * may
            if ends.any():
                self._came = np.where(ends, self._now, self._came)
                beyond = self._after[(stage + 1) % len(self._chunks), self._columns] + 1
                self._cursor = np.where(ends, self._cursor + beyond, self._cursor)
            may = may & (self._cursor <= self._here if limit is None else self._now < limit)

    def _arrived(self, now: Int64, streams: Bools) -> Int64:
        """When the start unit of the stage is there, ``now`` at the earliest."""
        missing = streams & (self._cursor <= self._here)
        if missing.any():
            self._step_while(missing, None)
        # the last one that came may be that of a later stage
        beyond = self._after[(self._here + 1) % len(self._chunks)] + 1
        own = streams & (self._cursor == self._here + beyond)
        return np.where(own, np.maximum(now, self._came), now)

    def _work(self, now: Int64, rows: list[tuple[Bools, int, int]]) -> Int64:
        """From when the demand is known to the last work's end; ``rows`` are whether an item is
        copied, how long that and the work take, in the order of the queue."""
        for copied, _, work in rows:
            now = now + work * ~copied
        scarce = len(rows) > self._slots
        queued = np.zeros(len(now), dtype=np.int64)
        # when the work on the n-th of each queue ended
        ended = np.zeros((len(rows), len(now)) if scarce else (0, 0), dtype=np.int64)
        for copied, copy, work in rows:
            if scarce:
                self._wait_for_slot(copied, queued, ended)
            self._now = self._now + copy * copied
            now = np.where(copied, np.maximum(now, self._now) + work, now)
            if scarce:
                ended[queued[copied], self._columns[copied]] = now[copied]
                queued = queued + copied
        return now

    def _wait_for_slot(self, copied: Bools, queued: Int64, ended: Int64) -> None:
        """Where all slots are taken, the channel goes on with start units meanwhile."""
        waits = copied & (queued >= self._slots)
        if not waits.any():
            return
        free = ended[np.maximum(queued - self._slots, 0), self._columns]
        limit = np.where(waits, free, self._now)
        self._advance(limit)
        self._now = np.maximum(self._now, limit)
