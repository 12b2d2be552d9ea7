"""A store's bytes are held against their checksums once, and again after any change of the file.

``verified.json`` beside the data says in which state the file was read and found right: its size
and the times of its last changes; and the same of the checkpoint's files that it was held against.
A copied, restored, changed or damaged file has others, and is read whole once more; so a run pays
for checksums only where something has happened.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from executor.blocks import Blocks, Decoder, DecodingError
from executor.direct import DirectFile, ReadBuffer
from executor.layout import UnitLayout
from executor.same_source import SourceFile, check_source, made_checksum, source_files
from executor.store import StoreIndex
from planner.checkpoint import Checkpoint
from planner.documents import Document, load_document, write_document
from planner.documents.base import Added, Bytes, Hash, Nanoseconds
from planner.memory import ALIGNMENT_BYTES, BLOCK_BYTES, aligned
from solvers.errors import CheckpointError, DocumentError

__all__ = [
    "VERIFIED_FILE",
    "Verified",
    "digest",
    "ensure_verified",
    "remember",
    "row_checksums",
    "verify_units",
]

_log = logging.getLogger(__name__)

VERIFIED_FILE = "verified.json"
_SLICE_BYTES = 8 << 20
_LONG_BYTES = 1 << 30
"""More takes seconds to read, which a user should know the reason of."""


@dataclass(frozen=True)
class Verified(Document):
    """The state of a store's data in which it was right, and that of its checkpoint's files."""

    kind: ClassVar[str] = "verified"

    store_fingerprint: Hash
    size_bytes: Bytes
    modified_ns: Nanoseconds
    changed_ns: Nanoseconds
    sources: Added[tuple[SourceFile, ...]] = None

    @classmethod
    def of(cls, store: Path, index: StoreIndex, sources: tuple[SourceFile, ...]) -> Verified:
        """The state now."""
        state = (store / index.data_file).stat()
        return cls(index.fingerprint, state.st_size, state.st_mtime_ns, state.st_ctime_ns, sources)


def ensure_verified(
    store: Path,
    index: StoreIndex,
    source: Checkpoint,
    plain: dict[str, UnitLayout],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Read a store whole if its data was not verified in the state in which it is.

    So is the checkpoint, if it was not found to be what the store holds in the state in which it
    is. ``plain`` are its units as ``unit_layouts`` has them.

    Raises
    ------
    CheckpointError
        Naming the first unit that differs from its checksum.
    StaleError
        Naming the first unit that is another in the checkpoint.
    """
    state = Verified.of(store, index, source_files(plain.values()))
    level = logging.WARNING if index.data_bytes >= _LONG_BYTES else logging.INFO
    try:
        known = load_document(Verified, store / VERIFIED_FILE)
    except DocumentError:
        known = None
        _log.log(
            level, "moeplan: %s was not verified yet: it and its checkpoint are read once", store
        )
    if known == state:
        return
    if known is None or replace(known, sources=state.sources) != state:
        if known is not None:
            _log.log(level, "moeplan: %s was copied or changed: all of it is verified again", store)
        verify_units(store, index, progress)
    same = (state.store_fingerprint, state.sources)
    if known is None or (known.store_fingerprint, known.sources) != same:
        if known is not None:
            text = "moeplan: %s is held against its checkpoint, whose files were copied or changed"
            _log.log(level, text, store)
        check_source(source, plain, store, index, progress)
    remember(store, state)


def remember(store: Path, state: Verified) -> None:
    """Write down that the store was right in this state, where its folder can be written to."""
    try:
        write_document(state, store / VERIFIED_FILE)
    except DocumentError as error:
        _log.info("%s; the store will be verified again by the next command", error)


def verify_units(
    store: Path, index: StoreIndex, progress: Callable[[int, int], None] | None = None
) -> None:
    """Hold every unit against its checksum.

    Raises
    ------
    CheckpointError
        Naming the first unit that differs.
    """
    file = DirectFile(store / index.data_file)
    try:
        for unit in index.units:
            found = digest(file, unit.offset_bytes, unit.size_bytes, index.blocks(unit))
            if found != unit.checksum:
                raise CheckpointError(
                    f"{file.path}: {unit.name} does not match its checksum; "
                    "pack the checkpoint again into a new folder"
                )
            if progress is not None:
                progress(unit.offset_bytes + aligned(unit.stored_bytes), index.data_bytes)
    finally:
        file.close()


def digest(file: DirectFile, offset: int, size_bytes: int, blocks: Blocks | None = None) -> str:
    """Checksum of bytes on the disk, read past the page cache; of what ``blocks`` decode to.

    Blocks that cannot be decoded have none that any unit has.
    """
    try:
        return made_checksum(_contents(file, offset, size_bytes, blocks))
    except DecodingError:
        return ""


def row_checksums(
    file: DirectFile, offset: int, size_bytes: int, rows: int, blocks: Blocks | None = None
) -> tuple[str, npt.NDArray[np.uint32]]:
    """Checksum of a matrix on the disk, and CRC-32 of each of its rows, from one reading.

    A store has a checksum for the whole of it only, and a run reads some rows at a time.
    """
    found = hashlib.blake2b(digest_size=16)
    row_bytes = size_bytes // rows
    sums = np.zeros(rows, np.uint32)
    row = done = value = 0
    for part in _contents(file, offset, size_bytes, blocks):
        found.update(part)
        at = 0
        while at < len(part):
            some = part[at : at + row_bytes - done]
            value = zlib.crc32(some, value)
            at, done = at + len(some), done + len(some)
            if done == row_bytes:
                sums[row] = value
                row, done, value = row + 1, 0, 0
    return found.hexdigest(), sums


def _contents(
    file: DirectFile, offset: int, size_bytes: int, blocks: Blocks | None
) -> Iterator[memoryview]:
    """A unit's bytes in order, decoded where they are compressed."""
    if blocks is None:
        yield from _slices(file, offset, size_bytes)
        return
    decoder = Decoder(blocks.dtype)
    target = memoryview(bytearray(BLOCK_BYTES))
    # a step's blocks at least, and what shares its first and last sector
    memory = ReadBuffer(_SLICE_BYTES).memory
    for step in blocks.steps(0, size_bytes):
        begin = blocks.places[step.start]
        skip = (offset + begin) % ALIGNMENT_BYTES
        needed = skip + blocks.places[step.stop] - begin
        file.read(memory[: aligned(needed)], offset + begin - skip, needed)
        for index in step:
            size = blocks.starts[index + 1] - blocks.starts[index]
            first, last = (blocks.places[at] - begin + skip for at in (index, index + 1))
            decoder.decode(memory[first:last], size, slice(0, size), target[:size])
            yield target[:size]


def _slices(file: DirectFile, offset: int, size_bytes: int) -> Iterator[memoryview]:
    # never closed by hand: Control-C leaves slices of it in frames, and closing would then fail
    memory = ReadBuffer(_SLICE_BYTES).memory
    done = 0
    while done < size_bytes:
        part = min(size_bytes - done, _SLICE_BYTES)
        file.read(memory[: aligned(part)], offset + done, part)
        yield memory[:part]
        done += part
