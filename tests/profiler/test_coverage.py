"""Intervals hold about nine of ten runs, on drawn machines whose noise is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planner.documents import Channel, CostProfile, Curve, Figure, Surface
from planner.interval import rate, relative_error
from profiler.curves import drifting, fit_curve
from profiler.effort import Effort
from profiler.measure import Measurement

KINDS = {"expert": 6e5, "router": 3e5, "attention": 8e5, "head": 1e5}
"""True ns of an operation; a run has a thousand of each."""
MOMENTS, RUN = 64, 12
"""Of a profile, and of a run."""

Noise = Callable[[np.random.Generator], np.ndarray[Any, Any]]


def _steady(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.ones(MOMENTS + RUN)


def _flickering(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Each moment for itself."""
    return np.exp(generator.normal(0, 0.15, MOMENTS + RUN))


def _wandering(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Fast and slow times of some 20 moments, 10% around the mean."""
    keep = np.exp(-1 / 20)
    logs = [generator.normal(0, 0.1)]
    for _ in range(MOMENTS + RUN - 1):
        logs.append(keep * logs[-1] + generator.normal(0, 0.1 * np.sqrt(1 - keep**2)))
    return np.exp(logs)


def _inside(noise: Noise, generator: np.random.Generator) -> bool:
    """Profile a machine, predict a run, run it later: is the rate within its interval?"""
    moments = noise(generator)
    # of what a replay leaves out nothing is known but its size
    beyond = np.exp(generator.normal(0, 0.04))

    def durations(kind: str, moment: float, count: int) -> np.ndarray[Any, Any]:
        return KINDS[kind] * moment * np.exp(generator.normal(0, 0.2, count))

    taken = [np.arange(start, MOMENTS, 16) for start in range(16)]
    fitted = {
        kind: fit_curve(
            {
                rows: [
                    round(one)
                    for at in taken[(4 * index + rows) % 16]
                    for one in durations(kind, moments[at], 12)
                ]
                for rows in (1, 2, 4)
            }
        )
        for index, kind in enumerate(KINDS)
    }
    attention = Surface((1,), (fitted.pop("attention"),))
    reference = [2e6 * moments[at] for at in range(MOMENTS) for _ in range(3)]
    one = Figure(1.0, "measured", None, 1)
    nothing = Curve((1,), (1,), (0,), (1,), "measured", 0.0)
    costs = CostProfile(
        model_hash="0" * 64,
        hardware_hash="0" * 64,
        dtype="float32",
        curves={**dict.fromkeys(("embed", "combine", "sample"), nothing), **fitted},  # type: ignore[arg-type]
        attention_decode=attention,
        attention_prefill=attention,
        copy_slowdown=one,
        compute_slowdown=one,
        reference_ns=drifting(reference, 3),
    )
    by_kind = {kind: 1000 * curve(2) for kind, curve in fitted.items()}
    by_kind["attention"] = 1000 * attention(2, 1)
    wall = sum(by_kind.values())
    took = beyond * sum(
        durations(kind, moment, 1000 // RUN).sum() * 1000 / (1000 // RUN * RUN)
        for kind in KINDS
        for moment in moments[MOMENTS:]
    )
    link = Channel("disk", Figure(1e9, "measured", 0.0, 9), Figure(0.0, "measured", None, 9))
    error = relative_error(costs, link, by_kind, wall, 1.0)
    promised = rate(1000, wall, np.array([wall]), error)
    return bool(promised.low <= 1000e9 / took <= promised.high)


@pytest.mark.parametrize("noise", [_steady, _flickering, _wandering])
def test_intervals_hold_nine_of_ten_runs(noise: Noise) -> None:
    generator = np.random.default_rng(0)
    share = np.mean([_inside(noise, generator) for _ in range(100)])
    assert 0.8 <= share <= 0.99


@pytest.mark.parametrize(("cell_ns", "moments"), [(1, 1), (49_999_999, 1), (100_000_000, 4)])
def test_a_profile_watches_for_a_quarter_of_its_cells(cell_ns: int, moments: int) -> None:
    nobody: Any = None
    watching = Measurement(nobody, 1, nobody, effort=Effort(cell_ns=cell_ns)).reference
    assert watching.moments == moments
