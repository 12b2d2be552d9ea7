"""Exactly compressed blocks: exponents split off and entropy-coded, all other bits as they are.

Of a block's words (of the model's type) the exponents are one byte each, which zstandard codes;
signs and mantissas lie beside them uncoded, as they hardly shrink. So a block is

    the other byte of each word's upper half | its lower half (float32) | the coded exponents

with the exponents' length being what is left. In float16, where five bits of exponent do not fill
a byte, the word's upper byte is coded. A block that would not shrink is stored as it is, which its
length tells. Any bits come back as they were, whatever numbers they stand for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate
from queue import SimpleQueue
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from planner.memory import ALIGNMENT_BYTES, BLOCK_BYTES, DECODE_STEP_BYTES, DECODERS

__all__ = [
    "FORMAT",
    "Blocks",
    "Decoder",
    "DecodingError",
    "Expander",
    "Following",
    "block_count",
    "block_sizes",
    "encode_block",
]

FORMAT: Final = "exponents-zstd-1"
"""Name and version of what ``encode_block`` makes."""

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}

# long matches only, and few of them: exponents are as good as drawn one by one, and short repeats
# cost more to undo than they save
_PARAMETERS = {"compression_level": 1, "min_match": 7, "hash_log": 6}

Read = Callable[[int, int, memoryview], memoryview]
"""``(place, size, memory)``: read bytes of a unit's file into aligned memory; returns those."""

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]


class DecodingError(Exception):
    """A stored block is not what ``encode_block`` makes."""


def block_sizes(size_bytes: int, span_bytes: int) -> list[int]:
    """Bytes of each block of a unit; blocks begin anew every ``span_bytes``."""
    sizes = []
    for first in range(0, size_bytes, span_bytes):
        span = min(span_bytes, size_bytes - first)
        sizes += [min(BLOCK_BYTES, span - at) for at in range(0, span, BLOCK_BYTES)]
    return sizes


def block_count(size_bytes: int, span_bytes: int) -> int:
    """How many those are, without making them: a damaged index may ask for very many."""
    spans, rest = divmod(size_bytes, span_bytes)
    return spans * -(-span_bytes // BLOCK_BYTES) + -(-rest // BLOCK_BYTES)


def encode_block(data: bytes | bytearray | memoryview, dtype: str) -> bytes:
    """A block as it is stored: shorter than ``data``, or ``data`` itself.

    Parameters
    ----------
    data
        At most ``BLOCK_BYTES``.
    dtype
        Type of the words, as the model document names it.
    """
    plain = bytes(data)
    if len(plain) % _WIDTH[dtype]:
        return plain
    words = np.frombuffer(plain, "<u2")
    upper = words[1::2] if dtype == "float32" else words
    if dtype == "float16":
        coded, other = upper >> 8, upper & 0xFF
    else:
        coded, other = (upper >> 7) & 0xFF, ((upper >> 8) & 0x80) | (upper & 0x7F)
    parameters = zstandard.ZstdCompressionParameters(**_PARAMETERS)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(
        coded.astype(np.uint8).tobytes()
    )
    lower = words[0::2].tobytes() if dtype == "float32" else b""
    stored = other.astype(np.uint8).tobytes() + lower + frame
    return stored if len(stored) < len(plain) else plain


class Decoder:
    """Decodes blocks, in memory of its own that is made once: for one thread at a time."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        count = BLOCK_BYTES // _WIDTH[dtype]
        self._coded: Bytes = np.zeros(count, np.uint8)
        self._words: Words = np.zeros(count, np.uint16)
        self._block = memoryview(bytearray(BLOCK_BYTES))
        self._zstd = zstandard.ZstdDecompressor()

    def decode(self, stored: memoryview, size_bytes: int, part: slice, target: memoryview) -> None:
        """Decode a block of ``size_bytes`` and bring ``part`` of it to ``target``.

        Raises
        ------
        DecodingError
            If it is damaged in a way that shows; other damage only a checksum tells.
        """
        if len(stored) == size_bytes:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(stored, np.uint8)[part])
        elif len(target) == size_bytes:
            self._decode(stored, target)
        else:
            self._decode(stored, self._block[:size_bytes])
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(self._block, np.uint8)[part])

    def _decode(self, stored: memoryview, target: memoryview) -> None:
        count, rest = divmod(len(target), _WIDTH[self._dtype])
        if rest:
            raise DecodingError(f"{len(target)} bytes are no whole words of {self._dtype}")
        start = count * 3 if self._dtype == "float32" else count
        coded, words = self._coded[:count], self._words[:count]
        try:
            with self._zstd.stream_reader(stored[start:]) as reader:
                found = reader.readinto(coded.data)
                more = reader.read(1)
        except zstandard.ZstdError as error:
            raise DecodingError(str(error)) from error
        if found != count or more:
            raise DecodingError(f"{found} exponents instead of {count}")
        other = np.frombuffer(stored[:count], np.uint8)
        out: Words = np.frombuffer(target, "<u2")
        if self._dtype == "float16":
            np.left_shift(coded, np.uint16(8), out=out, dtype=np.uint16)
            np.bitwise_or(out, other, out=out)
        elif self._dtype == "bfloat16":
            self._merge(coded, other, out, words)
        else:
            # the upper half is a bfloat16; ``out`` is where its exponents are shifted
            self._merge(coded, other, words, out[:count])
            out[0::2] = np.frombuffer(stored[count:start], "<u2")
            out[1::2] = words

    @staticmethod
    def _merge(coded: Bytes, other: Bytes, out: Words, scratch: Words) -> None:
        # sign and mantissa twice, of which one sign and one mantissa are kept
        np.multiply(other, np.uint16(0x0101), out=out, dtype=np.uint16)
        np.bitwise_and(out, np.uint16(0x807F), out=out)
        np.left_shift(coded, np.uint16(7), out=scratch, dtype=np.uint16)
        np.bitwise_or(out, scratch, out=out)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Where the blocks of one unit begin, in the unit and in the file (both from the unit's).

    Both have one entry more than there are blocks: where the last one ends.
    """

    dtype: str
    starts: tuple[int, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, dtype: str, sizes: list[int], stored: tuple[int, ...]) -> Blocks:
        """From the blocks' own sizes."""
        return cls(dtype, tuple(accumulate(sizes, initial=0)), tuple(accumulate(stored, initial=0)))

    def steps(self, first: int, last: int) -> Iterator[range]:
        """Blocks that hold bytes [first, last), in groups that are read at once.

        The last group is short, so that little is left to decode when all is read; so is the first,
        which is read while what came before is left to decode, and must not outlast that.
        """
        begin = index = bisect_right(self.starts, first) - 1
        end = bisect_right(self.starts, last - 1)
        while index < end:
            stop = bisect_right(self.places, self.places[index] + DECODE_STEP_BYTES) - 1
            stop = max(min(stop, end), index + 1)
            if index == begin and end - index > 2 * DECODERS:
                stop = min(stop, index + DECODERS)
            elif stop == end and end - index > DECODERS + 1:
                stop = end - DECODERS
            yield range(index, stop)
            index = stop


class Following(NamedTuple):
    """What is likely asked for next: bytes [first, last) of a unit, and how its file is read."""

    blocks: Blocks
    first: int
    last: int
    read: Read


class _Ahead(NamedTuple):
    """A step that was read before it was asked for, and in which half of the buffer it lies."""

    blocks: Blocks
    step: range
    half: int
    stored: memoryview


class Expander:
    """Reads blocks and decodes those before meanwhile, in threads of its own.

    All reads are made by the caller's thread. A step's blocks are shared out among the decoders.
    While the last step of a part is decoded, the first one of what follows is read, of the same
    unit or of another, so that one part after the other takes the longer of reading and decoding,
    not both. Where something else is asked for then, it was read in vain.
    """

    def __init__(self, dtype: str) -> None:
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="moeplan-decode")
        self._free: SimpleQueue[Decoder] = SimpleQueue()
        for _ in range(DECODERS):
            self._free.put(Decoder(dtype))
        self._ahead: _Ahead | None = None

    def forget(self) -> None:
        """What was read ahead is there no more: others need the buffer."""
        self._ahead = None

    def expand(
        self,
        blocks: Blocks,
        first: int,
        last: int,
        target: memoryview,
        buffer: memoryview,
        read: Read,
        following: Callable[[], Following | None] = lambda: None,
    ) -> None:
        """Bring bytes [first, last) of a unit to ``target``.

        Parameters
        ----------
        blocks
            The unit's.
        target
            As long as what it is to hold.
        buffer
            Memory of two steps.
        read
            Reads the unit's file.
        following
            Asked once all of this is read: what may be read ahead.

        Raises
        ------
        DecodingError
            If a block is damaged.
        """
        size = len(buffer) // 2 // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        halves = buffer[:size], buffer[size : 2 * size]
        decoding: list[list[Future[None]]] = [[], []]
        ahead, self._ahead = self._ahead, None
        half = 0

        def fetch(blocks: Blocks, step: range, read: Read) -> memoryview:
            _settle(decoding[half])
            begin = blocks.places[step.start]
            return read(begin, blocks.places[step.stop] - begin, halves[half])

        try:
            for step in blocks.steps(first, last):
                if ahead is not None and (ahead.blocks, ahead.step) == (blocks, step):
                    half, stored = ahead.half, ahead.stored
                else:
                    stored = fetch(blocks, step, read)
                ahead = None
                decoding[half] = [
                    self._threads.submit(self._decode, blocks, step, number, stored, first, target)
                    for number in range(min(DECODERS, len(step)))
                ]
                half = 1 - half
            then = following()
            if then is not None:
                step = next(then.blocks.steps(then.first, then.last))
                stored = fetch(then.blocks, step, then.read)
                self._ahead = _Ahead(then.blocks, step, half, stored)
        finally:
            # nothing writes to a slot that is given back
            wait([*decoding[0], *decoding[1]])
        for shares in decoding:
            _settle(shares)

    def _decode(
        self,
        blocks: Blocks,
        step: range,
        number: int,
        stored: memoryview,
        first: int,
        target: memoryview,
    ) -> None:
        """One decoder's share of a step."""
        decoder, begin = self._free.get(), blocks.places[step.start]
        try:
            for index in step[number::DECODERS]:
                start, end = blocks.starts[index], blocks.starts[index + 1]
                low, high = max(start, first), min(end, first + len(target))
                decoder.decode(
                    stored[blocks.places[index] - begin : blocks.places[index + 1] - begin],
                    end - start,
                    slice(low - start, high - start),
                    target[low - first : high - first],
                )
        finally:
            self._free.put(decoder)


def _settle(tasks: list[Future[None]]) -> None:
    """Take tasks off the list as they end; raise the first failure.

    An error holds the frames that it went through, which must not hold it.
    """
    while tasks:
        tasks.pop(0).result()
