"""Direct reads: any span of a file, with and without O_DIRECT, at any pace."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.direct import DirectFile, Pacer, Piece, ReadBuffer, UnitReader
from solvers.errors import CheckpointError

SIZE = 70_001
DATA = bytes((i * 7 + i // 256) % 256 for i in range(SIZE))


def page_aligned(size_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, max(-(-size_bytes // 4096) * 4096, 4096)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectFile]:
    path = tmp_path_factory.mktemp("direct") / "data"
    path.write_bytes(DATA)
    opened = DirectFile(path)
    yield opened
    opened.close()


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    cuts=st.lists(st.integers(0, SIZE - 1), min_size=2, max_size=7, unique=True),
    gap=st.sampled_from([0, 1, 64, 4096]),
    chunk_blocks=st.integers(1, 5),
    buffer_blocks=st.integers(2, 4),
)
def test_any_pieces(
    file: DirectFile, cuts: list[int], gap: int, chunk_blocks: int, buffer_blocks: int
) -> None:
    """Pieces of any place and length, put one after another with gaps, read chunk by chunk."""
    pieces = []
    want = bytearray()
    for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
        first, size = min(start, stop), abs(stop - start)
        want += bytes(gap)
        pieces.append(Piece(0, first, len(want), size))
        want += DATA[first : first + size]
    target = page_aligned(len(want))
    reader = UnitReader([file], ReadBuffer(buffer_blocks * 4096), Pacer(None))
    step = chunk_blocks * 4096
    for offset in range(0, len(want), step):
        reader.read(tuple(pieces), target, offset, min(step, len(want) - offset))
    for piece in pieces:
        begin, end = piece.unit_offset_bytes, piece.unit_offset_bytes + piece.size_bytes
        assert target[begin:end] == want[begin:end]


def test_file_system_without_direct_reads(
    monkeypatch: pytest.MonkeyPatch, file: DirectFile
) -> None:
    """Then pages are dropped after each read, and the file says so."""
    plain_open = os.open
    dropped = []

    def refuse(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return plain_open(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: dropped.append(arguments))
    other = DirectFile(file.path)
    assert not other.direct
    target = page_aligned(8192)
    other.read(target[:8192], 4096, 5000)
    assert target[:5000] == DATA[4096:9096]
    assert [arguments[1:] for arguments in dropped] == [(4096, 8192, os.POSIX_FADV_DONTNEED)]
    other.close()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be opened: No such file"):
        DirectFile(tmp_path / "none")


def test_pacer_holds_the_pace() -> None:
    """20 reads of 100 kB at 10 MB/s take 200 ms, however the time is spent between them."""
    pacer = Pacer(10_000_000)
    begin = time.perf_counter_ns()
    for number in range(20):
        started = time.perf_counter_ns()
        if number % 5 == 0:
            time.sleep(0.005)  # part of the read's own 10 ms
        pacer.wait(started, 100_000)
    elapsed = time.perf_counter_ns() - begin
    # 2 ms of credit at the start
    assert elapsed >= 198_000_000
    free = Pacer(None)
    begin = time.perf_counter_ns()
    free.wait(begin, 1 << 40)
    assert time.perf_counter_ns() - begin < 60_000_000_000


def test_idle_time_earns_no_credit() -> None:
    pacer = Pacer(10_000_000)
    time.sleep(0.1)
    started = time.perf_counter_ns()
    pacer.wait(started, 500_000)
    assert time.perf_counter_ns() - started >= 48_000_000
