"""Safetensors headers, read and checked without any library.

A file is ``u64 little-endian n | n bytes of JSON | data``. The JSON names each tensor's type, shape
and place in the data. Everything is checked before it is believed: what a header says decides
where the executor's direct reads go.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.files import exists, is_file
from solvers.errors import CheckpointError

__all__ = ["DTYPE_BITS", "StoredTensor", "WeightFile", "read_weight_file", "sampled_digest"]

DTYPE_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
}
"""Bits of one value of each type that a safetensors header may name."""

_LARGEST_HEADER = 100_000_000  # the format's own limit
_MOST_DIMENSIONS = 16
_SAMPLES = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of one file; ``offset_bytes`` counts from the start of the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class WeightFile:
    """A file whose header was read and holds together.

    Attributes
    ----------
    path, size_bytes
        The file.
    data_offset
        Where the data begins.
    header
        The header's bytes as they stand in the file.
    tensors
        By name.
    metadata
        The header's free-form strings.
    """

    path: Path
    size_bytes: int
    data_offset: int
    header: bytes
    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]


def read_weight_file(path: Path) -> WeightFile:
    """Read and check the header of one safetensors file.

    Raises
    ------
    CheckpointError
        If the file is missing, unreadable, truncated, or its header does not hold together.
    """
    if exists(path) and not is_file(path):
        raise _fault(path, "cannot be read: is a folder, a device or a pipe")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            if len(start) < 8:
                raise _fault(path, f"truncated: {size} bytes are too few for a safetensors file")
            (length,) = struct.unpack("<Q", start)
            if length > _LARGEST_HEADER:
                raise _fault(path, f"not a safetensors file: its header would be {length} bytes")
            if 8 + length > size:
                raise _fault(path, f"truncated: its header is {length} bytes, the file only {size}")
            header = file.read(length)
    except FileNotFoundError:
        raise _fault(path, "no such file") from None
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror or error}") from error
    if len(header) < length:
        raise _fault(path, "truncated while it was read")
    body = _parse(path, header)
    metadata = body.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise _fault(path, "the header's __metadata__ is not a table of strings")
    data_offset = 8 + length
    tensors = {name: _tensor(path, name, entry, data_offset) for name, entry in body.items()}
    _check_places(path, tensors, data_offset, size)
    return WeightFile(path, size, data_offset, header, tensors, metadata)


def sampled_digest(file: WeightFile) -> bytes:
    """SHA-256 over name, size, header, and 64 blocks of 4 KiB spread evenly over the data.

    Raises
    ------
    CheckpointError
        If the file cannot be read any more.
    """
    digest = hashlib.sha256()
    digest.update(f"{file.path.name}\0{file.size_bytes}\0{len(file.header)}\0".encode())
    digest.update(file.header)
    span = max(file.size_bytes - file.data_offset - _SAMPLE_BYTES, 0)
    try:
        with file.path.open("rb", buffering=0) as stream:
            for index in range(_SAMPLES):
                place = file.data_offset + index * span // (_SAMPLES - 1)
                digest.update(os.pread(stream.fileno(), _SAMPLE_BYTES, place))
    except OSError as error:
        raise _fault(file.path, f"cannot be read: {error.strerror or error}") from error
    return digest.digest()


def _fault(path: Path, what: str) -> CheckpointError:
    # names come from outside: whatever they hold, the message stays one line
    return CheckpointError(" ".join(f"{path}: {what}".split()))


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        body = dict(pairs)
        if len(body) != len(pairs):
            raise ValueError("a name stands twice")
        return body

    def number(text: str) -> float:
        raise ValueError(f"{text[:20]} is not an integer")

    try:
        body = json.loads(
            header.decode("utf-8"),
            object_pairs_hook=once,
            parse_float=number,
            parse_constant=number,
        )
    except (ValueError, RecursionError) as error:
        raise _fault(path, f"its header is not valid: {error}") from error
    if not isinstance(body, dict):
        raise _fault(path, "its header is not a JSON object")
    return body


def _tensor(path: Path, name: str, entry: object, data_offset: int) -> StoredTensor:
    where = f"tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _fault(path, f"{where}: not exactly dtype, shape and data_offsets")
    dtype, shape, places = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _fault(path, f"{where}: dtype {str(dtype)[:40]!r} is unknown")
    if not _naturals(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _fault(path, f"{where}: its shape is not a short list of natural numbers")
    if not _naturals(places) or len(places) != 2:
        raise _fault(path, f"{where}: data_offsets is not a pair of natural numbers")
    begin, end = places
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    if begin > end or bits % 8 or end - begin != bits // 8:
        raise _fault(
            path,
            f"{where}: bytes {begin} to {end} do not hold {_show(shape)} values of {dtype}",
        )
    return StoredTensor(name, path, dtype, tuple(shape), data_offset + begin, end - begin)


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63
        for item in value
    )


def _show(shape: list[int]) -> str:
    return " x ".join(str(size) for size in shape) or "1"


def _check_places(
    path: Path, tensors: dict[str, StoredTensor], data_offset: int, size: int
) -> None:
    """Tensors follow one another without overlap or hole, up to the end of the file."""
    end, before = data_offset, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset_bytes, t.size_bytes)):
        if tensor.offset_bytes < end:
            raise _fault(path, f"tensor {tensor.name!r} overlaps {before}")
        if tensor.offset_bytes > end:
            hole = tensor.offset_bytes - end
            raise _fault(path, f"{hole} bytes before tensor {tensor.name!r} belong to no tensor")
        end, before = tensor.offset_bytes + tensor.size_bytes, f"tensor {tensor.name!r}"
        if end > size:
            raise _fault(
                path, f"truncated: tensor {tensor.name!r} ends at byte {end}, the file at {size}"
            )
    if end < size:
        raise _fault(path, f"{size - end} bytes after {before} belong to no tensor")
