"""Embedding rows, read from the disk as a pass needs them, some of them kept.

A pass cannot begin without its rows, and each read of one waits behind whatever the copy channel
has asked of the disk. So rows that lie close together are one read, and several reads are in flight
at once: they wait together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from executor.arena import Arena
from executor.direct import STALL_SECONDS, Pacer, ReadBuffer, UnitReader
from executor.layout import EMBEDDING
from executor.source import WeightSource
from planner.memory import (
    ALIGNMENT_BYTES,
    EMBEDDING_CACHE_BYTES,
    EMBEDDING_READS,
    EXPERT_TILE_ROWS,
    aligned,
    embedding_read_bytes,
)
from solvers.errors import RunError

__all__ = ["Embedding"]

_NONE = -1

_GAP_BYTES = 16 << 10
"""So much between two rows is read along with them: a read of its own would take longer."""


class _Span(NamedTuple):
    """Rows [start, stop) of the matrix, read at once, and what is wanted of them.

    ``rows`` count from ``start``; they go to ``places`` of the table.
    """

    start: int
    stop: int
    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


class _Lane(NamedTuple):
    """One of the reads in flight: a reader for its thread and memory for one span."""

    reader: UnitReader
    memory: memoryview


class Embedding:
    """Rows of the embedding matrix.

    All rows are kept where they fit ``EMBEDDING_CACHE_BYTES``. Otherwise rows are kept until their
    place is needed, the one read first goes first.

    Parameters
    ----------
    arena
        Where the kept rows lie.
    source, pacer
        Where rows are read from.

    Attributes
    ----------
    stuck
        Whether a read has not come back: what it writes to must not be used again.
    """

    def __init__(
        self, arena: Arena, source: WeightSource, pacer: Pacer, dtype: torch.dtype
    ) -> None:
        model = source.model
        self._source = source
        self._pacer = pacer
        self._row_bytes = model.hidden_size * dtype.itemsize
        kept = min(model.embedding_bytes, EMBEDDING_CACHE_BYTES) // self._row_bytes
        self.rows = max(min(kept, model.vocab_size), 1)
        size = self.rows * self._row_bytes
        offset = arena.take("embedding", "rows", size)
        self._memory = arena.memory(offset, aligned(size))
        self._table = arena.tensor(offset, (self.rows, model.hidden_size), dtype)
        self._bytes = np.frombuffer(self._memory[:size], np.uint8).reshape(self.rows, -1)
        # token -> place and place -> token
        self._place = np.full(model.vocab_size, _NONE, dtype=np.int64)
        self._token = np.full(self.rows, _NONE, dtype=np.int64)
        self._next = 0
        self.stuck = False
        self._buffer = ReadBuffer(embedding_read_bytes(model))
        size = self._buffer.size_bytes // EMBEDDING_READS
        self._lanes = [
            # rows are paced together: one by one, each would wait behind a whole chunk
            _Lane(source.reader(self._buffer, Pacer(None)), self._buffer.memory[at : at + size])
            for at in range(0, EMBEDDING_READS * size, size)
        ]
        self._most_rows = (size - ALIGNMENT_BYTES) // self._row_bytes
        self._threads = ThreadPoolExecutor(EMBEDDING_READS, thread_name_prefix="moeplan-rows")

    def load_all(self) -> None:
        """Read the whole matrix now, where all of it is kept."""
        if self.rows < len(self._place):
            return
        pieces = self._source.embedding_rows(0, self.rows)
        size = self.rows * self._row_bytes
        self._lanes[0].reader.read(pieces, self._memory, 0, size)
        self._source.check_rows(EMBEDDING, 0, self._memory[:size])
        self._place[:] = np.arange(self.rows)
        self._token[:] = self._place

    def gather(self, tokens: npt.NDArray[np.int64], out: torch.Tensor) -> None:
        """Rows of ``tokens`` into ``out`` [tokens, hidden]."""
        started, before = time.perf_counter_ns(), self.bytes_read
        rows = out if out.is_cpu else torch.empty(out.shape, dtype=out.dtype)
        self._gather(tokens, rows)
        if rows is not out:
            out.copy_(rows)
        self._pacer.wait(started, self.bytes_read - before)

    def missing(self, tokens: Sequence[int]) -> bool:
        """Whether any of ``tokens`` must be read."""
        return bool((self._place[list(tokens)] == _NONE).any())

    def forget(self) -> None:
        """Keep no rows, as at the start of a run; for measuring."""
        if self.rows < len(self._place):
            self._place[:] = self._token[:] = _NONE

    def keep(self, tokens: npt.NDArray[np.int64]) -> None:
        """Have rows of ``tokens`` at hand, as many as are kept; for measuring."""
        self._fetch(np.unique(tokens)[-self.rows :])

    def _gather(self, tokens: npt.NDArray[np.int64], out: torch.Tensor) -> None:
        distinct = np.unique(tokens)
        for first in range(0, len(distinct), self.rows):
            some = distinct[first : first + self.rows]
            self._fetch(some)
            if len(distinct) <= self.rows:
                torch.index_select(self._table, 0, torch.from_numpy(self._place[tokens]), out=out)
                return
            here = np.flatnonzero((tokens >= some[0]) & (tokens <= some[-1]))
            for start in range(0, len(here), EXPERT_TILE_ROWS):
                part = here[start : start + EXPERT_TILE_ROWS]
                rows = self._table.index_select(0, torch.from_numpy(self._place[tokens[part]]))
                out.index_copy_(0, torch.from_numpy(part), rows)

    def _fetch(self, tokens: npt.NDArray[np.int64]) -> None:
        """Have all of ``tokens`` (ascending, no more than are kept) in the table."""
        found = self._place[tokens]
        missing = tokens[found == _NONE]
        if not len(missing):
            return
        places = self._free(found[found != _NONE], len(missing))
        spans = self._spans(missing, places)
        lanes = self._lanes[: len(spans)]
        reads = [
            self._threads.submit(self._read, lane, spans[number :: len(lanes)])
            for number, lane in enumerate(lanes)
        ]
        # all of them end before any may fail: none writes to memory that is given back
        if wait(reads, STALL_SECONDS).not_done:
            self.stuck = True
            raise RunError(
                f"a read of embedding rows has not come back for {STALL_SECONDS:.0f} s: does the "
                "disk hang?"
            )
        failure: BaseException | None = None
        try:
            for failure in [read.exception() for read in reads]:
                if isinstance(failure, Exception):
                    raise failure
                if failure is not None:
                    raise RunError(
                        "a thread that reads embedding rows was ended from outside: start the run "
                        "again"
                    ) from failure
        finally:
            # an error holds the frames that it went through, which must not hold it
            del reads, failure
        # only now: a failed read leaves the places empty
        self._token[places], self._place[missing] = missing, places

    def _free(self, kept: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Empty the next ``count`` places, but for those of ``kept``."""
        spare = np.ones(self.rows, dtype=np.bool_)
        spare[kept] = False
        ring = (self._next + np.arange(self.rows)) % self.rows
        places = ring[spare[ring]][:count]
        old = self._token[places]
        self._place[old[old != _NONE]] = self._token[places] = _NONE
        self._next = (int(places[-1]) + 1) % self.rows
        return places

    def _spans(self, tokens: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> list[_Span]:
        """Rows to read at once; ``tokens`` ascend."""
        gap = _GAP_BYTES // self._row_bytes
        # where the next row is too far away to be read along
        borders = [*(np.flatnonzero(np.diff(tokens) > gap + 1) + 1).tolist(), len(tokens)]
        ends = np.searchsorted(tokens, tokens + self._most_rows).tolist()
        numbers = tokens.tolist()
        spans: list[_Span] = []
        first = 0
        for border in borders:
            while first < border:
                end = min(ends[first], border)
                start = numbers[first]
                spans.append(
                    _Span(start, numbers[end - 1] + 1, tokens[first:end] - start, places[first:end])
                )
                first = end
        return spans

    def _read(self, lane: _Lane, spans: list[_Span]) -> None:
        for span in spans:
            (piece,) = self._source.embedding_rows(span.start, span.stop)
            memory = lane.reader.blocks(piece, lane.memory)
            self._source.check_rows(EMBEDDING, span.start, memory)
            rows = np.frombuffer(memory, np.uint8)
            self._bytes[span.places] = rows.reshape(-1, self._row_bytes)[span.rows]

    @property
    def bytes_read(self) -> int:
        """Bytes read from the disk so far."""
        return sum(lane.reader.bytes_read for lane in self._lanes)
