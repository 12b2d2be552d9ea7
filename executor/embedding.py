"""Embedding rows, read from the disk as a pass needs them, some of them kept."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch

from executor.arena import Arena
from executor.direct import Pacer, ReadBuffer
from executor.source import WeightSource
from planner.memory import (
    EMBEDDING_CACHE_BYTES,
    EXPERT_TILE_ROWS,
    aligned,
    embedding_read_bytes,
)

__all__ = ["Embedding"]

_NONE = -1


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
    """

    def __init__(
        self, arena: Arena, source: WeightSource, pacer: Pacer, dtype: torch.dtype
    ) -> None:
        model = source.model
        self._source = source
        # rows are paced together: one by one, each would wait behind a whole chunk of the channel
        self._reader = source.reader(ReadBuffer(embedding_read_bytes(model)), Pacer(None))
        self._pacer = pacer
        self._row_bytes = model.hidden_size * dtype.itemsize
        kept = min(model.embedding_bytes, EMBEDDING_CACHE_BYTES) // self._row_bytes
        self.rows = max(min(kept, model.vocab_size), 1)
        size = self.rows * self._row_bytes
        offset = arena.take("embedding", "rows", size)
        self._memory = arena.memory(offset, aligned(size))
        self._table = arena.tensor(offset, (self.rows, model.hidden_size), dtype)
        # token -> place and place -> token
        self._place = np.full(model.vocab_size, _NONE, dtype=np.int64)
        self._token = np.full(self.rows, _NONE, dtype=np.int64)
        self._next = 0

    def load_all(self) -> None:
        """Read the whole matrix now, where all of it is kept."""
        if self.rows < len(self._place):
            return
        pieces = self._source.embedding_rows(0, self.rows)
        self._reader.read(pieces, self._memory, 0, self.rows * self._row_bytes)
        self._place[:] = np.arange(self.rows)
        self._token[:] = self._place

    def gather(self, tokens: npt.NDArray[np.int64], out: torch.Tensor) -> None:
        """Rows of ``tokens`` into ``out`` [tokens, hidden]."""
        started, before = time.perf_counter_ns(), self._reader.bytes_read
        self._gather(tokens, out)
        self._pacer.wait(started, self._reader.bytes_read - before)

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
        missing = tokens[self._place[tokens] == _NONE].tolist()
        if not missing:
            return
        wanted = set(tokens.tolist())
        for token in missing:
            while int(self._token[self._next]) in wanted:
                self._next = (self._next + 1) % self.rows
            place = self._next
            old = int(self._token[place])
            if old != _NONE:
                self._place[old] = self._token[place] = _NONE
            begin = place * self._row_bytes
            row = self._memory[begin : begin + self._row_bytes]
            pieces = self._source.embedding_rows(token, token + 1)
            self._reader.read(pieces, row, 0, self._row_bytes)
            # only now: a failed read leaves the place empty
            self._token[place], self._place[token] = token, place
            self._next = (place + 1) % self.rows

    @property
    def bytes_read(self) -> int:
        """Bytes read from the disk so far."""
        return self._reader.bytes_read
