"""One MoE layer on several ranks: sizes first, then rows, and the results back.

Dynamic gating ("Towards MoE Deployment", arXiv 2303.06182, section 5) across devices: exactly the
rows that were chosen move; no capacity, no padding, no dropped token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from executor.parallel.split import LayerSplit, copy_table

__all__ = ["Compute", "Exchange", "Segment", "gather_counts", "now_ns"]

Int64 = npt.NDArray[np.int64]


def now_ns(device: torch.device) -> int:
    """The clock, read when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns()


class Segment(NamedTuple):
    """Rows [first, stop), all of one expert."""

    expert: int
    first: int
    stop: int


Compute = Callable[[list[Segment], torch.Tensor, torch.Tensor], None]
"""``(segments, rows, results)``: computes all rows of this device's experts, in any order."""


def gather_counts(counts: Int64) -> Int64:
    """[ranks, ...]: the same array of every rank."""
    mine = torch.from_numpy(np.ascontiguousarray(counts))
    parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, mine)
    return torch.stack(parts).numpy()


class Exchange:
    """Moves rows to their experts' devices and results back.

    Parameters
    ----------
    rank
        This device.
    placement
        For each MoE layer and expert the devices that hold it.

    Attributes
    ----------
    rows_computed, rows_sent
        Rows that this device's experts computed, and rows that it sent to other devices.
    exchange_ns
        Time in exchanges so far, waiting for slower ranks included.
    peak_bytes
        Most bytes that rows on their way took at once.
    counts
        [ranks, experts] of the last layer.
    """

    def __init__(self, rank: int, placement: dict[int, Sequence[Sequence[int]]]) -> None:
        self.rank = rank
        self.devices = torch.distributed.get_world_size()
        self.rows_computed = self.rows_sent = self.exchange_ns = self.peak_bytes = 0
        self.counts: Int64 = np.zeros((self.devices, 0), dtype=np.int64)
        self.replace(placement)

    def replace(self, placement: dict[int, Sequence[Sequence[int]]]) -> None:
        """Another placement, from the next layer on."""
        self._tables = {
            layer: copy_table(experts, self.devices) for layer, experts in placement.items()
        }

    def run(
        self,
        layer: int,
        normed: torch.Tensor,
        chosen: Int64,
        compute: Compute,
        experts: int,
        known: Callable[[Int64], None] | None = None,
    ) -> torch.Tensor:
        """Results of all choices of this rank's tokens, [tokens, top_k, hidden], unweighted.

        Parameters
        ----------
        normed
            [tokens, hidden]: input of the experts; there may be no tokens. Rows and
            results are exchanged between devices of its kind.
        chosen
            [tokens, top_k]: the experts that each token chose.
        compute
            This device's part.
        experts
            How many the layer has.
        known
            Told, before any row moves, how many this device gets of each expert.
        """
        device = normed.device
        started = now_ns(device)
        flat = chosen.reshape(-1)
        self.counts = gather_counts(np.bincount(flat, minlength=experts))
        split = LayerSplit(self._tables[layer], self.counts)
        order = torch.from_numpy(split.order(self.rank, flat)).to(device)
        sent, received = split.sent(self.rank).sum(axis=0), split.received(self.rank)
        if known is not None:
            known(received.sum(axis=0))
        top_k = chosen.shape[1]
        outgoing = normed.index_select(0, order.div(top_k, rounding_mode="floor"))
        incoming = self._move(outgoing, sent, received.sum(axis=1))
        self.exchange_ns += now_ns(device) - started
        results = self._compute(incoming, received, compute)
        started = now_ns(device)
        returned = self._move(results, received.sum(axis=1), sent)
        self.exchange_ns += now_ns(device) - started
        held = outgoing, incoming, results, returned
        self.peak_bytes = max(self.peak_bytes, sum(one.nbytes for one in held))
        self.rows_sent += int(sent.sum() - sent[self.rank])
        placed = torch.empty_like(returned)
        placed.index_copy_(0, order, returned)
        return placed.view(len(chosen), top_k, normed.shape[1])

    def _move(self, rows: torch.Tensor, sent: Int64, received: Int64) -> torch.Tensor:
        """Exchange rows, in the order of their devices."""
        out = rows.new_empty(int(received.sum()), rows.shape[1])
        torch.distributed.all_to_all_single(out, rows, received.tolist(), sent.tolist())
        return out

    def _compute(self, incoming: torch.Tensor, received: Int64, compute: Compute) -> torch.Tensor:
        """Own experts' results for rows that lie by rank and expert; returned in the same order."""
        ranks, experts = received.shape
        self.rows_computed += len(incoming)
        expert_of = np.repeat(np.tile(np.arange(experts), ranks), received.reshape(-1))
        order = torch.from_numpy(np.argsort(expert_of, kind="stable")).to(incoming.device)
        rows = incoming.index_select(0, order)
        results = torch.empty_like(rows)
        stops = np.cumsum(received.sum(axis=0)).tolist()
        segments = map(Segment, range(experts), [0, *stops[:-1]], stops)
        compute([one for one in segments if one.first < one.stop], rows, results)
        placed = torch.empty_like(results)
        placed.index_copy_(0, order, results)
        return placed
