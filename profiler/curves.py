"""From raw samples to curves: medians, monotone fits, and what the fit gets wrong.

Durations of compute are fitted with a piecewise-linear curve that never decreases (isotonic
regression at the measured sizes); copies with ``latency + size / bandwidth``. Both are judged on
samples that they were not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.documents import Curve, Figure, Surface
from planner.documents.base import Source
from planner.interval import NINE_OF_TEN, QUARTILE

__all__ = [
    "drifting",
    "figure",
    "fit_curve",
    "fit_surface",
    "isotonic",
    "median_and_spread",
    "tail_ratio",
]

_LEAST_MOMENTS = 4
_BLOCKS, _LEAST_BLOCK = 8, 3
"""Blocks that moments are joined to, and the fewest moments of one."""


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Median and half the distance between the quartiles."""
    low, middle, high = np.quantile(np.asarray(samples, dtype=np.float64), (0.25, 0.5, 0.75))
    return float(middle), float(high - low) / 2


def figure(samples: Sequence[float], source: Source = "measured") -> Figure:
    """The samples as a figure of a document."""
    middle, spread = median_and_spread(samples)
    return Figure(middle, source, spread if len(samples) > 1 else None, len(samples))


def drifting(samples: Sequence[float], at_once: int, source: Source = "measured") -> Figure:
    """A figure whose spread is what a run sees of the machine's drift.

    The samples come in the order in which they were taken, ``at_once`` of them in one moment, which
    is worth its median. A run lasts for many moments, and averages what changes from one to the
    next: moments that follow each other form blocks, whose means (a moment beyond four medians
    counts as four) scatter by what is slower than that. The spread is a normal distribution's that
    is as likely to hold one more block as these blocks say: their standard deviation, wider for
    each that is missing (Student's t). (Too few moments: the spread of single samples.)
    """
    moments = [
        float(np.median(samples[at : at + at_once])) for at in range(0, len(samples), at_once)
    ]
    if len(moments) < _LEAST_MOMENTS:
        return figure(samples, source)
    most = 4 * float(np.median(moments))
    count = min(_BLOCKS, len(moments) // _LEAST_BLOCK)
    if count < _LEAST_MOMENTS:
        count = len(moments)
    means = [float(block.mean()) for block in np.array_split(np.minimum(moments, most), count)]
    wide = _student(count - 1) / NINE_OF_TEN * math.sqrt(1 + 1 / count)
    return replace(figure(samples, source), spread=QUARTILE * wide * float(np.std(means, ddof=1)))


def _student(freedom: int) -> float:
    """Of Student's t, what holds nine of ten on either side (Abramowitz and Stegun, 26.7.5)."""
    z = NINE_OF_TEN
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def isotonic(values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The never decreasing sequence that is nearest in weighted squares.

    By pooling adjacent violators: neighbours in the wrong order are replaced by their mean.
    """
    weights = [1.0] * len(values) if weights is None else weights
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        pool = (float(value), float(weight), 1)
        while pools and pools[-1][0] > pool[0]:
            mean, before, length = pools.pop()
            both = before + pool[1]
            pool = ((mean * before + pool[0] * pool[1]) / both, both, length + pool[2])
        pools.append(pool)
    return [mean for mean, _, length in pools for _ in range(length)]


def fit_curve(samples: Mapping[int, Sequence[int]], source: Source = "measured") -> Curve:
    """A curve through the medians of raw samples.

    Parameters
    ----------
    samples
        Durations in ns by rows, in the order in which they were taken; at least one sample each.
    source
        Where they come from.

    Returns
    -------
    Curve
        Medians, all raised by one ratio (see ``tail_ratio``) so that sums of many durations come
        out right. Its ``held_out_error`` is the median relative error of a curve made from the
        first half of each size's samples, at the medians of the second, which was taken later: the
        machine's moments count as well. None where a size has fewer than four samples.
    """
    curve = _through_medians(samples, source)
    if min(len(values) for values in samples.values()) < 4:
        return curve
    early = {rows: values[: len(values) // 2] for rows, values in samples.items()}
    half = _through_medians(early, source)
    errors = []
    for rows, values in samples.items():
        truth = float(np.median(values[len(values) // 2 :]))
        errors.append(abs(half(rows) - truth) / max(truth, 1.0))
    return replace(curve, held_out_error=float(np.median(errors)))


def _through_medians(samples: Mapping[int, Sequence[int]], source: Source) -> Curve:
    rows = sorted(samples)
    middles, spreads = zip(*(median_and_spread(samples[size]) for size in rows), strict=True)
    # relative squares, so that the long durations do not pull the short ones about
    fitted = isotonic(middles, [1 / max(middle, 1.0) ** 2 for middle in middles])
    tail = tail_ratio(samples.values())
    return Curve(
        tuple(rows),
        tuple(round(value * tail) for value in fitted),
        tuple(round(spread) for spread in spreads),
        tuple(len(samples[size]) for size in rows),
        source,
    )


def tail_ratio(groups: Iterable[Sequence[int]]) -> float:
    """How much longer samples take on average than their group's median: at least 1.

    A run adds up many durations, and a sum is made of means. One size has too few samples for a
    mean (one long pause of the machine would decide it); all sizes together say how long the tail
    is. Samples beyond four medians count as four.
    """
    total = medians = 0.0
    for values in groups:
        middle = float(np.median(values))
        total += float(np.minimum(values, 4 * middle).sum())
        medians += middle * len(values)
    return max(total / medians, 1.0) if medians else 1.0


def fit_surface(
    samples: Mapping[tuple[int, int], Sequence[int]], source: Source = "measured"
) -> Surface:
    """A surface from durations in ns by (rows, second).

    It never decreases in either direction: each curve is at least the one before it.
    """
    curves: list[Curve] = []
    seconds = sorted({second for _, second in samples})
    for second in seconds:
        curve = fit_curve({r: values for (r, s), values in samples.items() if s == second}, source)
        if curves:
            floor = (curves[-1](rows) for rows in curve.rows)
            raised = tuple(max(*pair) for pair in zip(curve.duration_ns, floor, strict=True))
            curve = replace(curve, duration_ns=raised)
        curves.append(curve)
    return Surface(tuple(seconds), tuple(curves))
