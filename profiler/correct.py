"""Moving curves, surfaces and links by the ratio of what was measured to what they say."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.documents import Burst, Channel, Curve, Figure, Surface
from profiler.curves import isotonic

__all__ = [
    "corrected",
    "corrected_surface",
    "scaled_channel",
    "scaled_curve",
    "scaled_surface",
    "weight",
]

_HALF_WAY = 3
"""So many events are believed by half: fewer may be one pause of the machine."""


def weight(events: int) -> float:
    """How far to believe so many events: 0 not at all, 1 wholly."""
    return events / (events + _HALF_WAY)


def corrected(
    curve: Curve, samples: Sequence[tuple[int, float, float]], *, longer: bool = False
) -> Curve:
    """A curve that is nearer to what a run measured.

    Each point moves by a ratio of its own where events came near it; between those it is
    interpolated in logarithms, beyond them it holds on. Where it would then decrease, neighbours
    have the mean of their events, so that what all of those take together stays as it was: few
    events of one size do not make the many of another cheaper.

    Parameters
    ----------
    curve
        As it was.
    samples
        (rows, what it took alone, what the curve said), in ns; at least one.
    longer
        Whether a size beyond the curve's last becomes a point of its own.
    """
    largest = max(rows for rows, _, _ in samples)
    if longer and largest > curve.rows[-1]:
        curve = replace(
            curve,
            rows=(*curve.rows, largest),
            duration_ns=(*curve.duration_ns, max(curve(largest), curve.duration_ns[-1])),
            spread_ns=(*curve.spread_ns, curve.spread_ns[-1]),
            samples=(*curve.samples, 0),
        )
    ratios, count = _ratios(curve.rows, samples)
    return _moved(curve, ratios, count)


def corrected_surface(surface: Surface, samples: Sequence[tuple[int, float, float]]) -> Surface:
    """A surface that is nearer to what runs measured: each row count moves by a ratio of its own.

    Runs have few contexts and benches many: what was seen at one context says how fast the machine
    computes so many sequences at any.

    Parameters
    ----------
    surface
        As it was.
    samples
        (rows, what it took alone, what the surface said), in ns; at least one.
    """
    curves = []
    for curve in surface.curves:
        ratios, _ = _ratios(curve.rows, samples)
        # the samples are no more of one context than of another: none are added up
        curves.append(_moved(curve, ratios, [0] * len(ratios)))
    return replace(surface, curves=tuple(curves))


def _ratios(
    places: Sequence[int], samples: Sequence[tuple[int, float, float]]
) -> tuple[list[float], list[int]]:
    """By how much each row count moves, and how many samples came near it."""
    took, said = [0.0] * len(places), [0.0] * len(places)
    count = [0] * len(places)
    for rows, alone, before in samples:
        at = _nearest(places, rows)
        took[at] += alone
        said[at] += before
        count[at] += 1
    known = [index for index, number in enumerate(count) if number]
    own = [math.log(took[index] / said[index]) for index in known]
    # what few events say of one size is drawn to what all say of the kind, and that to no change
    whole = sum(count)
    common = sum(count[index] * log for index, log in zip(known, own, strict=True)) / whole
    common *= weight(whole)
    logs = [
        common + weight(count[index]) * (log - common)
        for index, log in zip(known, own, strict=True)
    ]
    at_rows = np.log(places)
    return np.exp(np.interp(at_rows, at_rows[known], logs)).tolist(), count


def _moved(curve: Curve, ratios: Sequence[float], count: Sequence[int]) -> Curve:
    """Durations by their ratios, and where they would then decrease the mean of neighbours."""
    moved = [duration * ratio for duration, ratio in zip(curve.duration_ns, ratios, strict=True)]
    smooth = isotonic(moved, [max(number, 1) for number in count])
    return replace(
        curve,
        duration_ns=tuple(round(value) for value in smooth),
        spread_ns=tuple(round(s * r) for s, r in zip(curve.spread_ns, ratios, strict=True)),
        samples=tuple(had + new for had, new in zip(curve.samples, count, strict=True)),
    )


def _nearest(rows: Sequence[int], wanted: int) -> int:
    """The size nearest to ``wanted``, as a ratio."""
    right = bisect_left(rows, wanted)
    if right in (0, len(rows)):
        return min(right, len(rows) - 1)
    return right if rows[right] * rows[right - 1] < wanted * wanted else right - 1


def scaled_curve(curve: Curve, ratio: float) -> Curve:
    """All durations of a curve longer by ``ratio``."""
    return replace(
        curve,
        duration_ns=tuple(round(value * ratio) for value in curve.duration_ns),
        spread_ns=tuple(round(value * ratio) for value in curve.spread_ns),
    )


def scaled_surface(surface: Surface, ratio: float) -> Surface:
    """All durations of a surface longer by ``ratio``."""
    return replace(surface, curves=tuple(scaled_curve(one, ratio) for one in surface.curves))


def scaled_channel(channel: Channel, ratio: float, more: int) -> Channel:
    """A link whose copies take longer by ``ratio``: latency and time a byte alike."""
    bandwidth = _scaled(channel.bandwidth_bytes_per_second, 1 / ratio, more)
    latency = _scaled(channel.latency_ns, ratio, more)
    burst = channel.burst
    if burst is not None:
        # as deep as it was in time
        burst = Burst(
            _scaled(burst.peak_bytes_per_second, 1 / ratio, more),
            _scaled(burst.depth_bytes, 1 / ratio, more),
        )
    return replace(channel, bandwidth_bytes_per_second=bandwidth, latency_ns=latency, burst=burst)


def _scaled(one: Figure, ratio: float, more: int) -> Figure:
    spread = None if one.spread is None else one.spread * ratio
    return replace(one, value=one.value * ratio, spread=spread, samples=one.samples + more)
