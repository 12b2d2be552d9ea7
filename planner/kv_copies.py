"""What copies bring of keys and values that lie below the device, pass by pass, and what is written
back."""

from __future__ import annotations

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

__all__ = ["KvCopies", "Part", "evenly"]


class Part(NamedTuple):
    """So many reads of a start unit's copy, of so many bytes each: of its dense part or of keys and
    values."""

    kind: Literal["dense", "kv"]
    size_bytes: int
    times: int


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
    """

    model: ModelSpec
    workload: Workload
    group: int
    dtype_bytes: int
    chunk_bytes: int
    below: bool

    def room_bytes(self, layer: int) -> int:
        """Device memory for a layer's, beside its dense part where that streams."""
        if not self.below:
            return 0
        return kv_layer_bytes(self.model, layer, self.group, self.workload, self.dtype_bytes)

    @property
    def all_bytes(self) -> int:
        """Likewise of all layers."""
        return sum(map(self.room_bytes, range(len(self.model.layers))))

    @property
    def wait_bytes(self) -> float:
        """What is left on average of the read of an expert that a write meets."""
        return left_of_read(self.model, self.chunk_bytes) * self.model.stored_share("expert")

    def columns(self, shape: PassShape) -> int:
        """Tokens of each sequence whose keys and values lie below before a pass, and are copied."""
        return 0 if shape.phase == "prefill" else seen_tokens(self.workload, shape.context - 1)

    def numbers(self, shapes: Iterable[PassShape]) -> dict[int, int]:
        """How many columns these passes copy -> their number in ``Scenarios.short``, ascending."""
        every = sorted(set(map(self.columns, shapes))) if self.below else []
        return {columns: number for number, columns in enumerate(every, 1)}

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

    def written(self, shape: PassShape, layer: int) -> Written:
        """What attention added: in prefill the prompts', in decode a token of each sequence, all in
        one column."""
        if not self.below:
            return Written(())
        if shape.phase == "prefill":
            columns = seen_tokens(self.workload, shape.context)
            return written_layer(self._bytes(layer, columns), self.chunk_bytes)
        token = kv_token_bytes(self.model, layer, self.dtype_bytes)
        return written_column(self.group * token, shape.sequences * token, self.chunk_bytes)

    def written_unequal(self, layer: int, lengths: Sequence[int]) -> Written:
        """Likewise in decode, of sequences that have had so many tokens, in the order of their
        places; without a window."""
        token = kv_token_bytes(self.model, layer, self.dtype_bytes)
        tokens = [(column, place) for place, column in enumerate(lengths)]
        writes: Counter[int] = Counter()
        for begin, end in token_blocks(tokens, self.group * token, token, APART_BYTES):
            writes.update(dict(written_layer(end - begin, self.chunk_bytes).sizes))
        return Written(tuple(sorted(writes.items())))

    def _bytes(self, layer: int, columns: int) -> int:
        if not self.below:
            return 0
        return kv_columns_bytes(self.model, layer, self.group, columns, self.dtype_bytes)


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
