"""What copies bring of keys and values that lie below the device, pass by pass, and what is written
back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.documents import ModelSpec, Workload
from planner.kv import Written, written_column, written_layer
from planner.memory import aligned, kv_columns_bytes, kv_layer_bytes, kv_token_bytes
from planner.scenarios import PassShape
from planner.span import kept_tokens, seen_tokens

__all__ = ["KvCopies"]


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

    def _bytes(self, layer: int, columns: int) -> int:
        if not self.below:
            return 0
        return kv_columns_bytes(self.model, layer, self.group, columns, self.dtype_bytes)
