"""Times of an expert against its rows, for a simulator of these ranks."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from executor.adapters import Adapter, ExpertWeights
from executor.operations import feed_expert

__all__ = ["SAMPLES", "expert_curve"]

SAMPLES = 31
_WARM = 5
_ROWS = tuple(1 << power for power in range(9))


def _alone(work: Callable[[], object]) -> tuple[int, int]:
    """Typical time of a call in ns where nothing else runs, and its spread."""
    samples = []
    for turn in range(_WARM + SAMPLES):
        started = time.perf_counter_ns()
        work()
        if turn >= _WARM:
            samples.append(time.perf_counter_ns() - started)
    return _quiet(samples)


def _quiet(samples: list[int]) -> tuple[int, int]:
    """The first decile, and half the distance between the quartiles.

    Processes that share cores with each other and with other work are held up by turns; what they
    take otherwise is in the first decile.
    """
    low, _, high = statistics.quantiles(samples, n=4)
    return int(statistics.quantiles(samples, n=10)[0]), int((high - low) / 2)


def expert_curve(
    adapter: Adapter, weights: Sequence[ExpertWeights], hidden: int, dtype: torch.dtype
) -> list[tuple[int, int, int]]:
    """Rows, time and spread in ns of an expert, computed as a run does: each time another one."""
    found = []
    for rows in _ROWS:
        inputs = torch.randn(rows, hidden).to(dtype)
        results = torch.empty_like(inputs)
        turns = itertools.cycle(weights)

        def work(
            inputs: torch.Tensor = inputs,
            results: torch.Tensor = results,
            turns: Iterator[ExpertWeights] = turns,
        ) -> None:
            results[:] = feed_expert(adapter, inputs, next(turns))

        found.append((rows, *_alone(work)))
    return found
