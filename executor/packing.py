"""``pack``: rewrite a checkpoint into a store. Crash-safe, resumable, verified by checksum."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from executor.direct import DirectFile
from executor.layout import UnitLayout, unit_layouts
from executor.store import (
    DATA_FILE,
    INDEX_FILE,
    JOURNAL_FILE,
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
from planner.memory import aligned
from solvers.errors import CheckpointError, RunError, StaleError

__all__ = ["StoreSummary", "pack", "verify_store"]

_BATCH_BYTES = 64 << 20
_SLICE_BYTES = 8 << 20
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


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


def pack(
    checkpoint: Path, store: Path, progress: Callable[[int, int], None] | None = None
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
        Called with bytes done and bytes in all.

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
        ensure_verified(store, index)
        return StoreSummary(
            store, index.fingerprint, fingerprint, index.data_bytes, len(layouts), len(layouts)
        )
    try:
        store.mkdir(parents=True, exist_ok=True)
        foreign = {path.name for path in store.iterdir()} - {DATA_FILE, JOURNAL_FILE}
    except OSError as error:
        raise CheckpointError(f"{store}: cannot be used as a store: {error.strerror}") from error
    foreign = {name for name in foreign if not name.startswith(f".{INDEX_FILE}.")}
    if foreign or (exists(store / DATA_FILE) and not exists(store / JOURNAL_FILE)):
        raise CheckpointError(f"{store}: holds other files; name a new folder for the store")
    try:
        return _Packing(source, layouts, store, progress).run()
    except OSError as error:
        raise RunError(f"{store}: packing failed: {error.strerror or error}") from error


class _Packing:
    """One call of ``pack`` on a folder that is no finished store."""

    def __init__(
        self,
        source: Checkpoint,
        layouts: dict[str, UnitLayout],
        store: Path,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._source = source
        self._layouts = list(layouts.values())
        self._offsets, self._size_bytes = place_units(layouts)
        self._store = store
        self._progress = progress
        self._header = canonical_json(
            {
                "version": 1,
                "checkpoint_fingerprint": source.model.fingerprint,
                "units": len(layouts),
                "data_bytes": self._size_bytes,
            }
        )

    def run(self) -> StoreSummary:
        with open(self._store / JOURNAL_FILE, "a+b") as journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{self._store}: another 'pack' is at work on it") from None
            sums = self._resume(journal.fileno())
            reused = len(sums)
            free = shutil.disk_usage(self._store).free
            done = sum(aligned(unit.size_bytes) for unit in self._layouts[:reused])
            if free < self._size_bytes - done:
                raise RunError(
                    f"{self._store}: {self._size_bytes - done} bytes are needed, {free} are free"
                )
            data = os.open(self._store / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                while len(sums) < len(self._layouts):
                    batch = self._next_batch(len(sums))
                    written = [self._write(data, unit) for unit in batch]
                    os.fsync(data)
                    self._read_back(batch, written)
                    sums += written
                    lines = "".join(f"{value}\n" for value in written)
                    _write_whole(journal.fileno(), lines.encode())
                    os.fsync(journal.fileno())
                    self._report(len(sums))
                os.ftruncate(data, self._size_bytes)
                os.fsync(data)
            finally:
                os.close(data)
            index = self._index(sums)
            state = Verified.of(self._store, index)
            write_document(index, self._store / INDEX_FILE)
            if not reused:  # what lay there while nobody looked is read by the next command
                remember(self._store, state)
            with suppress(FileNotFoundError):
                os.unlink(self._store / JOURNAL_FILE)
        return StoreSummary(
            self._store,
            index.fingerprint,
            self._source.model.fingerprint,
            self._size_bytes,
            len(sums),
            reused,
        )

    def _resume(self, journal: int) -> list[str]:
        """Checksums of the units that an earlier run wrote and verified."""
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
                f"{self._store}: holds a half-packed store of another checkpoint; "
                "name a new folder or delete it",
            )
        sums = list(takewhile(_CHECKSUM.fullmatch, whole[1 : len(self._layouts) + 1]))
        os.ftruncate(journal, len(self._header) + 1 + sum(len(value) + 1 for value in sums))
        return sums

    def _next_batch(self, first: int) -> list[UnitLayout]:
        batch: list[UnitLayout] = []
        size = 0
        for unit in self._layouts[first:]:
            size += unit.size_bytes
            batch.append(unit)
            if size >= _BATCH_BYTES:
                break
        return batch

    def _write(self, data: int, unit: UnitLayout) -> str:
        digest = hashlib.blake2b(digest_size=16)
        position = self._offsets[unit.name]
        start = position
        for place, entry in zip(unit.places, unit.sources, strict=True):
            gap = start + place.offset_bytes - position
            if gap:
                zeros = bytes(gap)
                digest.update(zeros)
                position += _write_whole(data, zeros, position)
            with open(entry.file, "rb") as file:
                file.seek(entry.offset_bytes)
                left = entry.size_bytes
                while left:
                    part = file.read(min(left, _SLICE_BYTES))
                    if not part:
                        raise CheckpointError(f"{entry.file}: ends inside {entry.name}")
                    digest.update(part)
                    position += _write_whole(data, part, position)
                    left -= len(part)
                os.posix_fadvise(
                    file.fileno(), entry.offset_bytes, entry.size_bytes, os.POSIX_FADV_DONTNEED
                )
        padding = start + aligned(unit.size_bytes) - position
        _write_whole(data, bytes(padding), position)
        return digest.hexdigest()

    def _read_back(self, batch: list[UnitLayout], sums: list[str]) -> None:
        os_file = DirectFile(self._store / DATA_FILE)
        try:
            for unit, expected in zip(batch, sums, strict=True):
                if digest(os_file, self._offsets[unit.name], unit.size_bytes) != expected:
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

    def _index(self, sums: list[str]) -> StoreIndex:
        return StoreIndex(
            checkpoint_fingerprint=self._source.model.fingerprint,
            data_file=DATA_FILE,
            data_bytes=self._size_bytes,
            units=tuple(
                StoreUnit(
                    unit.name,
                    self._offsets[unit.name],
                    unit.size_bytes,
                    value,
                    tuple(
                        StoreTensor(p.role, p.dtype, p.shape, p.offset_bytes, p.size_bytes)
                        for p in unit.places
                    ),
                )
                for unit, value in zip(self._layouts, sums, strict=True)
            ),
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
