"""Bursts of a drive that has rested: token buckets and slices by their formulas, and none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from executor import open_weights
from planner.documents import Channel, Workload
from profiler.bench import Bench, Tokens
from profiler.burst import Rested, Stream, lasting, lasting_rate, settled, stream
from profiler.correct import scaled_channel
from profiler.effort import Effort
from profiler.layout import Layout
from profiler.link import CopySample, fit_link
from profiler.measure import Measurement

PIECE = 250_000
SECONDS = 0.7


def ending(end: Callable[[int], float]) -> Stream:
    """Reads of a quarter of a megabyte, of which the k-th ends after ``end(k)`` seconds."""
    ends, number = [], 1
    while (after := end(number)) < SECONDS:
        ends.append(round(after * 1e9))
        number += 1
    return Stream(tuple(ends), tuple(float(PIECE * (at + 1)) for at in range(len(ends))))


def bucket(rate: float, peak: float, depth: float) -> Stream:
    """A token bucket's: at the peak, and no more than depth + rate t by t."""
    return ending(lambda k: max(k * PIECE / peak, (k * PIECE - depth) / rate))


def slices(rate: float, peak: float, seconds: float = 0.1) -> Stream:
    """The kernel's: so many bytes at the peak from the beginning of each slice, then none."""
    each = int(rate * seconds / PIECE)

    def end(number: int) -> float:
        whole, rest = divmod(number - 1, each)
        return whole * seconds + (rest + 1) * PIECE / peak

    return ending(end)


def steady(rate: float, *, late: float = 0.0) -> Stream:
    return ending(lambda k: late + k * PIECE / rate)


def test_a_token_bucket_is_found() -> None:
    # 20 MB of credit at 0.25 GB/s: the peak of 1 GB/s lasts until 20 / (1 - 0.25) = 26.7 MB
    found = lasting([bucket(2.5e8, 1e9, 2e7)] * 3)
    assert found is not None
    assert found.bandwidth.value == pytest.approx(2.5e8, rel=0.001)
    assert found.burst.depth_bytes.value == pytest.approx(2e7, abs=PIECE)
    # to a piece of 26.7 MB
    assert found.burst.peak_bytes_per_second.value == pytest.approx(1e9, rel=0.01)
    figures = found.bandwidth, found.burst.depth_bytes, found.burst.peak_bytes_per_second
    assert {figure.source for figure in figures} == {"fitted"}
    assert {figure.samples for figure in figures} == {3}


@pytest.mark.parametrize("peak", [6e8, 1.2e9, 4e9])
def test_the_kernels_slices_are_a_bucket_of_what_they_are_ahead_at_best(peak: float) -> None:
    # 40 MB a slice. When they have been read, 40 MB / peak into it, the stream is
    # 40 (1 - 0.4 / peak) MB ahead of 0.4 GB/s; at the slice's end it is 0 ahead, and evenly
    # between: 19 parts of 20 of the time it is less than that share of it ahead
    found = lasting([slices(4e8, peak)] * 3)
    assert found is not None
    assert found.bandwidth.value == pytest.approx(4e8, rel=0.01)
    assert found.burst.depth_bytes.value == pytest.approx(0.95 * 4e7 * (1 - 4e8 / peak), rel=0.1)
    assert found.burst.peak_bytes_per_second.value == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize(
    "streams",
    [
        [steady(4e8)] * 3,
        [steady(4e8, late=0.05)] * 3,  # slow to begin
        [bucket(4e8, 4.4e8, 2e7)] * 3,  # hardly faster
        [bucket(4e8, 8e8, 5e5)] * 3,  # for a millisecond: queues and caches
        [bucket(4e8, 8e8, 2e7)] * 2,  # seen twice only
        [bucket(4e8, 8e8, 2e7), steady(4e8), bucket(4e8, 8e8, 2e7), steady(4e8)],  # by chance
        [bucket(4e8, 8e8, 1e7), bucket(4e8, 8e8, 2e7), bucket(4e8, 8e8, 3e7)],  # no one depth
        [bucket(rate, 9e8, 2e7) for rate in (3e8, 4e8, 5e8)],  # no one rate
        [],
        [Stream((), ())] * 3,
        [Stream((5,), (1.0,))] * 3,
    ],
)
def test_no_burst(streams: list[Stream]) -> None:
    assert lasting(streams) is None


def test_one_disturbed_stream_of_four_does_not_hide_it() -> None:
    found = lasting([bucket(2.5e8, 1e9, 2e7), steady(2.4e8), *[bucket(2.5e8, 1e9, 2e7)] * 2])
    assert found is not None
    assert found.burst.depth_bytes.samples == 3


def test_the_rate_that_lasts() -> None:
    assert lasting_rate(bucket(2.5e8, 1e9, 2e7)) == pytest.approx(2.5e8, rel=0.001)
    assert lasting_rate(steady(4e8)) == pytest.approx(4e8, rel=0.001)
    assert lasting_rate(Stream((), ())) is None


def test_a_link_with_a_burst_is_what_lasts() -> None:
    fit = fit_link([CopySample(1, size, 1_000 + 2 * size) for size in (1_000, 9_000)] * 4)
    assert fit.latency_ns.value == pytest.approx(1_000)
    assert Rested([steady(4e8)] * 2).spent(fit) == fit
    rested = Rested([bucket(2.5e8, 1e9, 2e7)] * 3)
    assert rested.spent(fit, raw=True) == fit
    held = rested.spent(fit)
    assert held.bandwidth_bytes_per_second.value == pytest.approx(2.5e8, rel=0.001)
    assert held.latency_ns.value == 0
    assert held.burst is not None
    # a link that has grown slower by a half is as far ahead in time as it was
    disk = Channel("disk", held.bandwidth_bytes_per_second, held.latency_ns, None, held.burst)
    slower = scaled_channel(disk, 1.5, 0)
    assert slower.burst is not None
    for before, after in (
        (disk.bandwidth_bytes_per_second, slower.bandwidth_bytes_per_second),
        (held.burst.peak_bytes_per_second, slower.burst.peak_bytes_per_second),
        (held.burst.depth_bytes, slower.burst.depth_bytes),
    ):
        assert after.value == pytest.approx(before.value / 1.5)


def test_a_stream_is_of_chunks_without_end(checkpoint: Callable[[str], Path]) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        plan = Layout(source.model, 1 << 30, 4, 0, True, 4096).widest(Workload(1, 1, 8))
        assert plan is not None
        with Bench(source, plan, 1 << 30, Tokens([1, 2, 3], 211)) as bench:
            found = stream(bench, Random(0), 20_000_000)
    assert found.end_ns[-1] >= 20_000_000
    assert list(found.end_ns) == sorted(found.end_ns)
    # an expert is 36,864 bytes: nine chunks
    assert list(found.read_bytes) == [4096.0 * (at + 1) for at in range(len(found.end_ns))]


def test_where_bursts_are_looked_for(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_weights(checkpoint("mixtral")) as source:
        sizes = source, 1 << 30, Tokens([1, 2, 3], 211)
        assert len(Measurement(*sizes).burst_tasks()) == 1
        assert Measurement(*sizes, 10**8).burst_tasks() == []
        assert Measurement(*sizes, effort=Effort(stream_ns=0)).burst_tasks() == []
        # read in vain, and not said of a drive without: no more than two streams
        measurement = Measurement(*sizes, effort=Effort(stream_ns=1_000_000))
        (task,) = measurement.burst_tasks(most=1)
        task.run()
        assert len(measurement.rested.plain) == 1
        # while others have the cores a stream is read again, and one of three is kept
        read: list[Stream] = []

        def counted(*given: Any) -> Stream:
            read.append(stream(*given))
            return read[-1]

        monkeypatch.setattr("profiler.burst.stream", counted)
        monkeypatch.setattr("profiler.others.taken", lambda *_: 99.0)
        measurement.rested.plain.clear()
        task.run()
        assert (len(read), measurement.rested.plain) == (3, read[:1])


def test_how_many_streams_are_read() -> None:
    burst = bucket(2.5e8, 1e9, 2e7)
    # two that agree on a rate and show nothing; of two that do not, a third decides
    for streams, enough in (
        ([], False),
        ([steady(4e8)], False),
        ([steady(4e8)] * 2, True),
        ([steady(4e8), steady(3e8)], False),
        ([steady(4e8), steady(3e8), steady(2e8)], True),
        ([burst] * 2, False),
        ([burst] * 3, True),
        ([burst, steady(2.5e8), burst], False),
    ):
        assert settled(streams) is enough
