"""What a simulator of these ranks needs: times of an expert against its rows, and of exchanges."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from executor.adapters import Adapter, ExpertWeights
from executor.operations import feed_expert
from executor.parallel.exchange import Exchange, gather_counts

__all__ = ["SAMPLES", "exchange_curve", "expert_curve"]

SAMPLES = 31
_WARM = 5
_TOKENS = (1, 256)
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


def _together(work: Callable[[], object]) -> tuple[int, int]:
    """As ``_alone``, of a call that all ranks make: from the last one's start to its end."""
    samples = []
    for turn in range(_WARM + SAMPLES):
        torch.distributed.barrier()
        started = time.perf_counter_ns()
        work()
        took = time.perf_counter_ns() - started
        fastest = int(gather_counts(np.array([took])).min())
        if turn >= _WARM:
            samples.append(fastest)
    return _quiet(samples)


def expert_curve(
    adapter: Adapter, weights: ExpertWeights, hidden: int, dtype: torch.dtype
) -> list[tuple[int, int, int]]:
    """Rows, time and spread in ns of one expert, computed as a run does."""
    found = []
    for rows in _ROWS:
        inputs = torch.randn(rows, hidden).to(dtype)
        results = torch.empty_like(inputs)

        def work(inputs: torch.Tensor = inputs, results: torch.Tensor = results) -> None:
            results[:] = feed_expert(adapter, inputs, weights)

        found.append((rows, *_alone(work)))
    return found


def exchange_curve(
    rank: int,
    placed: Sequence[Sequence[int]],
    top_k: int,
    hidden: int,
    dtype: torch.dtype,
) -> list[tuple[int, int, int]]:
    """Bytes that a rank sends to others, time and spread in ns of a layer's whole exchange.

    Sizes, rows and results, of as many tokens on each rank, without computing between them.

    Parameters
    ----------
    placed
        For each expert the devices that hold it.
    """
    found = []
    exchange = Exchange(rank, {0: placed})
    experts = len(placed)
    for tokens in _TOKENS:
        normed = torch.zeros(tokens, hidden, dtype=dtype)
        chosen = np.sort((np.arange(tokens * top_k) % experts).reshape(tokens, top_k), axis=1)

        def work(normed: torch.Tensor = normed, chosen: npt.NDArray[np.int64] = chosen) -> None:
            exchange.run(0, normed, chosen, lambda *_: None, experts)

        sent = exchange.rows_sent
        least, spread = _together(work)
        rows = (exchange.rows_sent - sent) // (_WARM + SAMPLES)
        most = int(gather_counts(np.array([rows])).max())
        found.append((most * hidden * dtype.itemsize, least, spread))
    return found
