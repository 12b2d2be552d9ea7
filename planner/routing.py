"""Routing traces on disk and their statistics, without torch."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.archives import FAULTS, array_header
from planner.documents import RoutingTrace, load_document, write_atomic, write_document
from planner.documents.base import Source
from planner.files import read_regular
from solvers.counting import counted
from solvers.errors import DocumentError

__all__ = [
    "TraceArrays",
    "coactivation",
    "load_trace",
    "popularity",
    "read_arrays",
    "trace_bytes",
    "trace_document",
    "write_trace",
]


@dataclass(frozen=True, eq=False)
class TraceArrays:
    """Which experts each token chose.

    Attributes
    ----------
    experts
        uint16 [tokens, moe_layers, top_k].
    sequence
        int32 [tokens], ascending.
    position
        int32 [tokens], 0-based in its sequence, ascending in each.
    phase
        uint8 [tokens]: 0 prefill, 1 decode.
    ahead
        uint16 [tokens, moe_layers, top_k]: what each layer's router says of the hidden state that
        the MoE layer before routed (of the first: 0); None where nobody asked it.
    encoder
        MoE layers of an encoder, the first ones, whose routers tokens of phase 0 met alone, and
        tokens of phase 1 did not; 0 in most models, in which every token met all.
    """

    experts: npt.NDArray[np.uint16]
    sequence: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    phase: npt.NDArray[np.uint8]
    ahead: npt.NDArray[np.uint16] | None = None
    encoder: int = 0

    def met(self, column: int) -> npt.NDArray[np.bool_]:
        """[tokens]: which of them met the router of a MoE layer."""
        if not self.encoder:
            return np.ones(len(self.phase), dtype=np.bool_)
        mask: npt.NDArray[np.bool_] = (self.phase == 0) == (column < self.encoder)
        return mask

    def chosen(self, column: int) -> npt.NDArray[np.uint16]:
        """What those chose there, [tokens that met it, top_k]."""
        return self.experts[self.met(column), column] if self.encoder else self.experts[:, column]

    def successive(self, column: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        """What the same tokens chose in a MoE layer and in the next, both [tokens, top_k]; of none
        between an encoder's last and a decoder's first."""
        if column + 1 == self.encoder:
            return self.experts[:0, column], self.experts[:0, column]
        return self.chosen(column), self.chosen(column + 1)

    def take(self, rows: npt.NDArray[Any]) -> TraceArrays:
        """Some of the tokens."""
        return TraceArrays(
            self.experts[rows],
            self.sequence[rows],
            self.position[rows],
            self.phase[rows],
            None if self.ahead is None else self.ahead[rows],
            self.encoder,
        )


def trace_bytes(arrays: TraceArrays) -> bytes:
    """The array file's contents."""
    buffer = io.BytesIO()
    there = {name: getattr(arrays, name) for name in (*_ARRAYS, _OPTIONAL)}
    np.savez_compressed(
        buffer, **{name: array for name, array in there.items() if array is not None}
    )
    return buffer.getvalue()


def trace_document(
    arrays: TraceArrays,
    data: bytes,
    *,
    model_hash: str,
    moe_layers: tuple[int, ...],
    expert_count: int,
    source: Source = "measured",
) -> RoutingTrace:
    """The document of ``arrays``; ``data`` are their ``trace_bytes``."""
    return RoutingTrace(
        model_hash=model_hash,
        source=source,
        tokens=len(arrays.sequence),
        sequences=len(np.unique(arrays.sequence)),
        moe_layers=moe_layers,
        experts=expert_count,
        top_k=arrays.experts.shape[2],
        arrays_file="routing.npz",
        arrays_hash=hashlib.sha256(data).hexdigest(),
        encoder=arrays.encoder or None,
    )


def write_trace(
    folder: Path,
    arrays: TraceArrays,
    *,
    model_hash: str,
    moe_layers: tuple[int, ...],
    expert_count: int,
    source: Source = "measured",
) -> RoutingTrace:
    """Write ``routing.npz`` and ``routing.json`` into ``folder``; the JSON last."""
    data = trace_bytes(arrays)
    trace = trace_document(
        arrays,
        data,
        model_hash=model_hash,
        moe_layers=moe_layers,
        expert_count=expert_count,
        source=source,
    )
    write_atomic(folder / trace.arrays_file, data)
    write_document(trace, folder / "routing.json")
    return trace


def load_trace(path: Path) -> tuple[RoutingTrace, TraceArrays]:
    """Read a routing trace and its arrays.

    Raises
    ------
    DocumentError
        If either file is missing, does not fit the other, or holds impossible values.
    """
    trace = load_document(RoutingTrace, path)
    where = path.parent / trace.arrays_file
    if Path(trace.arrays_file).name != trace.arrays_file or trace.arrays_file in ("", ".."):
        raise DocumentError(f"{path}: arrays_file must name a file beside the document")
    data = read_regular(where, "routing array file", _MOST_ARRAY_BYTES)
    return trace, read_arrays(trace, data, str(where), path.name)


def read_arrays(trace: RoutingTrace, data: bytes, where: str, beside: str) -> TraceArrays:
    """The arrays of ``trace`` from the bytes of its array file.

    Nothing is unpacked before the archive's own headers fit the trace, so that memory is bounded
    by what the trace says (see ``_MOST_ARRAY_BYTES``) and not by what an archive unpacks to.

    Parameters
    ----------
    trace
        The routing document.
    data
        Contents of the ``.npz``; never unpickled.
    where, beside
        Names of the array file and of the document, for the message.

    Raises
    ------
    DocumentError
        If they are not the arrays of this trace, or hold impossible values.
    """
    if hashlib.sha256(data).hexdigest() != trace.arrays_hash:
        raise DocumentError(f"{where}: does not belong to {beside} (its hash differs)")
    try:
        fault = _header_fault(trace, data)
        if fault is None:
            file = np.load(io.BytesIO(data), allow_pickle=False)
            with file:
                there = [name for name in (*_ARRAYS, _OPTIONAL) if name in file.files]
                found = {name: file[name] for name in there}
            arrays = TraceArrays(**found, encoder=trace.encoder or 0)
            fault = _fault(trace, arrays)
    except FAULTS as error:
        line = " ".join(str(error).split())
        raise DocumentError(f"{where}: not a routing array file: {line}") from error
    if fault:
        raise DocumentError(f"{where}: {fault}")
    return arrays


_ARRAYS = ("experts", "sequence", "position", "phase")
_OPTIONAL = "ahead"
_MOST_ARRAY_BYTES = 4 << 30
"""The arrays of a longer trace would not fit beside anything else."""


def _expected(trace: RoutingTrace) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of each array."""
    tokens = trace.tokens
    choices = (np.dtype(np.uint16), (tokens, len(trace.moe_layers), trace.top_k))
    return {
        "experts": choices,
        "sequence": (np.dtype(np.int32), (tokens,)),
        "position": (np.dtype(np.int32), (tokens,)),
        "phase": (np.dtype(np.uint8), (tokens,)),
        _OPTIONAL: choices,
    }


def _header_fault(trace: RoutingTrace, data: bytes) -> str | None:
    """The first way in which what an archive says of itself does not fit ``trace``."""
    expected = _expected(trace)
    size = sum(expected[name][0].itemsize * math.prod(expected[name][1]) for name in _ARRAYS)
    if size > _MOST_ARRAY_BYTES:
        return f"arrays of {size:,} bytes are more than a trace can have"
    if trace.experts > 1 << 16:
        return f"{counted(trace.experts, 'expert')} are more than its numbers can name"
    if data[:2] != b"PK":
        return "not a routing array file: one array, no archive"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, (dtype, shape) in expected.items():
            if name == _OPTIONAL and f"{name}.npy" not in archive.namelist():
                continue
            found_shape, found_dtype = array_header(archive, f"{name}.npy")
            if found_shape != shape or found_dtype != dtype:
                return f"{name} is {found_dtype} {found_shape}, not {dtype} {shape}"
    return None


def _fault(trace: RoutingTrace, arrays: TraceArrays) -> str | None:
    """The first way in which ``arrays`` cannot be those of ``trace``."""
    tokens = trace.tokens
    for choices in (arrays.experts, arrays.ahead):
        if choices is not None and choices.size and int(choices.max()) >= trace.experts:
            return f"names an expert beyond the {trace.experts} of the model"
    if tokens and int(arrays.phase.max()) > 1:
        return "phase is neither 0 (prefill) nor 1 (decode)"
    step = np.diff(arrays.sequence)
    if tokens and (int(arrays.position.min()) < 0 or int(step.min(initial=0)) < 0):
        return "sequence descends or position is negative"
    if bool((np.diff(arrays.position)[step == 0] <= 0).any()):
        return "position does not ascend inside a sequence"
    if len(np.unique(arrays.sequence)) != trace.sequences:
        return (
            f"holds {counted(len(np.unique(arrays.sequence)), 'sequence')}, not {trace.sequences}"
        )
    return _fault_of_sides(arrays)


def _fault_of_sides(arrays: TraceArrays) -> str | None:
    """Likewise, of a model with an encoder."""
    if not arrays.encoder:
        return None
    if arrays.ahead is not None:
        return "holds what routers say ahead, which nobody asks with an encoder"
    for column in range(arrays.experts.shape[1]):
        if arrays.experts[~arrays.met(column), column].any():
            return "names experts of a router that a token of the other side has not met"
    for phase, side in ((0, "encoder"), (1, "decoder")):
        if not np.isin(arrays.sequence, arrays.sequence[arrays.phase == phase]).all():
            return f"a sequence has no token of the {side}"
    return None


def popularity(arrays: TraceArrays, expert_count: int) -> npt.NDArray[np.float64]:
    """Share of choices that fall on each expert: [moe_layers, experts], rows sum to 1."""
    layers = arrays.experts.shape[1]
    counts = np.stack(
        [
            np.bincount(arrays.chosen(layer).ravel(), minlength=expert_count)
            for layer in range(layers)
        ]
    )
    shares: npt.NDArray[np.float64] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def coactivation(arrays: TraceArrays, expert_count: int) -> npt.NDArray[np.float64]:
    """P(f chosen in the next MoE layer / e chosen in this one): [moe_layers - 1, E, E].

    Klotski (arXiv 2502.06888), section 6: the correlation table. 0 from an encoder's last to a
    decoder's first, as no token meets both.
    """
    _, layers, _ = arrays.experts.shape
    table: npt.NDArray[np.float64] = np.zeros((max(layers - 1, 0), expert_count, expert_count))
    for layer in range(layers - 1):
        here, following = arrays.successive(layer)
        pairs = here[:, :, None].astype(np.int64) * expert_count + following[:, None, :]
        joint = np.bincount(pairs.ravel(), minlength=expert_count**2)
        chosen = np.bincount(here.ravel(), minlength=expert_count)
        table[layer] = joint.reshape(expert_count, expert_count) / np.maximum(chosen, 1)[:, None]
    return table
