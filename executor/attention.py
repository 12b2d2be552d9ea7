"""Attention of one batch, tile by tile: in prefill, in decode, and where newcomers join between.

In a mixed pass some sequences of a batch begin while others go on. Its tiles have the shapes that a
pure decode pass has, and then those of a pure prefill; rows of the other kind are computed with a
tile where they lie in it, and thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import NamedTuple

import torch

from executor.adapters import Adapter
from executor.state import GroupState, KeyValueWriter
from planner.memory import (
    ATTENTION_TILE_ROWS,
    CONTEXT_STEPS,
    EXPANDED_TILE_ROWS,
    expands_context,
)

__all__ = ["Attention", "Tile"]


class Tile(NamedTuple):
    """Sequences [first, stop), computed as prefill or as decode."""

    first: int
    stop: int
    prefill: bool


class Attention:
    """Norm, attention and residual, and the norm behind it.

    Parameters
    ----------
    adapter
        The model's modules.
    state
        The group; ``begin`` follows ``state.begin``.
    """

    def __init__(self, adapter: Adapter, state: GroupState) -> None:
        self._adapter, self._state = adapter, state
        self.expands = expands_context(adapter.model)
        self.bucketed = adapter.dtype != torch.float32
        self._rotary: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
        self._positions: dict[tuple[int, int], torch.Tensor] = {}
        self._columns: dict[tuple[int, int], torch.Tensor] = {}
        self._masks: dict[tuple[int, int, int | None], torch.Tensor] = {}

    def begin(self) -> None:
        """Begin a pass."""
        if self.expands and self.bucketed and self._state.begins and not self._state.mixed:
            self._state.clear_context()
        self._rotary.clear()
        self._positions.clear()
        self._columns.clear()
        self._masks.clear()

    def run(self, layer: int, batch: int) -> None:
        """Attention of one batch."""
        for tile in self._tiles(self._state.batch(batch)):
            self._compute(layer, *tile)

    # --- tiles --------------------------------------------------------------------------------

    def _tiles(self, batch: range) -> Iterator[Tile]:
        state = self._state
        if not state.mixed:
            yield from self._grid(batch, state.longest, prefill=state.begins)
            return
        # decode first: it writes keys and values of newcomers' first tokens, too
        for tile in self._grid(batch, 1, prefill=False):
            if any(state.goes_on(index) for index in range(tile.first, tile.stop)):
                yield tile
        whole = self._grid(batch, state.longest, prefill=True)
        if self.bucketed:
            # the same shapes as in a pure prefill: each new one costs memory
            yield from (
                tile for tile in whole if any(map(state.joins, range(tile.first, tile.stop)))
            )
            return
        step = self._step(state.longest, len(batch))
        first = batch.start
        while first < batch.stop:
            stop = first
            while stop < min(first + step, batch.stop) and state.joins(stop):
                stop += 1
            if stop > first:
                yield Tile(first, stop, prefill=True)
            first = max(stop, first + 1)

    def _grid(self, batch: range, length: int, *, prefill: bool) -> Iterator[Tile]:
        step = self._step(length, len(batch))
        for first in range(batch.start, batch.stop, step):
            yield Tile(first, min(first + step, batch.stop), prefill)

    def _step(self, length: int, most: int) -> int:
        if length > 1:
            return min(most, max(ATTENTION_TILE_ROWS // length, 1))
        if self.expands:
            return min(most, max(EXPANDED_TILE_ROWS // self._state.columns, 1))
        return most

    # --- one tile -----------------------------------------------------------------------------

    def _compute(self, layer: int, first: int, stop: int, prefill: bool) -> None:
        state, adapter = self._state, self._adapter
        others: list[int] = []
        if state.mixed:
            others = [i - first for i in range(first, stop) if state.joins(i) != prefill]
        length = self._length(first, stop) if prefill else 1
        if length == 0 or not any(state.counts[first:stop]):
            return
        hidden = state.hidden[first:stop, :length]
        normed = adapter.input_norm(layer, hidden)
        rotary = self._rotary_of(first, stop, length, prefill, normed)
        cache = KeyValueWriter(
            state,
            layer,
            first,
            stop,
            None if prefill else self._columns[first, stop],
            self._visible(first, stop),
            sorted(set(range(stop - first)) - set(others)) if others and prefill else None,
            self._kept(first, stop) if prefill and length > state.columns else None,
        )
        mask = self._mask(layer, first, stop, length, prefill)
        mixed = adapter.attention(layer, normed, rotary, mask, cache)
        if others:
            mixed.index_fill_(0, torch.tensor(others, device=state.device), 0.0)
        if adapter.residual_scale != 1:
            mixed.mul_(adapter.residual_scale)
        hidden.add_(mixed)
        self._pack(adapter.post_norm(layer, hidden), first, stop, frozenset(others))

    def _length(self, first: int, stop: int) -> int:
        """Columns that a tile of prefill computes."""
        counts, longest = self._state.counts, self._state.longest
        length = max(counts[first:stop])
        if not self.bucketed or length == 0:
            return length
        # two lengths only, for the same reason as in ``operations.tile_of``
        half = -(-longest // 2)
        return half if length <= half else longest

    def _visible(self, first: int, stop: int) -> int:
        """Columns of the context that decode looks at; those too many are masked."""
        context = self._state.columns
        visible = min(max(self._state.past[first:stop]) + 1, context)
        if self.expands and self.bucketed:
            # few lengths only, for the same reason as in ``operations.tile_of``
            step = -(-context // CONTEXT_STEPS)
            visible = min(-(-visible // step) * step, context)
        return visible

    def reach(self, members: range) -> int:
        """Columns of the context that this pass looks at or writes, of any of these sequences."""
        state, own = self._state, slice(members.start, members.stop)
        written: int = max(map(add, state.past[own], state.counts[own]))
        return max(self._visible(members.start, members.stop), min(written, state.columns))

    def _kept(self, first: int, stop: int) -> torch.Tensor:
        """Which tokens of each prompt are kept: [sequences, columns]."""
        state = self._state
        kept = [state.kept_positions(count) for count in state.counts[first:stop]]
        return torch.tensor(kept, device=state.device)

    def _rotary_of(
        self, first: int, stop: int, length: int, prefill: bool, like: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Cosines and sines (or what the family has for them), computed once a pass."""
        key = (0, 0) if prefill else (first, stop)
        if key not in self._rotary:
            if prefill:
                positions = torch.arange(self._state.longest, device=self._state.device)[None]
                self._rotary[key] = self._adapter.rotary(like, positions)
            else:
                past = self._state.past[first:stop]
                positions = torch.tensor(past, device=self._state.device)
                self._positions[key] = positions
                columns = [self._state.column(position) for position in past]
                self._columns[key] = torch.tensor(columns, device=self._state.device)
                self._rotary[key] = self._adapter.rotary(like, positions[:, None])
        parts = self._rotary[key]
        return tuple(part[:, :length] for part in parts) if prefill else parts

    def _mask(
        self, layer: int, first: int, stop: int, length: int, prefill: bool
    ) -> torch.Tensor | None:
        """Which columns each row sees; None where causality alone says so."""
        window = self._adapter.window(layer)
        if prefill:
            sinks = 0
            if self._state.window is not None:  # never where a layer has its own
                window, sinks = self._state.window, self._state.sinks
            if window is not None and length <= sinks + window:
                window = None
            if window is None and not self._adapter.needs_mask:
                return None
            row = torch.arange(length, device=self._state.device)
            apart = row[:, None] - row[None, :]
            seen = (apart >= 0) & ((apart < (window or length)) | (row < sinks))
            return self._adapter.mask(seen[None, None])
        key = (first, stop, window)
        if key not in self._masks:
            # also where every column is seen: without a mask transformers takes a path for shared
            # key heads that is 5 to 20 times slower for single tokens in bfloat16
            visible = self._visible(first, stop)
            column = torch.arange(visible, device=self._state.device)[None]
            position = self._positions[first, stop][:, None]
            # with a window for all layers, whatever lies in a column is seen
            seen = column <= position
            if window is not None:
                seen &= column > position - window
            self._masks[key] = self._adapter.mask(seen[:, None, None])
        return self._masks[key]

    def _pack(self, rows: torch.Tensor, first: int, stop: int, others: frozenset[int]) -> None:
        """Padded rows of some sequences into the packed input of the router."""
        state = self._state
        begin, end = state.starts[first], state.starts[stop]
        if not others and end - begin == rows.shape[0] * rows.shape[1]:
            state.normed[begin:end] = rows.reshape(end - begin, -1)
            return
        for index in range(first, stop):
            if index - first in others:
                continue
            count = state.counts[index]
            start = state.starts[index]
            state.normed[start : start + count] = rows[index - first, :count]
