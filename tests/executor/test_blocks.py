"""Blocks bring back every bit, whatever it stands for."""

from __future__ import annotations

import struct
import threading
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.blocks import (
    Blocks,
    Decoder,
    DecodingError,
    Expander,
    Following,
    block_sizes,
    encode_block,
)
from planner.memory import ALIGNMENT_BYTES, BLOCK_BYTES, DECODE_STEP_BYTES, DECODERS
from solvers.errors import RunError

DTYPES = ("float32", "bfloat16", "float16")
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
DECODERS_OF = {dtype: Decoder(dtype) for dtype in DTYPES}


def decoded(stored: bytes, size: int, dtype: str, part: slice | None = None) -> bytes:
    part = part or slice(0, size)
    target = memoryview(bytearray(part.stop - part.start))
    DECODERS_OF[dtype].decode(memoryview(stored), size, part, target)
    return bytes(target)


def weights(dtype: str, count: int, seed: int = 0) -> bytes:
    """Normally distributed numbers, as trained and random weights nearly are."""
    values = np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype(dtype).tobytes()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.one_of(
        st.binary(max_size=600),
        # few different bytes: what shrinks most
        st.lists(st.sampled_from([0x00, 0x3C, 0x7F, 0x80, 0xFF]), max_size=600).map(bytes),
        st.lists(
            st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38]), max_size=200
        ).map(lambda values: np.array(values, np.float32).tobytes()),
    ),
    st.integers(1, 300),
    st.data(),
)
def test_any_bits_come_back(dtype: str, piece: bytes, times: int, data: st.DataObject) -> None:
    plain = (piece * times)[:BLOCK_BYTES]
    stored = encode_block(plain, dtype)
    assert len(stored) <= len(plain)
    assert decoded(stored, len(plain), dtype) == plain
    first = data.draw(st.integers(0, len(plain)))
    last = data.draw(st.integers(first, len(plain)))
    assert decoded(stored, len(plain), dtype, slice(first, last)) == plain[first:last]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_word_comes_back(dtype: str) -> None:
    """All 65,536 of them, each next to ordinary ones, so that the block is coded."""
    plain = np.arange(1 << 16, dtype="<u2").tobytes()
    for first in range(0, len(plain), BLOCK_BYTES // 8):
        some = plain[first : first + BLOCK_BYTES // 8] + weights(dtype, BLOCK_BYTES // 4, first)
        stored = encode_block(some, dtype)
        assert len(stored) < len(some)
        assert decoded(stored, len(some), dtype) == some


def test_special_float32_come_back() -> None:
    special = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF]
    special += [0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF]
    plain = weights("float32", 4000) + struct.pack(f"<{len(special)}I", *special)
    stored = encode_block(plain, "float32")
    assert len(stored) < len(plain)
    assert decoded(stored, len(plain), "float32") == plain


@pytest.mark.parametrize("dtype", DTYPES)
def test_size_is_near_the_entropy(dtype: str) -> None:
    """A normal variable's exponent carries 2.55 bits whatever its scale; in float16 what is coded
    is the upper byte, with the sign and two bits of the mantissa."""
    plain = weights(dtype, BLOCK_BYTES // WIDTH[dtype])
    share = len(encode_block(plain, dtype)) / len(plain)
    bits = {"bfloat16": 2.55 + 8, "float32": 2.55 + 24}.get(dtype)
    if bits is None:
        _, counts = np.unique(np.frombuffer(plain, np.uint8)[1::2], return_counts=True)
        odds = counts / counts.sum()
        bits = float(-(odds * np.log2(odds)).sum()) + 8
    least = bits / (8 * WIDTH[dtype])
    assert least * 0.99 < share < least * 1.03


def test_damage_that_shows_is_told() -> None:
    plain = weights("bfloat16", 5000)
    stored = encode_block(plain, "bfloat16")
    short = stored[:5000] + zstandard.compress(bytes(4999))
    long = stored[:5000] + zstandard.compress(bytes(5001))
    for wrong in (stored[:-3], stored[:5000], stored[:5000] + b"no frame", short, long):
        with pytest.raises(DecodingError):
            decoded(wrong, len(plain), "bfloat16")


class Stored:
    """A unit's blocks in memory, and the sizes of all reads of them."""

    def __init__(self, unit: bytes, dtype: str, span: int) -> None:
        sizes = block_sizes(len(unit), span)
        assert sum(sizes) == len(unit)
        ends = list(accumulate(sizes))
        self.stored = [
            encode_block(unit[end - size : end], dtype)
            for size, end in zip(sizes, ends, strict=True)
        ]
        self.blocks = Blocks.of(dtype, sizes, tuple(map(len, self.stored)))
        self.buffer = memoryview(bytearray(2 * (DECODE_STEP_BYTES + 2 * ALIGNMENT_BYTES)))
        self.reads: list[int] = []
        self._file = memoryview(b"".join(self.stored))

    def read(self, place: int, count: int, memory: memoryview) -> memoryview:
        self.reads.append(count)
        memory[:count] = self._file[place : place + count]
        return memory[:count]

    def then(self, first: int, last: int) -> Following | None:
        return Following(self.blocks, first, last, self.read) if first < last else None


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_expander_brings_any_part(data: st.DataObject) -> None:
    """Of a unit of many blocks, some of which do not shrink; in steps, by two threads."""
    dtype = data.draw(st.sampled_from(DTYPES))
    size = data.draw(st.integers(1, 12 * BLOCK_BYTES)) // 4 * 4 + 4
    span = data.draw(st.sampled_from([1 << 62, 3 * BLOCK_BYTES + 4 * 97]))
    noise = np.random.default_rng(size).bytes(BLOCK_BYTES)
    unit = (noise + weights(dtype, size // WIDTH[dtype]))[:size]
    file = Stored(unit, dtype, span)
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first + 1, size))
    target = memoryview(bytearray(last - first))
    expander = Expander(dtype)
    expander.expand(file.blocks, first, last, target, file.buffer, file.read)
    assert bytes(target) == unit[first:last]
    assert max(file.reads) <= DECODE_STEP_BYTES
    # every byte is read once: no more than the blocks that are touched
    assert sum(file.reads) <= last - first + 2 * BLOCK_BYTES

    # in parts one after another, with others in between: what is read ahead is the next part's
    part = data.draw(st.integers(1, 5)) * BLOCK_BYTES
    whole = memoryview(bytearray(size))
    for begin in range(0, size, part):
        stop = min(begin + part, size)
        expander.expand(
            file.blocks, begin, stop, whole[begin:stop], file.buffer, file.read,
            lambda stop=stop: file.then(stop, min(stop + part, size)),
        )  # fmt: skip
        if data.draw(st.booleans()):
            expander.expand(file.blocks, first, last, target, file.buffer, file.read)
            assert bytes(target) == unit[first:last]
    assert bytes(whole) == unit


def test_what_was_read_ahead_is_not_read_again() -> None:
    size, half = 20 * BLOCK_BYTES, 10 * BLOCK_BYTES
    unit = weights("bfloat16", size // 2)
    file = Stored(unit, "bfloat16", size)
    expander, target = Expander("bfloat16"), memoryview(bytearray(size))
    expander.expand(
        file.blocks, 0, half, target[:half], file.buffer, file.read, lambda: file.then(half, size)
    )
    # the first step of the next part: as many blocks as there are decoders
    assert sum(file.reads) == sum(map(len, file.stored[: 10 + DECODERS]))
    expander.expand(file.blocks, half, size, target[half:], file.buffer, file.read)
    assert sum(file.reads) == sum(map(len, file.stored))
    assert bytes(target) == unit


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_the_next_unit_is_read_while_one_is_decoded(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step's decoders wait until the next unit's first step is being read; that is read
    once. Of one that does not come nothing is left."""
    size = blocks * BLOCK_BYTES
    units = [weights("bfloat16", size // 2, seed) for seed in range(3)]
    files = [Stored(unit, "bfloat16", size) for unit in units]
    buffer = files[0].buffer
    begun = threading.Event()
    decode = Decoder.decode

    def late(self: Decoder, stored: memoryview, *rest: Any) -> None:
        if bytes(stored) == files[0].stored[-1]:
            assert begun.wait(60), "nothing was read meanwhile"
        decode(self, stored, *rest)

    monkeypatch.setattr(Decoder, "decode", late)

    def read(place: int, count: int, memory: memoryview) -> memoryview:
        begun.set()
        return files[1].read(place, count, memory)

    expander, targets = Expander("bfloat16"), [memoryview(bytearray(size)) for _ in units]
    ahead = Following(files[1].blocks, 0, size, read)
    expander.expand(files[0].blocks, 0, size, targets[0], buffer, files[0].read, lambda: ahead)
    assert bytes(targets[0]) == units[0]
    first = files[1].reads[0]
    assert files[1].reads == [first]
    assert first == sum(map(len, files[1].stored[: min(DECODERS, blocks)]))
    expander.expand(
        files[1].blocks, 0, size, targets[1], buffer, files[1].read, lambda: files[0].then(0, size)
    )
    assert sum(files[1].reads) == sum(map(len, files[1].stored))
    # not the unit that was expected
    expander.expand(files[2].blocks, 0, size, targets[2], buffer, files[2].read)
    assert sum(files[2].reads) == sum(map(len, files[2].stored))
    expander.expand(files[0].blocks, 0, size, targets[0], buffer, files[0].read)
    assert [bytes(target) for target in targets] == units


def test_an_error_ahead_leaves_what_is_decoded_whole() -> None:
    """A read ahead that fails ends the copy with its own error, when nothing writes any more."""
    size = 6 * BLOCK_BYTES
    file = Stored(weights("bfloat16", size // 2), "bfloat16", size)
    expander, target = Expander("bfloat16"), memoryview(bytearray(size))

    def broken(place: int, count: int, memory: memoryview) -> memoryview:
        raise RunError("no disk")

    ahead = Following(file.blocks, 0, size, broken)
    with pytest.raises(RunError, match="no disk"):
        expander.expand(file.blocks, 0, size, target, file.buffer, file.read, lambda: ahead)
    whole = bytes(target)
    expander.expand(file.blocks, 0, size, target, file.buffer, file.read)
    assert bytes(target) == whole


@pytest.mark.parametrize("first", [0, 20])
def test_an_error_of_a_block_holds_nothing(first: int, helpers: Any) -> None:
    """Damaged from block ``first`` on: found at the end, or while more is read."""
    size = 40 * BLOCK_BYTES
    file = Stored(weights("bfloat16", size // 2), "bfloat16", size)
    expander, target = Expander("bfloat16"), memoryview(bytearray(size))

    def read(place: int, count: int, memory: memoryview) -> memoryview:
        part = file.read(place, count, memory)
        if place >= file.blocks.places[first]:
            part[:] = bytes(count)
        return part

    def expand() -> None:
        expander.expand(file.blocks, 0, size, target, file.buffer, read)

    assert helpers.freed(DecodingError, expand)
