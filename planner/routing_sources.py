"""Routing statistics from elsewhere.

Five kinds are understood, each with what it lacks:

``trace``
    A routing document of ``moeplan profile``: tokens of whole sequences.
``shares``
    ``.npz``, one array [prompts, layers, experts] for each domain: the share of a prompt's choices
    that fell on each expert. Lengths are missing: prompts count alike.
``heat``
    JSON, for each layer how many tokens chose each expert. Who chose together is missing: tokens
    are drawn independently, which makes devices look better balanced than they are.
``counts``
    JSON, as ``heat`` for some layers and for each text domain.
``joint``
    ``.npz``, arrays [layers - 1, experts, experts] of whole numbers named ``series.domain``: rows
    that chose e in a layer and f in the next one known. Which layers these are is missing (they
    count 0, 1, 2, ...), and experts of one layer that were chosen together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from planner.archives import FAULTS, read_archive
from planner.documents import RoutingTrace
from planner.documents.base import printable
from planner.files import loads_once, read_regular
from planner.routing import TraceArrays, load_trace
from solvers.counting import counted
from solvers.errors import DocumentError, OptionError

__all__ = ["MOST_CELLS", "RoutingSource", "load_source", "trace_source"]

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_ROWS = 1_000_000
"""Rows that a prompt known by its shares is given."""
_MOST_BYTES = 1 << 30
MOST_CELLS = 1 << 26
"""Scenarios x layers x experts: four times 1,024 scenarios of the largest models."""
_MOST_LAYERS, _MOST_EXPERTS = 1 << 10, 1 << 12
"""Of any model: more layers than any has, and twice the experts of Switch-C."""
_MOST_COUNT = 1 << 53
"""Counts are exact up to here, and sums of them finite."""


@dataclass(frozen=True, eq=False)
class RoutingSource:
    """Statistics as read.

    Attributes
    ----------
    kind
        See the module.
    layers
        Layers that the rows of the arrays stand for.
    sequences
        Domain -> [sequences, layers, experts]: rows of each sequence that chose each expert (of
        kinds ``trace`` and ``shares``).
    heat
        Domain -> [layers, experts]: rows that chose each expert (of the other kinds).
    top_k
        Experts that a token chooses, where the source says so.
    joint
        [layers - 1, experts, experts]: tokens that chose e in a layer and f in the next, where
        known.
    """

    kind: Literal["trace", "shares", "heat", "counts", "joint"]
    layers: tuple[int, ...]
    sequences: dict[str, Int64] = field(default_factory=dict)
    heat: dict[str, Floats] = field(default_factory=dict)
    top_k: int | None = None
    joint: Floats | None = None

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the parts of the source."""
        return tuple(self.sequences or self.heat)

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        arrays = [*self.sequences.values(), *self.heat.values()]
        return int(arrays[0].shape[-1])

    @property
    def statement(self) -> str:
        """How scenarios are drawn, and what that leaves out."""
        if self.kind == "trace":
            return "whole recorded sequences"
        if self.kind == "shares":
            return "whole prompts by their shares; a prompt's length is not known"
        return "tokens drawn independently from counts: real batches are less even"


def load_source(path: Path, series: str | None = None) -> RoutingSource:
    """Read routing statistics; the kind is told by the contents.

    Parameters
    ----------
    path
        A routing document, or a file of one of the other kinds.
    series
        Which series of a ``counts`` or ``joint`` file, where it has several.

    Raises
    ------
    DocumentError
        If the file is unreadable, of no known kind, or holds impossible numbers.
    OptionError
        If ``series`` is needed or unknown, or given where it has no effect.
    """
    data = read_regular(path, "file of routing statistics", _MOST_BYTES)
    if data[:2] == b"PK":
        return _archive(data, path, series)
    try:
        value = loads_once(data)
    except ValueError as error:  # also integers of over 4,300 digits
        line = " ".join(str(error).split())
        raise DocumentError(f"{path}: neither JSON nor a .npz archive of numpy: {line}") from error
    if isinstance(value, dict) and "kind" in value:
        _without_series(series, path)
        return trace_source(*load_trace(path), str(path))
    if isinstance(value, dict) and isinstance(value.get("data"), dict):
        return _counts(value, path, series)
    if isinstance(value, dict) and isinstance(value.get("layers"), list):
        _without_series(series, path)
        return _heat(value, path)
    raise DocumentError(
        f"{path}: not routing statistics of a known kind: a routing document, shares in .npz, or "
        "JSON with 'layers' (heat) or 'data' (counts by domain)"
    )


def _without_series(series: str | None, path: Path) -> None:
    if series is not None:
        raise OptionError(f"--series has no effect on {path}, which has only one")


def trace_source(trace: RoutingTrace, arrays: TraceArrays, where: str) -> RoutingSource:
    """The statistics of a routing document that was read; ``where`` names it in messages.

    Raises
    ------
    DocumentError
        If it is empty.
    """
    starts = np.flatnonzero(np.diff(arrays.sequence, prepend=-1))
    if not len(starts):
        raise DocumentError(f"{where}: the routing trace is empty")
    _check_size(len(trace.moe_layers), trace.experts, where)
    if len(starts) * len(trace.moe_layers) * trace.experts > 2 * MOST_CELLS:
        raise DocumentError(f"{where}: too many sequences to work on: {len(starts):,}")
    row = np.cumsum(np.diff(arrays.sequence, prepend=arrays.sequence[:1]) != 0)
    counts = np.zeros((len(starts), len(trace.moe_layers), trace.experts), dtype=np.int64)
    for layer in range(len(trace.moe_layers)):
        chosen, of = arrays.chosen(layer), row[arrays.met(layer)]
        for rank in range(trace.top_k):
            np.add.at(counts[:, layer], (of, chosen[:, rank]), 1)
    joint = np.zeros((len(trace.moe_layers) - 1, trace.experts, trace.experts))
    for layer in range(len(joint)):
        here, after = arrays.successive(layer)
        pairs = (np.repeat(here, trace.top_k, axis=1), np.tile(after, (1, trace.top_k)))
        np.add.at(joint[layer], pairs, 1.0 / trace.top_k)
    return RoutingSource(
        "trace",
        trace.moe_layers,
        sequences={"all": counts},
        top_k=trace.top_k,
        joint=joint,
    )


def _archive(data: bytes, path: Path, series: str | None) -> RoutingSource:
    """Shares or joint counts; their numbers tell."""
    try:
        arrays = read_archive(data, _MOST_BYTES)
    except FAULTS as error:
        line = " ".join(str(error).split())
        raise DocumentError(f"{path}: not an archive of numpy arrays: {line}") from error
    if not arrays:
        raise DocumentError(f"{path}: holds no array")
    _check_names(arrays, path)
    if all(array.dtype.kind in "iu" and array.ndim == 3 for array in arrays.values()):
        return _joint(arrays, path, series)
    _without_series(series, path)
    return _shares(arrays, path)


def _joint(arrays: dict[str, npt.NDArray[Any]], path: Path, series: str | None) -> RoutingSource:
    """Joint counts of one series; a layer's counts are what its pairs add up to."""
    table: dict[str, dict[str, Floats]] = {}
    for name, array in arrays.items():
        ahead, _, domain = name.rpartition(".")
        table.setdefault(ahead, {})[domain] = array.astype(np.float64)
    domains = _one_series(table, series, path)
    heat = {}
    for name, pairs in domains.items():
        first = next(iter(domains.values()))
        if pairs.shape != first.shape or pairs.shape[1] != pairs.shape[2] or not pairs.size:
            raise DocumentError(
                f"{path}: {name} is {pairs.shape}, not joint counts [layers - 1, experts, experts]"
            )
        _check_size(len(pairs) + 1, pairs.shape[1], f"{path}: {name}")
        if pairs.max() > _MOST_COUNT:
            raise DocumentError(f"{path}: {name}: a count is larger than 2^53")
        before, after = pairs.sum(axis=2), pairs.sum(axis=1)
        if pairs.min() < 0 or not before.sum(axis=1).all() or (before[1:] != after[:-1]).any():
            raise DocumentError(
                f"{path}: {name}: a count is negative, or two pairs of layers do not agree on the "
                "counts of the layer between them"
            )
        heat[name] = np.concatenate([before, after[-1:]])
    joint: Floats = np.sum(list(domains.values()), axis=0)
    return RoutingSource("joint", tuple(range(len(joint) + 1)), heat=heat, joint=joint)


def _shares(arrays: dict[str, npt.NDArray[Any]], path: Path) -> RoutingSource:
    shape: tuple[int, ...] = ()
    sequences: dict[str, Int64] = {}
    for name, array in arrays.items():
        if array.ndim != 3 or array.dtype.kind != "f" or not all(array.shape):
            raise DocumentError(
                f"{path}: {name} is {array.dtype} {array.shape}, not shares [prompts, layers, "
                "experts]"
            )
        shape = shape or array.shape[1:]
        if array.shape[1:] != shape:
            raise DocumentError(f"{path}: {name} has other layers or experts than the first array")
        _check_size(shape[0], shape[1], f"{path}: {name}")
        total = array.sum(axis=2, dtype=np.float64)
        if not np.isfinite(array).all() or array.min() < 0 or abs(total - 1).max() > 1e-3:
            raise DocumentError(f"{path}: {name} holds shares that do not add up to 1")
        sequences[name] = np.rint(array.astype(np.float64) * _ROWS).astype(np.int64)
    return RoutingSource("shares", tuple(range(shape[0])), sequences=sequences)


def _heat(value: dict[str, Any], path: Path) -> RoutingSource:
    rows, layers = [], []
    for index, layer in enumerate(value["layers"]):
        if not isinstance(layer, dict) or "heat" not in layer:
            raise DocumentError(f"{path}: layers.{index} has no 'heat'")
        rows.append(layer["heat"])
        layers.append(layer.get("layer", index))
    heat = _table(rows, path, "layers")
    top_k, experts = value.get("k"), heat.shape[1]
    if top_k is not None and (type(top_k) is not int or not 1 <= top_k <= experts):
        raise DocumentError(f"{path}: k is not a number of experts, 1 to {experts}")
    return RoutingSource("heat", _layers(layers, len(heat), path), heat={"all": heat}, top_k=top_k)


def _counts(value: dict[str, Any], path: Path, series: str | None) -> RoutingSource:
    domains = _one_series(value["data"], series, path)
    if not isinstance(domains, dict) or not domains:
        raise DocumentError(f"{path}: data: the series holds no domain")
    _check_names(domains, path)
    heat = {name: _table(rows, path, f"data, domain {name}") for name, rows in domains.items()}
    first = next(iter(heat.values()))
    if any(one.shape != first.shape for one in heat.values()):
        raise DocumentError(f"{path}: data: domains differ in layers or experts")
    return RoutingSource(
        "counts", _layers(value.get("layers"), len(first), path), heat=heat, top_k=None
    )


def _one_series(table: dict[str, Any], series: str | None, path: Path) -> Any:
    """The series that was asked for, or the only one."""
    if not table:
        raise DocumentError(f"{path}: data: holds no series")
    _check_names(table, path)
    if series is None and len(table) == 1:
        series = next(iter(table))
    if series not in table:
        there = ", ".join(sorted(table)[:20])
        raise OptionError(f"{path} has several series: give --series, one of {there}")
    return table[series]


def _check_names(names: Iterable[str], path: Path) -> None:
    """They stand in tables and messages."""
    for name in names:
        if not printable(name):
            raise DocumentError(f"{path}: the name {name!r} holds control characters")


def _table(rows: Any, path: Path, where: str) -> Floats:
    """[layers, experts] of lists of counts."""
    if (
        not isinstance(rows, list)
        or not all(isinstance(row, list) and row and len(row) == len(rows[0]) for row in rows)
        or not rows
        or not all(type(one) in (int, float) for row in rows for one in row)
    ):
        raise DocumentError(f"{path}: {where}: not one list of counts for each layer")
    _check_size(len(rows), len(rows[0]), f"{path}: {where}")
    # not by numpy: an integer may be larger than any float
    if not all(0 <= one <= _MOST_COUNT for row in rows for one in row) or not all(map(any, rows)):
        raise DocumentError(
            f"{path}: {where}: a count is negative or larger than 2^53, or a layer has none"
        )
    return np.array(rows, dtype=np.float64)


def _check_size(layers: int, experts: int, where: str) -> None:
    if layers > _MOST_LAYERS or experts > _MOST_EXPERTS:
        raise DocumentError(
            f"{where}: {counted(layers, 'layer')} of {counted(experts, 'expert')}; no model has "
            f"more than {_MOST_LAYERS:,} of {_MOST_EXPERTS:,}"
        )
    if (layers - 1) * experts**2 > MOST_CELLS:
        raise DocumentError(
            f"{where}: {counted(layers, 'layer')} of {counted(experts, 'expert')} have too many "
            "pairs to work on"
        )


def _layers(value: Any, count: int, path: Path) -> tuple[int, ...]:
    """Layer numbers, ascending; counted where the file has none."""
    if value is None:
        return tuple(range(count))
    if (
        not isinstance(value, list)
        or len(value) != count
        or any(type(one) is not int or not 0 <= one < 1 << 20 for one in value)
        or value != sorted(set(value))
    ):
        raise DocumentError(f"{path}: layers are not {count} ascending numbers")
    return tuple(value)
