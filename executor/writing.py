"""Writing a store: batch by batch, read back, journalled, and gone on with after a crash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from executor.blocks import block_sizes, encode_block
from executor.direct import DirectFile
from executor.layout import UnitLayout, form_of, is_second
from executor.same_source import made_checksum, source_files
from executor.store import (
    DATA_FILE,
    INDEX_FILE,
    JOURNAL_FILE,
    Compression,
    StoreIndex,
    StoreUnit,
    never_compressed,
    place_units,
    store_tensors,
)
from executor.verified import Verified, digest, remember
from planner.documents import QuantizedExperts, canonical_json, write_document
from planner.files import exists
from planner.memory import aligned
from solvers.errors import RunError, StaleError

__all__ = ["Contents", "StoreSummary", "Writing", "summary_of"]

_BATCH_BYTES = 64 << 20
_JOURNALLED = re.compile(r"[0-9a-f]{32}(?: [1-9][0-9]{0,8})*")

Contents = Callable[[UnitLayout], Iterator[bytes]]
"""A unit's bytes in order."""


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What ``pack`` did.

    ``reused_units`` were already there and verified, from a run that was interrupted. ``both``:
    experts lie there as they are, too; ``weights_bytes`` counts them once.
    ``relative_error`` is of the quantized experts' weights: the root of the squared errors' sum
    over that of the weights; None where nothing was quantized, or not all of it by this call.
    ``form_errors``: where experts are there in several forms, the mean of such errors of single
    experts for each quantized form.
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
    both: bool = False
    quantized: QuantizedExperts | None = None
    relative_error: float | None = None
    form_errors: dict[str, float] = field(default_factory=dict)


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


def _stored_bytes(done: _Written, unit: UnitLayout) -> int:
    return sum(done.blocks) or unit.size_bytes


def summary_of(store: Path, index: StoreIndex, reused: int) -> StoreSummary:
    """What is to be said of a finished store."""
    return StoreSummary(
        store,
        index.fingerprint,
        index.checkpoint_fingerprint,
        index.data_bytes,
        len(index.units),
        reused,
        sum(unit.size_bytes for unit in index.units if not is_second(unit.name)),
        index.compression is not None,
        both=index.compress == "both",
        quantized=index.quantized,
        form_errors=_form_errors(index),
    )


def _form_errors(index: StoreIndex) -> dict[str, float]:
    found: dict[str, float] = {}
    for how in index.forms or ():
        errors = [one.error_ppb or 0 for one in index.units if form_of(one.name)[0] == how.format]
        found[how.format] = sum(errors) / len(errors) / 1e9 if errors else 0.0
    return found


def _without_error(name: str) -> None:
    """No unit is off."""


class Writing:
    """One call of ``pack`` on a folder that is no finished store."""

    def __init__(
        self,
        checkpoint_fingerprint: str,
        layouts: dict[str, UnitLayout],
        contents: Contents,
        store: Path,
        compression: Compression | None,
        quantized: QuantizedExperts | None,
        progress: Callable[[int, int], None] | None,
        forms: tuple[QuantizedExperts, ...] | None = None,
        error_ppb: Callable[[str], int | None] = _without_error,
    ) -> None:
        self._fingerprint, self._contents = checkpoint_fingerprint, contents
        self._quantized, self._forms, self._error_ppb = quantized, forms, error_ppb
        self._layouts = list(layouts.values())
        self._compression = compression
        # of what is not compressed; it is the most that the store can have
        offsets, self._size_bytes = place_units(unit.size_bytes for unit in self._layouts)
        self._done_bytes = [*offsets, self._size_bytes]
        self._store = store
        self._progress = progress
        header: dict[str, object] = {
            "version": 1,
            "checkpoint_fingerprint": checkpoint_fingerprint,
            "units": len(layouts),
            "data_bytes": self._size_bytes,
        }
        if compression is not None:
            # half-packed stores from before know of no ``both``
            header["compression"] = {
                name: value for name, value in asdict(compression).items() if value is not None
            }
        if quantized is not None:
            header["quantized"] = asdict(quantized)
        if forms is not None:
            header["forms"] = [asdict(how) for how in forms]
        self._header = canonical_json(header)

    def run(self) -> StoreSummary:
        """Write what is not there yet."""
        with open(self._store / JOURNAL_FILE, "a+b", opener=_open_own) as journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{self._store}: another 'pack' is at work on it") from None
            if exists(self._store / INDEX_FILE):
                # it came after this call had looked: what is finished is not written over
                os.unlink(self._store / JOURNAL_FILE)
                raise RunError(
                    f"{self._store}: another 'pack' has just finished it; give the command again"
                )
            sources = source_files(self._layouts)
            units = self._resume(journal.fileno())
            reused = len(units)
            _, position = place_units(map(_stored_bytes, units, self._layouts))
            free = shutil.disk_usage(self._store).free
            left = self._size_bytes - self._done_bytes[reused]
            if free < left:
                most = "are needed" if self._compression is None else "may be needed"
                raise RunError(f"{self._store}: {left} bytes {most}, {free} are free")
            data = _open_own(self._store / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
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
            if source_files(self._layouts) != sources:
                raise RunError(
                    f"{self._store}: the checkpoint was changed while it was packed; pack it again"
                )
            state = Verified.of(self._store, index, sources)
            write_document(index, self._store / INDEX_FILE)
            if not reused:  # what lay there while nobody looked is read by the next command
                remember(self._store, state)
            with suppress(FileNotFoundError):
                os.unlink(self._store / JOURNAL_FILE)
        return summary_of(self._store, index, reused)

    def _resume(self, journal: int) -> list[_Written]:
        """The units that an earlier run wrote and verified, and that the checkpoint still has."""
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
                "compression or quantization; name a new folder or delete it",
            )
        known = takewhile(_JOURNALLED.fullmatch, whole[1 : len(self._layouts) + 1])
        units: list[_Written] = []
        for unit, written in zip(self._layouts, map(_Written.of, known), strict=False):
            # the checkpoint may have been changed between its fingerprint's samples
            if made_checksum(self._contents(unit)) != written.checksum:
                break
            units.append(written)
            self._report(len(units))
        kept = sum(len(one.line) + 1 for one in units)
        os.ftruncate(journal, len(self._header) + 1 + kept)
        return units

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
        return None if never_compressed(unit.name) else self._compression

    def _parts(self, unit: UnitLayout, compression: Compression | None) -> Iterator[bytes]:
        """A unit's bytes: block by block where it is to be compressed."""
        if compression is None:
            yield from self._contents(unit)
            return
        sizes = iter(block_sizes(unit.size_bytes, compression.span_bytes(unit.name)))
        size, held = next(sizes, 0), bytearray()
        for part in self._contents(unit):
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
            self._progress(self._done_bytes[count], self._size_bytes)

    def _index(self, units: list[_Written]) -> StoreIndex:
        offsets, size = place_units(map(_stored_bytes, units, self._layouts))
        return StoreIndex(
            checkpoint_fingerprint=self._fingerprint,
            data_file=DATA_FILE,
            data_bytes=size,
            units=tuple(
                StoreUnit(
                    unit.name,
                    offset,
                    unit.size_bytes,
                    done.checksum,
                    store_tensors(unit),
                    done.blocks,
                    self._error_ppb(unit.name),
                )
                for unit, done, offset in zip(self._layouts, units, offsets, strict=True)
            ),
            compression=self._compression,
            quantized=self._quantized,
            forms=self._forms,
        )


def _open_own(path: str | Path, flags: int) -> int:
    """Open a file of the store: a link in its place may lead to a file of somebody else's."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


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
