"""The packed store: every unit contiguous and aligned, so that one direct read fetches one expert.

A store is a folder with ``store.json`` and one data file. ``store.json`` appears last, so a folder
without it is no store yet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from executor.layout import UnitLayout
from planner.documents import Document, document_hash, load_document
from planner.documents.base import STRICT, Bytes, Hash
from planner.files import exists, is_dir, is_file
from planner.memory import aligned
from solvers.errors import CheckpointError, DocumentError, StaleError

__all__ = [
    "DATA_FILE",
    "INDEX_FILE",
    "JOURNAL_FILE",
    "StoreIndex",
    "StoreTensor",
    "StoreUnit",
    "checksum",
    "load_index",
    "place_units",
]

INDEX_FILE = "store.json"
DATA_FILE = "weights.bin"
JOURNAL_FILE = "pack.journal"

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
    is BLAKE2b (16 bytes) of the unit without its padding.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    offset_bytes: Bytes
    size_bytes: Bytes
    checksum: Checksum
    tensors: tuple[StoreTensor, ...]


@dataclass(frozen=True)
class StoreIndex(Document):
    """What a store holds and which checkpoint it was made from."""

    kind: ClassVar[str] = "store"

    checkpoint_fingerprint: Hash
    data_file: str
    data_bytes: Bytes
    units: tuple[StoreUnit, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the index, and through its checksums of all weights."""
        return document_hash(self)


def checksum(data: bytes | bytearray | memoryview) -> str:
    """BLAKE2b of 16 bytes, in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def place_units(layouts: dict[str, UnitLayout]) -> tuple[dict[str, int], int]:
    """Offset of each unit in the data file, and the file's size."""
    offsets: dict[str, int] = {}
    end = 0
    for name, layout in layouts.items():
        offsets[name] = end
        end += aligned(layout.size_bytes)
    return offsets, end


def load_index(store: Path, layouts: dict[str, UnitLayout], fingerprint: str) -> StoreIndex:
    """Read a store's index and hold it against the checkpoint it is used with.

    Raises
    ------
    CheckpointError
        If the folder is no finished store, or damaged.
    StaleError
        If it was packed from another checkpoint.
    """
    if not is_dir(store):
        raise CheckpointError(f"{store}: no such store; make one with 'moeplan pack'")
    if not exists(store / INDEX_FILE):
        state = "half-packed" if exists(store / JOURNAL_FILE) else "not a store"
        raise CheckpointError(
            f"{store}: {state} (no {INDEX_FILE}); run 'moeplan pack' to make or finish it"
        )
    try:
        index = load_document(StoreIndex, store / INDEX_FILE)
    except DocumentError as error:
        raise CheckpointError(f"{error}; pack the checkpoint again into a new folder") from error
    if index.checkpoint_fingerprint != fingerprint:
        raise StaleError("store", f"{store}: was packed from another checkpoint; pack this one")
    data = store / index.data_file
    if Path(index.data_file).name != index.data_file or not is_file(data):
        raise CheckpointError(f"{data}: missing; pack the checkpoint again into a new folder")
    if data.stat().st_size != index.data_bytes:
        raise CheckpointError(
            f"{data}: {data.stat().st_size} bytes, not {index.data_bytes}; "
            "pack the checkpoint again into a new folder"
        )
    offsets, size = place_units(layouts)
    if (
        [unit.name for unit in index.units] != list(layouts)
        or [unit.offset_bytes for unit in index.units] != list(offsets.values())
        or [unit.size_bytes for unit in index.units] != [u.size_bytes for u in layouts.values()]
        or size != index.data_bytes
    ):
        raise CheckpointError(
            f"{store / INDEX_FILE}: does not describe the checkpoint's units; "
            "pack the checkpoint again into a new folder"
        )
    return index
