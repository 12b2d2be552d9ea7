"""Writes of keys and values, measured through the executor's own file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from executor import pack
from executor.source import WeightSource, open_weights
from profiler.kv import WriteSamples, lost_ns, measure_writes, write_sizes

KIB = 1 << 10
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB)


@pytest.fixture
def source(checkpoint: Callable[[str], Path]) -> Iterator[WeightSource]:
    with open_weights(checkpoint("mixtral")) as opened:
        yield opened


def test_sizes_are_blocks_and_chunks_that_a_third_of_the_budget_holds() -> None:
    assert write_sizes(12 << 20) == SIZES
    assert write_sizes((12 << 20) - 1) == SIZES[:-1]
    assert write_sizes(1) == (4096,)


def test_each_size_alone_and_beside_reads(source: WeightSource) -> None:
    samples = WriteSamples()
    before = sorted(source.checkpoint.folder.iterdir())
    for seed in range(2):
        measure_writes(source, "cpu", 64 << 20, samples, 1, Random(seed))
    found = samples.fit()
    assert found is not None
    for curve in (found.alone, found.beside):
        assert curve.rows == SIZES
        # four in either round, and beside reads more until some have ended
        assert all(
            count == 8 if curve is found.alone else 8 <= count <= 128 for count in curve.samples
        )
        assert curve.source == "measured"
        assert curve.duration_ns[0] > 0
        assert curve.held_out_error is not None
    # one of what reads lose for each size and round, unless no read ended between two writes
    assert found.lost is not None
    assert set(found.lost.rows) <= set(SIZES)
    assert set(found.lost.samples) <= {1, 2}
    assert min(found.lost.duration_ns) >= 0
    # more bytes take longer, whatever the drive
    assert found.alone(SIZES[-1]) > found.alone(SIZES[0])
    assert sorted(source.checkpoint.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("reads", "writes", "rest", "lost"),
    [
        # four reads of 10 ns take 50 ns, beside five writes (one ended before the first read)
        ((100, 110, 125, 140, 150), (95, 101, 115, 120, 130, 150, 160), 10, 2),
        # no longer than alone, or shorter: nothing
        ((0, 10, 20), (5, 15), 10, 0),
        ((0, 9, 18), (5, 15), 10, 0),
        # nothing to be told: no read, no write between them
        ((7,), (5, 15), 10, None),
        ((), (), 10, None),
        ((0, 20), (30,), 10, None),
    ],
)
def test_what_reads_lose_by_hand(
    reads: tuple[int, ...], writes: tuple[int, ...], rest: int, lost: int | None
) -> None:
    assert lost_ns(reads, writes, rest) == lost


def test_nothing_is_measured_where_none_can_lie_there(
    source: WeightSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = WriteSamples()
    measure_writes(source, "cuda", 64 << 20, samples, 1, Random(0))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    measure_writes(source, "cpu", 64 << 20, samples, 1, Random(0))
    assert samples.fit() is None


def test_beside_reads_of_a_compressed_store(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """What is read is decoded meanwhile, through the buffer that this takes."""
    pack(checkpoint("mixtral"), tmp_path / "store", compress="exact")
    samples = WriteSamples()
    with open_weights(checkpoint("mixtral"), tmp_path / "store") as source:
        assert source.model.stored is not None
        before = sorted((tmp_path / "store").iterdir())
        measure_writes(source, "cpu", 64 << 20, samples, 1, Random(0))
    found = samples.fit()
    assert found is not None
    assert found.alone.rows == found.beside.rows == SIZES
    # the file lay beside the store, and is gone
    assert sorted((tmp_path / "store").iterdir()) == before
