"""``pack``: rewrite a checkpoint into a store. Crash-safe, resumable, verified by checksum."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from executor.blocks import FORMAT, block_sizes, encode_block
from executor.compressing import Compress, contents, worth_compressing
from executor.direct import DirectFile
from executor.layout import UnitLayout, unit_layouts
from executor.store import (
    DATA_FILE,
    INDEX_FILE,
    JOURNAL_FILE,
    PLAIN_UNITS,
    Compression,
    StoreIndex,
    StoreTensor,
    StoreUnit,
    load_index,
    place_units,
)
from executor.verified import Verified, digest, ensure_verified, remember, verify_units
from planner.checkpoint import Checkpoint, read_checkpoint
from planner.documents import canonical_json, write_document
from planner.files import exists
from planner.memory import BLOCK_BYTES, aligned, default_head_tiling
from solvers.errors import CheckpointError, RunError, StaleError, UnsupportedError

__all__ = ["StoreSummary", "pack", "verify_store"]

_BATCH_BYTES = 64 << 20
_JOURNALLED = re.compile(r"[0-9a-f]{32}(?: [1-9][0-9]{0,8})*")


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What ``pack`` did.

    ``reused_units`` were already there and verified, from a run that was interrupted.
    """

    store: Path
    fingerprint: str
    checkpoint_fingerprint: str
    size_bytes: int
    units: int
    reused_units: int
    weights_bytes: int
    compressed: bool
    notes: tuple[str, ...] = ()


class _Written(NamedTuple):
    """A unit in the data file: its checksum and, where it is compressed, its blocks' bytes."""

    checksum: str
    blocks: tuple[int, ...]

    @property
    def line(self) -> str:
        """What the journal says of it."""
        return " ".join((self.checksum, *map(str, self.blocks)))

    @classmethod
    def of(cls, line: str) -> _Written:
        """The inverse of ``line``."""
        found, *blocks = line.split(" ")
        return cls(found, tuple(map(int, blocks)))


def pack(
    checkpoint: Path,
    store: Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    compress: Compress = "none",
) -> StoreSummary:
    """Rewrite ``checkpoint`` into ``store``.

    Units are written in batches; each batch is synced to the disk, read back past the page cache
    and held against its checksums before the journal names it. After a crash the same call goes on
    behind the last unit that the journal names. ``store.json`` appears at the end, in one step.

    Parameters
    ----------
    checkpoint
        Folder of a checkpoint.
    store
        Folder to make; it may not exist, be empty, or hold a store of the same checkpoint.
    progress
        Called with bytes of weights done and bytes in all.
    compress
        ``exact``: dense parts, experts and the head become blocks that decode to the same bits;
        ``auto``: so they do where that makes copies faster on this machine, by measured times of
        reading and decoding some experts.

    Raises
    ------
    CheckpointError
        If the checkpoint or a store that is there is damaged, or the folder holds something else.
    StaleError
        If the folder holds a store of another checkpoint.
    RunError
        If the disk fails or is full, or another ``pack`` is at work on the folder.
    """
    source = read_checkpoint(checkpoint)
    layouts = unit_layouts(source)
    fingerprint = source.model.fingerprint
    if exists(store / INDEX_FILE):
        index = load_index(store, layouts, fingerprint)
        if compress != "auto" and (compress == "exact") != (index.compression is not None):
            have = "without" if index.compression is None else "with"
            raise CheckpointError(
                f"{store}: holds a finished store {have} compression; name a new folder"
            )
        ensure_verified(store, index)
        return _summary(store, index, len(layouts))
    try:
        store.mkdir(parents=True, exist_ok=True)
        foreign = {path.name for path in store.iterdir()} - {DATA_FILE, JOURNAL_FILE}
    except OSError as error:
        raise CheckpointError(f"{store}: cannot be used as a store: {error.strerror}") from error
    foreign = {name for name in foreign if not name.startswith(f".{INDEX_FILE}.")}
    if foreign or (exists(store / DATA_FILE) and not exists(store / JOURNAL_FILE)):
        raise CheckpointError(f"{store}: holds other files; name a new folder for the store")
    try:
        notes: tuple[str, ...] = ()
        begun = _begun(store)
        if compress == "auto" and begun is not None:
            notes = (f"goes on as it was begun: {'compressed' if begun else 'not compressed'}",)
            compress = "exact" if begun else "none"
        elif compress == "auto":
            pays, why = worth_compressing(source, layouts)
            notes, compress = (why,), "exact" if pays else "none"
        compression = _compression(source) if compress == "exact" else None
        summary = _Packing(source, layouts, store, compression, progress).run()
        return replace(summary, notes=notes)
    except OSError as error:
        raise RunError(f"{store}: packing failed: {error.strerror or error}") from error


def _stored_bytes(done: _Written, unit: UnitLayout) -> int:
    return sum(done.blocks) or unit.size_bytes


def _begun(store: Path) -> bool | None:
    """Whether a half-packed store is one of compressed units; None where nothing was begun."""
    if not exists(store / JOURNAL_FILE):
        return None
    with open(store / JOURNAL_FILE, "rb") as journal:
        line = journal.readline()
    return b'"compression"' in line if line.endswith(b"\n") else None


def _compression(source: Checkpoint) -> Compression:
    model = source.model
    if model.dtype == "float8":
        raise UnsupportedError(f"{model.name}: float8 weights cannot be compressed")
    rows, _ = default_head_tiling(model, model.dtype_bytes)
    return Compression(
        FORMAT, model.dtype, BLOCK_BYTES, rows * model.hidden_size * model.dtype_bytes
    )


def _summary(store: Path, index: StoreIndex, reused: int) -> StoreSummary:
    return StoreSummary(
        store,
        index.fingerprint,
        index.checkpoint_fingerprint,
        index.data_bytes,
        len(index.units),
        reused,
        sum(unit.size_bytes for unit in index.units),
        index.compression is not None,
    )


class _Packing:
    """One call of ``pack`` on a folder that is no finished store."""

    def __init__(
        self,
        source: Checkpoint,
        layouts: dict[str, UnitLayout],
        store: Path,
        compression: Compression | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._source = source
        self._layouts = list(layouts.values())
        self._compression = compression
        # of what is not compressed; it is the most that the store can have
        _, self._size_bytes = place_units(unit.size_bytes for unit in self._layouts)
        self._store = store
        self._progress = progress
        header: dict[str, object] = {
            "version": 1,
            "checkpoint_fingerprint": source.model.fingerprint,
            "units": len(layouts),
            "data_bytes": self._size_bytes,
        }
        if compression is not None:
            header["compression"] = asdict(compression)
        self._header = canonical_json(header)

    def run(self) -> StoreSummary:
        with open(self._store / JOURNAL_FILE, "a+b") as journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{self._store}: another 'pack' is at work on it") from None
            units = self._resume(journal.fileno())
            reused = len(units)
            _, position = place_units(map(_stored_bytes, units, self._layouts))
            free = shutil.disk_usage(self._store).free
            left = sum(aligned(unit.size_bytes) for unit in self._layouts[reused:])
            if free < left:
                most = "are needed" if self._compression is None else "may be needed"
                raise RunError(f"{self._store}: {left} bytes {most}, {free} are free")
            data = os.open(self._store / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                while len(units) < len(self._layouts):
                    batch, written, begin = self._next_batch(len(units)), [], position
                    for unit in batch:
                        written.append(self._write(data, unit, position))
                        position += aligned(_stored_bytes(written[-1], unit))
                    os.fsync(data)
                    self._read_back(batch, written, begin)
                    units += written
                    lines = "".join(f"{one.line}\n" for one in written)
                    _write_whole(journal.fileno(), lines.encode())
                    os.fsync(journal.fileno())
                    self._report(len(units))
                index = self._index(units)
                os.ftruncate(data, index.data_bytes)
                os.fsync(data)
            finally:
                os.close(data)
            state = Verified.of(self._store, index)
            write_document(index, self._store / INDEX_FILE)
            if not reused:  # what lay there while nobody looked is read by the next command
                remember(self._store, state)
            with suppress(FileNotFoundError):
                os.unlink(self._store / JOURNAL_FILE)
        return _summary(self._store, index, reused)

    def _resume(self, journal: int) -> list[_Written]:
        """The units that an earlier run wrote and verified."""
        text = os.pread(journal, os.fstat(journal).st_size, 0).decode("ascii", "replace")
        lines = text.split("\n")
        # what follows the last line end was being written when the earlier run was stopped
        whole = lines[:-1]
        if not whole:
            os.ftruncate(journal, 0)
            _write_whole(journal, (self._header + "\n").encode())
            os.fsync(journal)
            return []
        if whole[0] != self._header:
            raise StaleError(
                "store",
                f"{self._store}: holds a half-packed store of another checkpoint, or with other "
                "compression; name a new folder or delete it",
            )
        known = list(takewhile(_JOURNALLED.fullmatch, whole[1 : len(self._layouts) + 1]))
        os.ftruncate(journal, len(self._header) + 1 + sum(len(line) + 1 for line in known))
        return [_Written.of(line) for line in known]

    def _next_batch(self, first: int) -> list[UnitLayout]:
        batch: list[UnitLayout] = []
        size = 0
        for unit in self._layouts[first:]:
            size += unit.size_bytes
            batch.append(unit)
            if size >= _BATCH_BYTES:
                break
        return batch

    def _write(self, data: int, unit: UnitLayout, position: int) -> _Written:
        found = hashlib.blake2b(digest_size=16)
        blocks = []
        compression = self._compression_of(unit)
        for part in self._parts(unit, compression):
            found.update(part)
            if compression is not None:
                part = encode_block(part, compression.dtype)
                blocks.append(len(part))
            position += _write_whole(data, part, position)
        _write_whole(data, bytes(aligned(position) - position), position)
        if sum(blocks) == unit.size_bytes:
            # none has shrunk: it lies there as it is
            blocks.clear()
        return _Written(found.hexdigest(), tuple(blocks))

    def _compression_of(self, unit: UnitLayout) -> Compression | None:
        return None if unit.name in PLAIN_UNITS else self._compression

    @staticmethod
    def _parts(unit: UnitLayout, compression: Compression | None) -> Iterator[bytes]:
        """A unit's bytes: block by block where it is to be compressed."""
        if compression is None:
            yield from contents(unit)
            return
        sizes = iter(block_sizes(unit.size_bytes, compression.span_bytes(unit.name)))
        size, held = next(sizes, 0), bytearray()
        for part in contents(unit):
            held += part
            at = 0
            while size and len(held) - at >= size:
                yield bytes(held[at : at + size])
                at, size = at + size, next(sizes, 0)
            del held[:at]

    def _read_back(self, batch: list[UnitLayout], written: list[_Written], begin: int) -> None:
        os_file = DirectFile(self._store / DATA_FILE)
        offsets, _ = place_units(map(_stored_bytes, written, batch))
        try:
            for unit, done, offset in zip(batch, written, offsets, strict=True):
                blocks = None
                if self._compression is not None and done.blocks:
                    blocks = self._compression.blocks(unit.name, unit.size_bytes, done.blocks)
                if digest(os_file, begin + offset, unit.size_bytes, blocks) != done.checksum:
                    raise RunError(
                        f"{self._store / DATA_FILE}: {unit.name} reads back other bytes than "
                        "were written; the disk is at fault"
                    )
        finally:
            os_file.close()

    def _report(self, count: int) -> None:
        if self._progress is not None:
            done = sum(aligned(unit.size_bytes) for unit in self._layouts[:count])
            self._progress(done, self._size_bytes)

    def _index(self, units: list[_Written]) -> StoreIndex:
        offsets, size = place_units(map(_stored_bytes, units, self._layouts))
        return StoreIndex(
            checkpoint_fingerprint=self._source.model.fingerprint,
            data_file=DATA_FILE,
            data_bytes=size,
            units=tuple(
                StoreUnit(
                    unit.name,
                    offset,
                    unit.size_bytes,
                    done.checksum,
                    tuple(
                        StoreTensor(p.role, p.dtype, p.shape, p.offset_bytes, p.size_bytes)
                        for p in unit.places
                    ),
                    done.blocks,
                )
                for unit, done, offset in zip(self._layouts, units, offsets, strict=True)
            ),
            compression=self._compression,
        )


def verify_store(
    checkpoint: Path, store: Path, progress: Callable[[int, int], None] | None = None
) -> StoreIndex:
    """Read a whole store and hold every unit against its checksum.

    Raises
    ------
    CheckpointError
        Naming the first unit that differs.
    """
    source = read_checkpoint(checkpoint)
    index = load_index(store, unit_layouts(source), source.model.fingerprint)
    state = Verified.of(store, index)
    verify_units(store, index, progress)
    remember(store, state)
    return index


def _write_whole(descriptor: int, data: bytes, offset: int | None = None) -> int:
    """Write all of ``data`` (at ``offset``, or appended); returns its length."""
    done = 0
    while done < len(data):
        part = memoryview(data)[done:]
        if offset is None:
            done += os.write(descriptor, part)
        else:
            done += os.pwrite(descriptor, part, offset + done)
    return len(data)
