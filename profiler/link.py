"""Measuring the copy channel with nothing computed beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from statistics import mean

import numpy as np

from executor.units import Unit
from planner.documents import Burst, Figure
from planner.documents.base import Source
from profiler.bench import Bench
from profiler.curves import drifting, figure

__all__ = ["CopySample", "LinkFit", "copies_alone", "copies_for_a_moment", "fit_link", "one_moment"]


@dataclass(frozen=True, slots=True)
class CopySample:
    """One unit's copy: so many bytes, as they are read, in so many chunks took so long."""

    chunks: int
    size_bytes: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A chunk of s bytes takes ``latency_ns + s / bandwidth``, once a ``burst`` is spent.

    ``held_out_error`` is the median relative error at every other sample, which the fit that it
    judges has not seen.
    """

    bandwidth_bytes_per_second: Figure
    latency_ns: Figure
    held_out_error: float
    burst: Burst | None = None


def copies_alone(bench: Bench, order: Random) -> list[CopySample]:
    """Let the channel fill every slot with experts, with nothing computed beside.

    Copies are recorded without gaps, so what the channel does between two of them counts as well.

    Parameters
    ----------
    bench
        With slots and no resident experts.
    order
        Chooses the experts: a run copies now these and now those, and neither the drive nor what
        lies behind it shall know them from the time before.
    """
    policy, units = bench.plan.policy, bench.device.units
    experts = sorted(unit for unit in units.sizes if unit.kind == "expert")
    chosen = order.sample(experts, min(policy.slots - policy.reserve, len(experts)))
    samples = []
    raw = any(layer.raw for layer in policy.layers)
    share = 1.0 if raw else bench.model.stored_share("expert")
    for event in bench.fill(chosen):
        size = units.sizes[Unit(event.layer, "expert", event.item)]
        chunks = -(-size // policy.chunk_bytes)
        samples.append(CopySample(chunks, round(size * share), event.end_ns - event.start_ns))
    return samples


def copies_for_a_moment(bench: Bench, order: Random, least_ns: int) -> list[CopySample]:
    """As long as a kernel's accounting of reads takes, where one fill is shorter; a share of them,
    so that small experts do not outweigh their moments."""
    begin, copies = time.perf_counter_ns(), copies_alone(bench, order)
    fill = len(copies)
    while time.perf_counter_ns() - begin < least_ns:
        copies += copies_alone(bench, order)
    return one_moment(copies)[:fill]


def one_moment(samples: Sequence[CopySample]) -> list[CopySample]:
    """Copies made one right after the other, each with the mean duration of its shape.

    Single ones tell little of what many take: a drive's cache, or a kernel that holds reads to a
    bandwidth, lets some through at once and holds back others for it.
    """
    durations: dict[tuple[int, int], list[int]] = {}
    for one in samples:
        durations.setdefault((one.chunks, one.size_bytes), []).append(one.duration_ns)
    means = {shape: round(mean(alike)) for shape, alike in durations.items()}
    return [replace(one, duration_ns=means[one.chunks, one.size_bytes]) for one in samples]


def fit_link(samples: Sequence[CopySample], source: Source = "measured") -> LinkFit:
    """Latency of a chunk and bandwidth, by least squares of the relative error of medians.

    Raises
    ------
    ValueError
        If there are no samples, or the durations do not grow with the bytes.
    """
    if not samples:
        raise ValueError("no copies were measured")
    latency, slope = _solve(_medians(samples))
    half_latency, half_slope = _solve(_medians(samples[::2]))
    errors = [
        abs(half_latency * one.chunks + half_slope * one.size_bytes - one.duration_ns)
        / one.duration_ns
        for one in samples[1::2]
    ]
    # copies of one moment have the same mean; each moment is held against others of its shape, so
    # that those of all pieces say how the disk wanders: a run averages many
    middles = {(chunks, size): middle for chunks, size, middle in _medians(samples)}
    moments = [one.duration_ns / middles[one.chunks, one.size_bytes] for one, _ in groupby(samples)]
    steady = drifting(moments, 1)
    middle, spread = steady.value, steady.spread or 0.0
    bandwidth = 1e9 / slope
    return LinkFit(
        Figure(bandwidth, source, bandwidth * spread / middle, len(samples)),
        Figure(latency, source, None, len(samples)),
        float(np.median(errors)) if errors else 0.0,
    )


def _medians(samples: Sequence[CopySample]) -> list[tuple[int, int, float]]:
    shapes = sorted({(one.chunks, one.size_bytes) for one in samples})
    return [
        (
            chunks,
            size,
            figure(
                [o.duration_ns for o in samples if (o.chunks, o.size_bytes) == (chunks, size)]
            ).value,
        )
        for chunks, size in shapes
    ]


def _solve(points: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Latency a chunk (at least 0) and time a byte (above 0)."""
    chunks, sizes, middles = (
        np.array(column, dtype=np.float64) for column in zip(*points, strict=True)
    )
    columns = np.stack([chunks / middles, sizes / middles], axis=1)
    ones = np.ones(len(points))
    if np.linalg.matrix_rank(columns) == 2:
        latency, slope = np.linalg.lstsq(columns, ones, rcond=None)[0]
        if latency >= 0 and slope > 0:
            return float(latency), float(slope)
    # one shape of copy only, or no latency that shows: all of it is bandwidth
    share = sizes / middles
    return 0.0, float(share.sum() / (share**2).sum())
