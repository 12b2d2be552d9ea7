"""Statistics gathered as a run goes, and experts that move between passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from executor.parallel.exchange import gather_counts
from planner.rebalance import rebalance_layer

__all__ = ["Rebalancer"]

Placement = dict[int, Sequence[Sequence[int]]]

_KEPT = 64
"""Passes that are looked back on."""


class Rebalancer:
    """Looks every few passes whether another placement pays; the same on all ranks.

    Parameters
    ----------
    rank, devices
        This device, and how many there are.
    placement
        What a run begins with.
    every
        Passes between two looks.
    row_ns, copy_ns
        Time of a row in an expert and of reading an expert; None: as measured on all ranks so far.

    Attributes
    ----------
    swaps
        Experts swapped so far, on all devices.
    """

    def __init__(
        self,
        rank: int,
        devices: int,
        placement: Placement,
        every: int,
        *,
        row_ns: float | None = None,
        copy_ns: float | None = None,
    ) -> None:
        self._rank, self._devices, self._every = rank, devices, every
        self._placement = dict(placement)
        self._row_ns, self._copy_ns = row_ns, copy_ns
        self._seen: dict[int, list[npt.NDArray[np.int64]]] = {layer: [] for layer in placement}
        self._passes = 0
        self.swaps = 0

    def saw(self, layer: int, counts: npt.NDArray[np.int64]) -> None:
        """Rows that chose each expert of ``layer`` in this pass."""
        self._seen[layer].append(counts)
        del self._seen[layer][:-_KEPT]

    def look(
        self, passes_left: int, expert_ns: int, rows: int, read_ns: int, reads: int
    ) -> Placement | None:
        """After a pass: the placement from now on, where it changes.

        Parameters
        ----------
        passes_left
            Passes to come, at most.
        expert_ns, rows, read_ns, reads
            Time in experts and their rows, and in reading experts and their number, on this rank.
        """
        self._passes += 1
        if self._passes % self._every or not passes_left:
            return None
        times = gather_counts(np.array([expert_ns, rows, read_ns, reads])).sum(axis=0)
        row_ns = times[0] / max(times[1], 1) if self._row_ns is None else self._row_ns
        copy_ns = times[2] / max(times[3], 1) if self._copy_ns is None else self._copy_ns
        shape = len(self._placement), len(next(iter(self._placement.values()))), self._devices
        held = np.zeros(shape, dtype=np.bool_)
        for at, experts in enumerate(self._placement.values()):
            for expert, devices in enumerate(experts):
                held[at, expert, list(devices)] = True
        swaps = np.zeros(1, dtype=np.int64)
        if self._rank == 0:
            for at, seen in enumerate(self._seen.values()):
                held[at], more = rebalance_layer(
                    np.stack(seen),
                    held[at],
                    passes_left=passes_left,
                    row_ns=float(row_ns),
                    copy_ns=float(copy_ns),
                )
                swaps += more
        # one rank decides, so that rounding cannot tell two ranks different things
        torch.distributed.broadcast(torch.from_numpy(swaps), 0)
        if not swaps[0]:
            return None
        torch.distributed.broadcast(torch.from_numpy(held.view(np.uint8)), 0)
        self.swaps += int(swaps[0])
        self._placement = {
            layer: [np.flatnonzero(row).tolist() for row in held[at]]
            for at, layer in enumerate(self._placement)
        }
        return self._placement
