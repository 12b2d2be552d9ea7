"""The packed store: every unit contiguous and aligned, so that one direct read fetches one expert.

A store is a folder with ``store.json`` and one data file. ``store.json`` appears last, so a folder
without it is no store yet.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import le
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from executor.blocks import Blocks, block_count, block_sizes
from executor.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    UnitLayout,
    expert_name,
    form_name,
    form_of,
    is_raw,
    quantized_layouts,
    raw_name,
    with_forms,
    with_raw,
)
from planner.documents import (
    OWN,
    Document,
    ExpertForm,
    ModelSpec,
    QuantizedExperts,
    StoredShares,
    load_document,
)
from planner.documents.base import STRICT, Added, Bytes, Hash, Positive, canonical_json, to_json
from planner.documents.model import Parts
from planner.files import exists, is_dir, is_file
from planner.memory import BLOCK_BYTES, aligned
from solvers.errors import CheckpointError, DocumentError, StaleError

__all__ = [
    "DATA_FILE",
    "INDEX_FILE",
    "JOURNAL_FILE",
    "Compression",
    "StoreIndex",
    "StoreTensor",
    "StoreUnit",
    "checksum",
    "load_index",
    "never_compressed",
    "place_units",
    "store_tensors",
    "stored_forms",
    "stored_shares",
]

INDEX_FILE = "store.json"
DATA_FILE = "weights.bin"
JOURNAL_FILE = "pack.journal"

_PLAIN_UNITS = frozenset((EMBEDDING, FINAL_NORM))

_ENDLESS = 1 << 62

Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class StoreTensor:
    """One tensor of a unit; its offset counts from the unit's."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    role: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: Bytes
    size_bytes: Bytes


@dataclass(frozen=True, slots=True)
class StoreUnit:
    """One unit of a store.

    ``offset_bytes`` is a multiple of 4,096 and the file is padded to the next one, ``checksum``
    is BLAKE2b (16 bytes) of the unit without its padding. ``blocks`` are the bytes that each block
    of a compressed unit has in the file; its size, tensors and checksum are of what they decode to.
    ``error_ppb`` is how far off the weights of an expert are that is there in a quantized form
    beside its own (``planner.documents.model.ExpertForm``).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    offset_bytes: Bytes
    size_bytes: Bytes
    checksum: Checksum
    tensors: tuple[StoreTensor, ...]
    blocks: tuple[Bytes, ...] = ()
    error_ppb: Added[Parts] = None

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file, without padding."""
        return sum(self.blocks) if self.blocks else self.size_bytes


@dataclass(frozen=True, slots=True)
class Compression:
    """How a store's compressed units were made: see ``executor.blocks``.

    ``head_tile_bytes`` are those of a head tile, at whose beginnings the head's blocks begin.
    ``both`` says that each expert is there as it is, too: a unit of its own, with the same
    checksum (``executor.layout.with_raw``).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    format: Literal["exponents-zstd-1"]
    dtype: Literal["float32", "bfloat16", "float16"]
    block_bytes: Positive
    head_tile_bytes: Positive
    both: Added[Literal[True]] = None

    def span_bytes(self, name: str) -> int:
        """After so many bytes a unit's blocks begin anew."""
        return self.head_tile_bytes if name == HEAD else _ENDLESS

    def blocks(self, name: str, size_bytes: int, stored: tuple[int, ...]) -> Blocks:
        """A unit's blocks, from the bytes that each has in the file."""
        return Blocks.of(self.dtype, block_sizes(size_bytes, self.span_bytes(name)), stored)


@dataclass(frozen=True)
class StoreIndex(Document):
    """What a store holds and which checkpoint it was made from.

    ``quantized``: all experts are; ``forms``: each expert is there as in the checkpoint and, in a
    unit of its own, in each of these.
    """

    kind: ClassVar[str] = "store"

    checkpoint_fingerprint: Hash
    data_file: str
    data_bytes: Bytes
    units: tuple[StoreUnit, ...]
    compression: Compression | None = None
    quantized: Added[QuantizedExperts] = None
    forms: Added[tuple[QuantizedExperts, ...]] = None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the index, and through its checksums of all weights."""
        value = to_json(self)
        # as it was before stores could be compressed
        for unit in value["units"]:
            if not unit["blocks"]:
                del unit["blocks"]
        if self.compression is None:
            del value["compression"]
        return hashlib.sha256(canonical_json(value).encode()).hexdigest()

    @property
    def compress(self) -> Literal["none", "exact", "both"]:
        """As ``pack`` was asked to compress."""
        if self.compression is None:
            return "none"
        return "both" if self.compression.both else "exact"

    def blocks(self, unit: StoreUnit) -> Blocks | None:
        """A compressed unit's blocks; None where it lies there as it is."""
        if self.compression is None or not unit.blocks:
            return None
        return self.compression.blocks(unit.name, unit.size_bytes, unit.blocks)


def checksum(data: bytes | bytearray | memoryview) -> str:
    """BLAKE2b of 16 bytes, in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def never_compressed(name: str) -> bool:
    """Whether a unit stays as it is: the embedding is read row by row, the final norm is small, and
    a second unit of an expert is there for that."""
    return name in _PLAIN_UNITS or is_raw(name)


def place_units(stored_bytes: Iterable[int]) -> tuple[list[int], int]:
    """Offset of each unit in the data file, from the bytes that it has there; the file's size."""
    *offsets, end = accumulate(map(aligned, stored_bytes), initial=0)
    return offsets, end


def store_tensors(unit: UnitLayout) -> tuple[StoreTensor, ...]:
    """What an index says of a unit's tensors."""
    return tuple(
        StoreTensor(place.role, place.dtype, place.shape, place.offset_bytes, place.size_bytes)
        for place in unit.places
    )


def load_index(
    store: Path, layouts: dict[str, UnitLayout], model: ModelSpec
) -> tuple[StoreIndex, dict[str, UnitLayout]]:
    """Read a store's index and hold it against the checkpoint it is used with.

    Parameters
    ----------
    layouts, model
        The checkpoint's.

    Returns
    -------
    tuple
        The index, and the layouts of the store's units.

    Raises
    ------
    CheckpointError
        If the folder is no finished store, or damaged.
    StaleError
        If it was packed from another checkpoint.
    """
    if not is_dir(store):
        raise CheckpointError(
            f"{store}: no such store: name its folder, or make one with 'moeplan pack'"
        )
    if not exists(store / INDEX_FILE):
        state = "half-packed" if exists(store / JOURNAL_FILE) else "not a store"
        raise CheckpointError(
            f"{store}: {state} (no {INDEX_FILE}); run 'moeplan pack' to make or finish it"
        )
    try:
        index = load_document(StoreIndex, store / INDEX_FILE)
    except DocumentError as error:
        raise CheckpointError(f"{error}; pack the checkpoint again into a new folder") from error
    if index.checkpoint_fingerprint != model.fingerprint:
        raise StaleError("store", f"{store}: was packed from another checkpoint; pack this one")
    data = store / index.data_file
    if Path(index.data_file).name != index.data_file or not is_file(data):
        raise CheckpointError(f"{data}: missing; pack the checkpoint again into a new folder")
    if data.stat().st_size != index.data_bytes:
        raise CheckpointError(
            f"{data}: {data.stat().st_size} bytes, not {index.data_bytes}; "
            "pack the checkpoint again into a new folder"
        )
    if index.quantized is not None:
        layouts = quantized_layouts(layouts, model, index.quantized)
    if index.compress == "both":
        layouts = with_raw(layouts)
    if index.forms is not None:
        layouts = with_forms(layouts, model, index.forms)
    offsets, size = place_units(unit.stored_bytes for unit in index.units)
    if (
        [unit.name for unit in index.units] != list(layouts)
        or [unit.offset_bytes for unit in index.units] != offsets
        or [unit.size_bytes for unit in index.units] != [u.size_bytes for u in layouts.values()]
        or [unit.tensors for unit in index.units] != [*map(store_tensors, layouts.values())]
        or size != index.data_bytes
        or not all(_blocks_fit(index, unit, model.dtype) for unit in index.units)
        or not _raw_fit(index)
        or not _forms_fit(index)
    ):
        raise CheckpointError(
            f"{store / INDEX_FILE}: does not describe the checkpoint's units; "
            "pack the checkpoint again into a new folder"
        )
    return index, layouts


def _blocks_fit(index: StoreIndex, unit: StoreUnit, dtype: str) -> bool:
    """Whether as many blocks are there as the unit has, none longer than what it decodes to."""
    compression = index.compression
    if not unit.blocks:
        return True
    if (
        index.quantized is not None
        or compression is None
        or compression.block_bytes != BLOCK_BYTES
        or compression.dtype != dtype
        or never_compressed(unit.name)
    ):
        return False
    shape = unit.size_bytes, compression.span_bytes(unit.name)
    if block_count(*shape) != len(unit.blocks):
        return False
    return all(map(le, unit.blocks, block_sizes(*shape)))


def _raw_fit(index: StoreIndex) -> bool:
    """Whether what is there twice is said to be the same."""
    sums = {raw_name(unit.name): unit.checksum for unit in index.units}
    return all(unit.checksum == sums[unit.name] for unit in index.units if is_raw(unit.name))


def _forms_fit(index: StoreIndex) -> bool:
    """Whether forms stand alone, and their units, and no others, have errors."""
    if index.forms is not None:
        names = [how.format for how in index.forms]
        if index.quantized or index.compression or not names or len(set(names)) != len(names):
            return False
    return all(
        (unit.error_ppb is not None) == (form_of(unit.name)[0] != OWN) for unit in index.units
    )


def stored_forms(index: StoreIndex | None, model: ModelSpec) -> tuple[ExpertForm, ...] | None:
    """Quantized forms beside the checkpoint's own; None where there are none."""
    if index is None or index.forms is None:
        return None
    units = {unit.name: unit for unit in index.units}
    found = []
    for how in index.forms:
        own = [
            [units[form_name(expert_name(layer.index, one), how.format)] for one in range(count)]
            for layer in model.layers
            for count in (layer.experts,)
        ]
        sizes = tuple(some[0].size_bytes if some else 0 for some in own)
        errors = tuple(tuple(unit.error_ppb or 0 for unit in some) for some in own)
        found.append(ExpertForm(how, sizes, errors))
    return tuple(found)


def stored_shares(index: StoreIndex | None) -> StoredShares | None:
    """Bytes in the file for each byte of the units of a kind; None where nothing is compressed."""
    if index is None or index.compression is None:
        return None
    whole, stored = Counter[str](), Counter[str]()
    for unit in index.units:
        kind = unit.name.partition(".")[0]
        whole[kind] += unit.size_bytes
        stored[kind] += unit.stored_bytes

    def share(kind: str) -> float:
        return stored[kind] / whole[kind] if whole[kind] else 1.0

    return StoredShares(share("dense"), share("expert"), share("head"))
