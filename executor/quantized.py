"""Quantized experts: what a store has of a matrix, and products with it.

A matrix [rows, columns] is cut into groups of values that follow one another in a row. In format
``int8-1`` a value is q s with q from -128 to 127 and the group's scale s; in ``int4-1`` it is
q s + m with q from -8 to 7 and the group's middle m. Scales and middles are in the model's type.
A quantized value differs from the checkpoint's by half a scale at most, before it is rounded to the
model's type.

``values`` of int8: q, one byte each, row by row. Of int4: blocks of 64 rows (a last one of what is
left), in each for every column half as many bytes as rows, byte j with q + 8 of row j in its lower
half and of row j + half in its upper one: as torch's kernel for AVX-512 has them. ``scales`` of
int8: [rows, groups]; of int4: [groups, rows, 2], scale and middle.

For a few rows of bfloat16 torch's kernels multiply with what is stored. For more, and in other
types, a tile of weights at a time is made numbers of the model's type and multiplied as any other.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from planner.documents import QuantizedExperts
from planner.quantized import BLOCK_ROWS, tile_spans
from solvers.errors import CheckpointError

__all__ = ["QuantizedMatrix", "layout_of_4_bits", "quantize"]

_FUSED_GROUPS = (32, 64, 128, 256)
_FEW_ROWS = {8: 8, 4: 16}
"""Up to so many rows torch's kernels are no slower than numbers and a product, by bits."""

_AT_ONCE = 1 << 21
"""Values that are quantized at once: for fewer, threads are woken more than they work."""

_CENTRE = 7.4
"""Of 16 levels -8 to 7, those to which the largest is mapped where a middle cannot be told in the
model's type: half a level and the rounding of the scale lie beyond."""


class _Scratch(NamedTuple):
    """What a tile is made in: its numbers, and levels of half of it."""

    tile: torch.Tensor
    levels: torch.Tensor

    @classmethod
    def of(cls, values: int, scales: torch.Tensor) -> _Scratch:
        return cls(scales.new_empty(values), scales.new_empty(values // 2, dtype=torch.int8))


class QuantizedMatrix(NamedTuple):
    """A matrix of so many rows and columns, in groups of ``group``."""

    values: torch.Tensor
    scales: torch.Tensor
    rows: int
    columns: int
    group: int

    @property
    def bits(self) -> int:
        """Of a value."""
        return 8 if self.values.dtype == torch.int8 else 4

    def product(self, inputs: torch.Tensor) -> torch.Tensor:
        """``inputs`` [n, columns] times the transposed matrix: [n, rows]."""
        result: torch.Tensor
        if self._fused(inputs):
            inputs = inputs.contiguous()
            if self.bits == 8:
                scales = self.scales.view(-1)
                result = torch.ops.aten._weight_int8pack_mm(inputs, self.values, scales)
            else:
                packed = self.values.view(self.rows, self.columns // 2)
                result = torch.ops.aten._weight_int4pack_mm_for_cpu(
                    inputs, packed, self.group, self.scales
                )
            return result
        result = inputs.new_empty(len(inputs), self.rows)
        scratch = None
        for first, stop in tile_spans(self.rows, self.columns, inputs.element_size()):
            # one scratch for all tiles: fresh memory costs a page fault for every 4 KiB
            scratch = scratch or _Scratch.of((stop - first) * self.columns, self.scales)
            torch.mm(inputs, self.numbers(first, stop, scratch), out=result[:, first:stop])
        return result

    def _fused(self, inputs: torch.Tensor) -> bool:
        if inputs.dtype != torch.bfloat16 or inputs.device.type != "cpu":
            return False
        if len(inputs) > _FEW_ROWS[self.bits]:
            return False
        if self.bits == 8:
            return self.group == self.columns
        return self.group in _FUSED_GROUPS and self.rows % BLOCK_ROWS == 0 and layout_of_4_bits()

    def numbers(self, first: int, stop: int, scratch: _Scratch | None = None) -> torch.Tensor:
        """Rows [first, stop), one of ``tile_spans``, as numbers: [columns, stop - first]."""
        count, groups = stop - first, self.columns // self.group
        scratch = scratch or _Scratch.of(count * self.columns, self.scales)
        tile = scratch.tile[: count * self.columns]
        if self.bits == 8:
            tile.view(count, self.columns).copy_(self.values[first:stop])
            tile.view(count, groups, self.group).mul_(self.scales[first:stop, :, None])
            return tile.view(count, self.columns).t()
        blocks = max(count // BLOCK_ROWS, 1)
        half = count // blocks // 2
        packed = self.values[first * self.columns // 2 : stop * self.columns // 2]
        packed = packed.view(torch.int8).view(blocks, self.columns, half)
        halves = tile.view(self.columns, blocks, 2, half)
        signed = scratch.levels[: packed.numel()].view(packed.shape)
        # q + 8 with its upper bit turned is q of four bits, and a shift to the right keeps the sign
        torch.bitwise_xor(packed, -128, out=signed).bitwise_right_shift_(4)
        halves[:, :, 1] = signed.transpose(0, 1)
        torch.bitwise_left_shift(packed, 4, out=signed).bitwise_xor_(-128).bitwise_right_shift_(4)
        halves[:, :, 0] = signed.transpose(0, 1)
        # side by side: reading them with strides takes ten times as long
        scale, middle = (self.scales[:, first:stop, part].contiguous() for part in (0, 1))
        grouped = tile.view(groups, self.group, count)
        torch.addcmul(middle[:, None], grouped, scale[:, None], out=grouped)
        return tile.view(self.columns, count)


@cache
def layout_of_4_bits() -> bool:
    """Whether torch's kernel on this machine takes 4-bit values as they lie in a store.

    It depends on the processor; elsewhere values are made numbers first.
    """
    columns = 32
    levels = torch.arange(2 * BLOCK_ROWS * columns, dtype=torch.int32)
    levels = (levels * levels + levels // 7).remainder(16).view(-1, columns)
    try:
        theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(theirs.view(torch.uint8).flatten(), _pack(levels.to(torch.uint8)))


def _pack(levels: torch.Tensor) -> torch.Tensor:
    """Bytes of levels 0 to 15, [rows, columns]."""
    rows, columns = levels.shape
    whole = rows // BLOCK_ROWS * BLOCK_ROWS
    parts = []
    for part, height in ((levels[:whole], BLOCK_ROWS), (levels[whole:], rows - whole)):
        if len(part):
            pairs = part.reshape(-1, 2, height // 2, columns)
            both = pairs[:, 0] | (pairs[:, 1] << 4)
            parts.append(both.transpose(1, 2).reshape(-1))
    return torch.cat(parts)


def quantize(
    matrix: torch.Tensor, how: QuantizedExperts, group: int
) -> tuple[QuantizedMatrix, float]:
    """A matrix [rows, columns] of the model's type, quantized; and the sum of squared errors.

    Raises
    ------
    CheckpointError
        If one of its values is not finite, or near the largest of its type.
    """
    rows, columns = matrix.shape
    each = max(_AT_ONCE // columns // BLOCK_ROWS, 1) * BLOCK_ROWS
    quantize_rows = _rows_of_8_bits if how.format == "int8-1" else _rows_of_4_bits
    values, scales, squares = [], [], 0.0
    for first in range(0, rows, each):
        some = matrix[first : first + each].float()
        parts = quantize_rows(some.reshape(-1, columns // group, group), matrix.dtype)
        values.append(parts[0])
        scales.append(parts[1])
        squares += float(parts[2].square().sum())
    side = 0 if how.format == "int8-1" else 1
    made = QuantizedMatrix(torch.cat(values), torch.cat(scales, dim=side), rows, columns, group)
    return made, squares


_Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Values, scales and errors of some rows."""


def _rows_of_8_bits(grouped: torch.Tensor, dtype: torch.dtype) -> _Rows:
    least, most = _ends(grouped, dtype)
    scale = _as_scale(torch.maximum(most, -least) / 127, dtype)
    levels, error = _levels(grouped, scale.float(), torch.zeros_like(least), 128)
    return levels.to(torch.int8).flatten(1), scale, error


def _rows_of_4_bits(grouped: torch.Tensor, dtype: torch.dtype) -> _Rows:
    least, most = _ends(grouped, dtype)
    scale = _as_scale(most / 15 - least / 15, dtype)
    middle = most / 2 + least / 2 + scale.float() / 2
    # of equal values, zeros among them, nothing is lost
    middle = torch.where(most == least, least, middle).to(dtype)
    levels, error = _levels(grouped, scale.float(), middle.float(), 8)
    # where the values lie far from zero a middle of few bits may miss them
    missed = error.abs().amax(dim=2) > scale.float() * 0.5005
    if missed.any():
        largest = torch.maximum(most, -least)
        scale = torch.where(missed, _as_scale(largest / _CENTRE, dtype), scale)
        middle = torch.where(missed, torch.zeros_like(middle), middle)
        levels, error = _levels(grouped, scale.float(), middle.float(), 8)
    values = _pack(levels.add_(8).to(torch.uint8).flatten(1))
    return values, torch.stack((scale.t(), middle.t()), dim=2), error


def _ends(grouped: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    least, most = grouped.amin(dim=2), grouped.amax(dim=2)
    # rounding may make a larger number of what the type can hardly hold
    largest = torch.finfo(dtype).max / 2
    if not (torch.maximum(most, -least) <= largest).all():
        raise CheckpointError(
            "a value is not finite, or too large to be quantized: pack without --quantize"
        )
    return least, most


def _as_scale(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In the model's type, and never so small that nothing can be divided by it."""
    return scale.to(dtype).clamp_(min=torch.finfo(dtype).tiny)


def _levels(
    grouped: torch.Tensor, scale: torch.Tensor, middle: torch.Tensor, bound: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest level of each value, and what it is off by."""
    scale, middle = scale[:, :, None], middle[:, :, None]
    levels = ((grouped - middle) / scale).round_().clamp_(-bound, bound - 1)
    return levels, levels * scale + middle - grouped
