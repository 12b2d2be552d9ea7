"""Whether exact compression pays on this machine: reading and decoding some experts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Literal, NamedTuple

from executor.blocks import Blocks, Expander, block_sizes, encode_block
from executor.direct import DirectFile, Pacer, Piece, ReadBuffer, UnitReader
from executor.layout import UnitLayout
from planner.checkpoint import Checkpoint
from planner.memory import ALIGNMENT_BYTES, DECODE_STEP_BYTES, aligned
from solvers.counting import counted
from solvers.errors import CheckpointError

__all__ = ["Compress", "contents", "worth_compressing"]

Compress = Literal["none", "exact", "both", "auto"]

_EXPERTS = 9
_MOST_BYTES = 512 << 20
_GAIN = 1.1
"""Less is not worth the processor's time: decoding takes it from computation."""

_SLICE_BYTES = 8 << 20


class _Sample(NamedTuple):
    """One expert: its bytes, those that it has as blocks, and how long reading and decoding take
    with nothing beside them."""

    size_bytes: int
    stored_bytes: int
    read_ns: int
    decode_ns: int


def worth_compressing(source: Checkpoint, layouts: dict[str, UnitLayout]) -> tuple[bool, str]:
    """Measure some experts: whether blocks would be there sooner, and the figures in words.

    Reads go past the page cache, as in a run. An expert's blocks take the longer of reading them
    and decoding them, since both go on at once.

    Raises
    ------
    RunError, CheckpointError
        If the checkpoint cannot be read (from ``UnitReader``).
    """
    experts = [unit for name, unit in layouts.items() if name.startswith("expert.")]
    if not experts:
        return False, "not compressed: there is no expert to measure"
    some = max(min(_EXPERTS, _MOST_BYTES // max(experts[0].size_bytes, 1), len(experts)), 1)
    chosen = [experts[number * len(experts) // some] for number in range(some)]
    expander = Expander(source.model.dtype)
    buffer = ReadBuffer(2 * (DECODE_STEP_BYTES + 2 * ALIGNMENT_BYTES))
    measured = [_measure(unit, source.model.dtype, expander, buffer) for unit in chosen]
    # the first meets cold code
    samples = measured[1:] or measured
    share = sum(one.stored_bytes for one in samples) / sum(one.size_bytes for one in samples)
    size = median(one.size_bytes for one in samples)
    read, decode = (
        median(getattr(one, what) / one.size_bytes for one in samples) * size
        for what in ("read_ns", "decode_ns")
    )
    gain = read / max(read * share, decode)
    pays = gain >= _GAIN
    verdict = "compressed" if pays else "not compressed"
    return pays, (
        f"{verdict}: an expert of {size / 1e6:.1f} MB would have {share:.0%} of its bytes; reading "
        f"it takes {read / 1e6:.1f} ms, reading that {read * share / 1e6:.1f}, decoding "
        f"{decode / 1e6:.1f} meanwhile (medians of {counted(len(samples), 'expert')})"
    )


def _measure(unit: UnitLayout, dtype: str, expander: Expander, buffer: ReadBuffer) -> _Sample:
    memory = ReadBuffer(aligned(unit.size_bytes)).memory
    files = [DirectFile(entry.file) for entry in unit.sources]
    try:
        reader = UnitReader(files, buffer, Pacer(None))
        pieces = tuple(
            Piece(number, entry.offset_bytes, place.offset_bytes, entry.size_bytes)
            for number, (place, entry) in enumerate(zip(unit.places, unit.sources, strict=True))
        )
        started = time.perf_counter_ns()
        reader.read(pieces, memory, 0, unit.size_bytes)
        read_ns = time.perf_counter_ns() - started
    finally:
        for file in files:
            file.close()
    sizes = block_sizes(unit.size_bytes, unit.size_bytes)
    stored, at = [], 0
    for size in sizes:
        stored.append(encode_block(memory[at : at + size], dtype))
        at += size
    whole = memoryview(b"".join(stored))
    blocks = Blocks.of(dtype, sizes, tuple(map(len, stored)))

    def copy(place: int, size: int, into: memoryview) -> memoryview:
        into[:size] = whole[place : place + size]
        return into[:size]

    started = time.perf_counter_ns()
    target = memory[: unit.size_bytes]
    expander.expand(blocks, 0, unit.size_bytes, target, buffer.memory, copy)
    decode_ns = time.perf_counter_ns() - started
    return _Sample(unit.size_bytes, len(whole), read_ns, decode_ns)


def contents(unit: UnitLayout) -> Iterator[bytes]:
    """A unit's bytes in order, from the checkpoint's files; zeros between its tensors.

    Raises
    ------
    CheckpointError
        If a file is shorter than it was.
    """
    position = 0
    for place, entry in zip(unit.places, unit.sources, strict=True):
        if place.offset_bytes > position:
            yield bytes(place.offset_bytes - position)
        with open(entry.file, "rb") as file:
            file.seek(entry.offset_bytes)
            left = entry.size_bytes
            while left:
                part = file.read(min(left, _SLICE_BYTES))
                if not part:
                    raise CheckpointError(f"{entry.file}: ends inside {entry.name}")
                yield part
                left -= len(part)
            os.posix_fadvise(
                file.fileno(), entry.offset_bytes, entry.size_bytes, os.POSIX_FADV_DONTNEED
            )
        position = place.offset_bytes + entry.size_bytes
