"""What copies bring of keys and values that lie below the device, pass by pass, and what is written
back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.documents import ModelSpec, Workload
from planner.kv import (
    APART_BYTES,
    Written,
    left_of_read,
    token_blocks,
    written_column,
    written_layer,
)
from planner.memory import aligned, kv_columns_bytes, kv_layer_bytes, kv_token_bytes
from planner.scenarios import PassShape
from planner.span import kept_tokens, seen_tokens
from solvers.problem import Unit

__all__ = ["Copied", "KvCopies", "Part", "evenly"]


class Part(NamedTuple):
    """So many reads of a start unit's copy, of so many bytes each: of its dense part or of keys and
    values."""

    kind: Literal["dense", "kv"]
    size_bytes: int
    times: int


class Copied(NamedTuple):
    """What a pass copies of keys and values: so many columns and, batch by batch, of so many
    sequences."""

    columns: int
    sequences: int


def evenly(total_ns: int, size_bytes: int, held_bytes: int, chunk_bytes: int) -> Unit:
    """A unit whose chunks differ, as one of chunks that are all alike and take as long together."""
    chunks = -(-size_bytes // chunk_bytes)
    each = total_ns // chunks if chunks > 1 else 0
    return Unit(size_bytes, held_bytes, chunks, each, total_ns - (chunks - 1) * each, chunk_bytes)


@dataclass(frozen=True)
class KvCopies:
    """Of a group whose sequences are all equally long.

    Attributes
    ----------
    model, workload
        What runs.
    group
        Sequences of a full group: a smaller one's lie as far apart.
    dtype_bytes
        Width of the computing type.
    chunk_bytes
        Piece of a copy, and of a write.
    below
        Whether they lie below at all.
    batch
        Sequences of a full batch, where each batch's are copied by themselves; None: a layer's
        are copied with its dense part.
    """

    model: ModelSpec
    workload: Workload
    group: int
    dtype_bytes: int
    chunk_bytes: int
    below: bool
    batch: int | None = None

    def room_bytes(self, layer: int) -> int:
        """Device memory for what one copy brings of a layer's at the most: beside its dense part
        where that streams, or for a batch's."""
        if not self.below:
            return 0
        return kv_layer_bytes(self.model, layer, self._sequences, self.workload, self.dtype_bytes)

    @property
    def _sequences(self) -> int:
        """Sequences that lie beside each other."""
        return self.group if self.batch is None else self.batch

    @property
    def batches(self) -> int:
        """Batches of a full group that are copied by themselves; 0: none."""
        return 0 if self.batch is None else -(-self.group // self.batch)

    @property
    def all_bytes(self) -> int:
        """As ``room_bytes``, of all layers and batches."""
        each = sum(map(self.room_bytes, range(len(self.model.layers))))
        return each * max(self.batches, 1)

    @property
    def wait_bytes(self) -> float:
        """What is left on average of the read of an expert that a write meets."""
        return left_of_read(self.model, self.chunk_bytes) * self.model.stored_share("expert")

    def columns(self, shape: PassShape) -> int:
        """Tokens of each sequence whose keys and values lie below before a pass, and are copied."""
        return 0 if shape.phase == "prefill" else seen_tokens(self.workload, shape.context - 1)

    def copied(self, shape: PassShape) -> Copied:
        """What a pass copies: passes that copy the same are alike."""
        return Copied(self.columns(shape), 0 if self.batch is None else shape.sequences)

    def numbers(self, shapes: Iterable[PassShape]) -> dict[Copied, int]:
        """What these passes copy -> its number in ``Scenarios.short``, ascending."""
        every = sorted(set(map(self.copied, shapes))) if self.below else []
        return {copied: number for number, copied in enumerate(every, 1)}

    def present(self, sequences: int, batch: int) -> int:
        """How many of a pass's sequences are of a batch."""
        size = self.batch or 0
        return min(max(sequences - batch * size, 0), size)

    def batch_bytes(self, layer: int, batch: int, copied: Copied | None = None) -> int:
        """What is copied of a layer's for one batch (None: as much as there may be): nothing where
        the pass has no sequence of it."""
        if copied is None:
            return self._bytes(layer, kept_tokens(self.workload))
        if not self.present(copied.sequences, batch):
            return 0
        return self._bytes(layer, copied.columns)

    def start_bytes(self, layer: int, columns: int | None = None) -> int:
        """What is copied of a layer before it begins: its dense part, and so many columns (None: as
        many as there may be)."""
        if columns is None:
            columns = kept_tokens(self.workload)
        size, kept = self.model.layers[layer].dense_bytes, self._bytes(layer, columns)
        return aligned(size) + kept if kept else size

    def parts(self, layer: int, size_bytes: int) -> tuple[Part, ...]:
        """The reads of a copy of so many bytes with keys and values in it, as chunks have them: of
        the dense part, then of those; one chunk may have both. Nothing where none come with it."""
        own = self.model.layers[layer].dense_bytes
        if size_bytes <= own:
            return ()
        spans: tuple[tuple[Literal["dense", "kv"], int, int], ...] = (
            ("dense", 0, own),
            ("kv", aligned(own), size_bytes),
        )
        return tuple(
            Part(kind, size, times)
            for kind, begin, end in spans
            for size, times in _pieces(begin, end, self.chunk_bytes)
        )

    def read_bytes(self, layer: int, size_bytes: int) -> float:
        """Bytes in the files for a copy of so many: of a compressed store the dense part has
        fewer."""
        own = self.model.layers[layer].dense_bytes
        share = self.model.stored_share("dense")
        return min(own, size_bytes) * share + max(size_bytes - aligned(own), 0)

    def written(self, shape: PassShape, layer: int, batch: int | None = None) -> Written:
        """What attention of all batches, or of one, added: in prefill the prompts', in decode a
        token of each sequence, all in one column."""
        if not self.below:
            return Written(())
        sequences = shape.sequences
        if self.batch is not None:
            if batch is None:
                return _summed([self.written(shape, layer, one) for one in range(self.batches)])
            sequences = self.present(sequences, batch)
            if not sequences:
                return Written(())
        if shape.phase == "prefill":
            columns = seen_tokens(self.workload, shape.context)
            return written_layer(self._bytes(layer, columns), self.chunk_bytes)
        token = kv_token_bytes(self.model, layer, self.dtype_bytes)
        return written_column(self._sequences * token, sequences * token, self.chunk_bytes)

    def written_unequal(self, layer: int, lengths: Sequence[int]) -> Written:
        """Likewise of all batches in decode, of sequences that have had so many tokens, in the
        order of their places; without a window."""
        token, beside = kv_token_bytes(self.model, layer, self.dtype_bytes), self._sequences
        writes: Counter[int] = Counter()
        for first in range(0, len(lengths), beside):
            own = lengths[first : first + beside]
            tokens = [(column, place) for place, column in enumerate(own)]
            for begin, end in token_blocks(tokens, beside * token, token, APART_BYTES):
                writes.update(dict(written_layer(end - begin, self.chunk_bytes).sizes))
        return Written(tuple(sorted(writes.items())))

    def _bytes(self, layer: int, columns: int) -> int:
        if not self.below:
            return 0
        return kv_columns_bytes(self.model, layer, self._sequences, columns, self.dtype_bytes)


def _summed(parts: Sequence[Written]) -> Written:
    """All of these writes."""
    per = math.lcm(*(part.per for part in parts))
    sizes: Counter[int] = Counter()
    for part in parts:
        sizes.update({size: count * (per // part.per) for size, count in part.sizes})
    return Written(tuple(sorted(sizes.items())), per)


def _pieces(begin: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Bytes [begin, end) of a unit as its chunks cut them: (bytes, how many of them)."""
    edge = min(-(-begin // chunk_bytes) * chunk_bytes, end)
    if begin < edge:
        yield edge - begin, 1
    whole, rest = divmod(max(end - edge, 0), chunk_bytes)
    if whole:
        yield chunk_bytes, whole
    if rest:
        yield rest, 1
