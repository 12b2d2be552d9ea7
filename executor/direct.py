"""Reads that bypass the page cache, so that a memory budget means what it says.

A file is opened with O_DIRECT where its file system allows it, and read in whole blocks into
page-aligned memory. Elsewhere it is read through the page cache and the pages are dropped after
each read. A reader can be paced to a bandwidth: it really reads, then waits.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from executor.blocks import Blocks, DecodingError, Expander, Following
from planner.memory import ALIGNMENT_BYTES
from solvers.errors import CheckpointError, RunError

__all__ = [
    "STALL_SECONDS",
    "DirectFile",
    "Pacer",
    "Part",
    "Piece",
    "ReadBuffer",
    "ReadInto",
    "UnitReader",
    "preadv",
]

STALL_SECONDS = 60.0
"""A read that takes longer will not come back: the disk hangs."""

_STALLS = 4
"""Short reads in a row that bring no whole block, before a read is given up."""

ReadInto = Callable[[int, memoryview, int], int]


def preadv(descriptor: int, target: memoryview, offset: int) -> int:
    """Read into memory without holding the interpreter's lock."""
    return os.preadv(descriptor, [target], offset)


class Pacer:
    """Holds reads to a bandwidth; ``None`` lets them run free.

    Reads of one link share one pacer. Idle time earns no credit beyond 2 ms, which covers late
    wake-ups.
    """

    _CREDIT_NS = 2_000_000

    def __init__(self, bytes_per_second: int | None) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at_ns = 0
        self._lock = threading.Lock()

    def wait(self, started_ns: int, size_bytes: int) -> None:
        """Wait until a read of ``size_bytes`` begun at ``started_ns`` may end."""
        if self.bytes_per_second is None:
            return
        with self._lock:
            begin = max(self._free_at_ns, started_ns - self._CREDIT_NS)
            self._free_at_ns = begin + size_bytes * 1_000_000_000 // self.bytes_per_second
            remaining = self._free_at_ns - time.perf_counter_ns()
        if remaining > 0:
            time.sleep(remaining / 1e9)


class DirectFile:
    """One file open for direct reads.

    Attributes
    ----------
    direct
        False where the file system refuses O_DIRECT.
    """

    def __init__(self, path: Path, read_into: ReadInto = preadv) -> None:
        self.path = path
        self._read_into = read_into
        self.direct = True
        try:
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self.direct = False
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from error
        self.size_bytes = os.fstat(self._descriptor).st_size

    def read(self, target: memoryview, offset: int, needed: int) -> None:
        """Read whole blocks from ``offset`` into ``target``; ``needed`` bytes must arrive.

        Raises
        ------
        RunError
            On a read error or the end of the file.
        """
        done = stalled = 0
        while done < needed:
            try:
                count = self._read_into(self._descriptor, target[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise RunError(
                    f"{self.path}: reading {needed} bytes at {offset} failed: {error.strerror}"
                ) from error
            reached = done + count
            if count > 0 and reached < needed:
                # direct reads are of whole blocks: after a short one, the last block comes again
                reached -= reached % ALIGNMENT_BYTES
            stalled = stalled + 1 if reached == done else 0
            if count <= 0 or stalled == _STALLS:
                raise RunError(
                    f"{self.path}: no more than {done} of {needed} bytes at {offset} could be "
                    "read; was the file cut short during the run?"
                )
            done = reached
        if not self.direct:
            os.posix_fadvise(self._descriptor, offset, done, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ReadBuffer:
    """Page-aligned memory through which unaligned bytes reach their place."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._map = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory = memoryview(self._map)


@dataclass(frozen=True, slots=True)
class Piece:
    """``size_bytes`` at ``offset_bytes`` of a file, which belong at ``unit_offset_bytes``.

    With ``blocks`` they are what decoding them brings, from byte ``skip_bytes`` on.
    """

    file: int
    offset_bytes: int
    unit_offset_bytes: int
    size_bytes: int
    blocks: Blocks | None = None
    skip_bytes: int = 0


class Part(NamedTuple):
    """``size_bytes`` of a unit from ``offset_bytes`` on, and where they lie in the files."""

    pieces: tuple[Piece, ...]
    offset_bytes: int
    size_bytes: int


class UnitReader:
    """Reads parts of units, each made of pieces of files.

    Parameters
    ----------
    files
        What ``Piece.file`` counts in.
    buffer
        For pieces that do not lie at block boundaries.
    pacer
        Shared with whatever else reads from the same disk.
    """

    def __init__(self, files: list[DirectFile], buffer: ReadBuffer, pacer: Pacer) -> None:
        self._files = files
        self._buffer = buffer
        self._pacer = pacer
        self._expander: Expander | None = None
        self.bytes_read = 0

    def read(
        self,
        pieces: tuple[Piece, ...],
        target: memoryview,
        offset: int,
        size_bytes: int,
        following: Callable[[], Part | None] | None = None,
    ) -> None:
        """Read bytes [offset, offset + size) of a unit into the same place of ``target``.

        ``target`` starts at a page boundary and is as long as the unit rounded up to a block.
        ``following`` is asked once these bytes are read: what will be read next, of which some is
        read while these are decoded. It need not come so. If not given, the unit's next part is.
        """
        end = offset + size_bytes
        if following is None:
            following = partial(Part, pieces, end, size_bytes)
        for piece in pieces:
            first = max(offset, piece.unit_offset_bytes)
            last = min(end, piece.unit_offset_bytes + piece.size_bytes)
            if first < last and piece.blocks is not None:
                self._expand(piece, piece.blocks, target[first:last], first, following)
            elif first < last:
                at = piece.offset_bytes + first - piece.unit_offset_bytes
                self._read_span(self._files[piece.file], at, target, first, last - first)

    def blocks(self, piece: Piece, memory: memoryview) -> memoryview:
        """Read the blocks that hold ``piece`` into aligned ``memory``; its bytes therein."""
        started = time.perf_counter_ns()
        skip = piece.offset_bytes % ALIGNMENT_BYTES
        whole = -(-(skip + piece.size_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        file = self._files[piece.file]
        file.read(memory[:whole], piece.offset_bytes - skip, skip + piece.size_bytes)
        self._account(started, whole)
        return memory[skip : skip + piece.size_bytes]

    def _expand(
        self,
        piece: Piece,
        blocks: Blocks,
        target: memoryview,
        first: int,
        following: Callable[[], Part | None],
    ) -> None:
        if self._expander is None:
            self._expander = Expander(blocks.dtype)
        start = piece.skip_bytes + first - piece.unit_offset_bytes
        read = partial(self._blocks_at, piece)

        def then() -> Following | None:
            part = following()
            return None if part is None else self._following(part)

        try:
            self._expander.expand(
                blocks, start, start + len(target), target, self._buffer.memory, read, then
            )
        except DecodingError as error:
            raise CheckpointError(
                f"{self._files[piece.file].path}: compressed weights at {piece.offset_bytes} "
                f"cannot be decoded ({error}); pack the checkpoint again into a new folder"
            ) from error

    def _blocks_at(self, piece: Piece, place: int, size: int, memory: memoryview) -> memoryview:
        return self.blocks(Piece(piece.file, piece.offset_bytes + place, 0, size), memory)

    def _following(self, part: Part) -> Following | None:
        """A part's first blocks; None where it does not begin with any."""
        end = part.offset_bytes + part.size_bytes
        for piece in part.pieces:
            first = max(part.offset_bytes, piece.unit_offset_bytes)
            last = min(end, piece.unit_offset_bytes + piece.size_bytes)
            if first >= last:
                continue
            if piece.blocks is None:
                return None
            shift = piece.skip_bytes - piece.unit_offset_bytes
            read = partial(self._blocks_at, piece)
            return Following(piece.blocks, first + shift, last + shift, read)
        return None

    def _read_span(
        self, file: DirectFile, at: int, target: memoryview, begin: int, size_bytes: int
    ) -> None:
        whole = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if not (at % ALIGNMENT_BYTES or begin % ALIGNMENT_BYTES) and begin + whole <= len(target):
            started = time.perf_counter_ns()
            file.read(target[begin : begin + whole], at, size_bytes)
            self._account(started, whole)
            return
        if self._expander is not None:
            # what it has read ahead lies where these bytes come now
            self._expander.forget()
        done = 0
        while done < size_bytes:
            skip = (at + done) % ALIGNMENT_BYTES
            part = min(size_bytes - done, self._buffer.size_bytes - skip)
            blocks = -(-(skip + part) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if blocks > self._buffer.size_bytes:
                blocks -= ALIGNMENT_BYTES
                part = blocks - skip
            started = time.perf_counter_ns()
            file.read(self._buffer.memory[:blocks], at + done - skip, skip + part)
            _move(target, begin + done, self._buffer.memory, skip, part)
            self._account(started, blocks)
            done += part

    def _account(self, started_ns: int, size_bytes: int) -> None:
        self.bytes_read += size_bytes
        self._pacer.wait(started_ns, size_bytes)


def _move(target: memoryview, begin: int, source: memoryview, skip: int, size_bytes: int) -> None:
    """Copy bytes without holding the interpreter's lock."""
    if size_bytes < 1 << 16:
        target[begin : begin + size_bytes] = source[skip : skip + size_bytes]
        return
    to = ctypes.addressof(ctypes.c_char.from_buffer(target)) + begin
    frm = ctypes.addressof(ctypes.c_char.from_buffer(source)) + skip
    ctypes.memmove(to, frm, size_bytes)
