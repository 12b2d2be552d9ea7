"""Times of an expert against its rows, for a simulator of these ranks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from executor.adapters import ExpertWeights
from executor.device import Device
from executor.operations import feed_expert
from executor.parallel.exchange import now_ns

__all__ = ["SAMPLES", "expert_curve"]

SAMPLES = 31
_WARM = 5
_ROWS = tuple(1 << power for power in range(9))


def _alone(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Typical time of a call in ns where nothing else runs, and its spread."""
    samples = []
    for turn in range(_WARM + SAMPLES):
        started = now_ns(device)
        work()
        if turn >= _WARM:
            samples.append(now_ns(device) - started)
    return _quiet(samples)


def _quiet(samples: list[int]) -> tuple[int, int]:
    """The first decile, and half the distance between the quartiles.

    Processes that share cores with each other and with other work are held up by turns; what they
    take otherwise is in the first decile.
    """
    low, _, high = statistics.quantiles(samples, n=4)
    return int(statistics.quantiles(samples, n=10)[0]), int((high - low) / 2)


def expert_curve(device: Device, weights: Sequence[ExpertWeights]) -> list[tuple[int, int, int]]:
    """Rows, time and spread in ns of an expert, computed as a run does: each time another one."""
    found = []
    where = device.device
    for rows in _ROWS:
        hidden = device.adapter.model.hidden_size
        inputs = torch.randn(rows, hidden).to(where, device.dtype)
        results = torch.empty_like(inputs)
        turns = itertools.cycle(weights)

        def work(
            inputs: torch.Tensor = inputs,
            results: torch.Tensor = results,
            turns: Iterator[ExpertWeights] = turns,
        ) -> None:
            results[:] = feed_expert(device.adapter, inputs, next(turns))

        found.append((rows, *_alone(work, where)))
    return found
