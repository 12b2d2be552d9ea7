"""Sizes of quantized experts: one arithmetic for the account, the store and the computation.

An expert's matrices, gate and up as one [2 x intermediate, hidden] and down [hidden, intermediate],
are quantized by groups of values that follow one another in a row. ``executor.quantized`` says what
lies where.
"""

from __future__ import annotations

from itertools import product

from planner.documents import LayerSpec, ModelSpec, QuantizedExperts

__all__ = [
    "BLOCK_ROWS",
    "LEAST_GROUP",
    "expert_matrices",
    "group_of",
    "quantized_forms",
    "scale_values",
    "scratch_bytes",
    "tile_spans",
    "value_bytes",
]

BLOCK_ROWS = 64
"""Rows of a block of 4-bit values, and the granularity of tiles."""

LEAST_GROUP = 16
"""Smaller groups would have more bytes of scales than of values."""

_DEFAULT_GROUP = 64
_TILE_BYTES = 2 << 20


def expert_matrices(model: ModelSpec, layer: LayerSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of an expert's two matrices."""
    inner, hidden = layer.expert_intermediate, model.hidden_size
    return (2 * inner, hidden), (hidden, inner)


def quantized_forms(model: ModelSpec) -> tuple[QuantizedExperts, ...]:
    """All that experts are quantized to, in this store."""
    if model.quantized is not None:
        return (model.quantized,)
    return tuple(form.quantized for form in model.forms or ())


def group_of(quantized: QuantizedExperts, columns: int) -> int:
    """Values of a group in rows of so many; 0 where no group fits.

    A group that was asked for divides the row. Without one, int8 takes whole rows, and int4 the
    largest divisor of the row up to 64 that is no less than 16.
    """
    if quantized.group is not None:
        return 0 if columns % quantized.group else quantized.group
    if quantized.format == "int8-1":
        return columns
    fitting = (size for size in range(_DEFAULT_GROUP, LEAST_GROUP - 1, -1) if columns % size == 0)
    return next(fitting, 0)


def value_bytes(quantized: QuantizedExperts, rows: int, columns: int) -> int:
    """Bytes of a matrix's values."""
    return rows * columns // (1 if quantized.format == "int8-1" else 2)


def scale_values(quantized: QuantizedExperts, rows: int, columns: int) -> int:
    """Numbers beside a matrix's values: a scale for each group, with int4 a middle, too."""
    groups = rows * columns // group_of(quantized, columns)
    return groups * (1 if quantized.format == "int8-1" else 2)


def tile_spans(rows: int, columns: int, dtype_bytes: int) -> list[tuple[int, int]]:
    """The first row of each tile that a product makes whole numbers of, and the row after its last.

    All have as many rows, whole blocks of them, but a last one of what is left; so few shapes
    occur.
    """
    blocks, rest = divmod(rows, BLOCK_ROWS)
    most = max(_TILE_BYTES // (BLOCK_ROWS * columns * dtype_bytes), 1)
    each = next((size for size in range(min(most, blocks), 0, -1) if blocks % size == 0), 1)
    step = each * BLOCK_ROWS
    spans = [(first, first + step) for first in range(0, blocks * BLOCK_ROWS, step)]
    return [*spans, (rows - rest, rows)] if rest else spans


def scratch_bytes(model: ModelSpec, layer: LayerSpec, dtype_bytes: int) -> int:
    """What one tile of a product takes while it is made of quantized values: the tile, integers of
    half of it, and the tile's scales side by side; the most of all forms that a store has."""
    if not layer.experts:
        return 0
    most = 0
    for quantized, (rows, columns) in product(
        quantized_forms(model), expert_matrices(model, layer)
    ):
        first, stop = max(
            tile_spans(rows, columns, dtype_bytes), key=lambda span: span[1] - span[0]
        )
        values = (stop - first) * columns
        scales = scale_values(quantized, stop - first, columns)
        most = max(most, values * dtype_bytes + values // 2 + scales * dtype_bytes)
    return most
