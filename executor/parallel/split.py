"""Which rows go where: integers alone, the same on every rank.

Each rank knows how many rows of each rank chose each expert. So sizes are known before rows move,
and an expert's copies get equal parts of its rows, to a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["LayerSplit", "copy_table"]

Int64 = npt.NDArray[np.int64]


def copy_table(experts: Sequence[Sequence[int]], devices: int) -> Int64:
    """[experts, devices]: which of an expert's copies a device holds, or -1.

    Parameters
    ----------
    experts
        For each expert the devices that hold it, ascending, as in ``LayerPlacement``.
    """
    table = np.full((len(experts), devices), -1, dtype=np.int64)
    for expert, held in enumerate(experts):
        table[expert, list(held)] = np.arange(len(held))
    return table


class LayerSplit:
    """How one layer's rows are divided among the copies of the experts that they chose.

    All rows that chose an expert are numbered, rank by rank; row g goes to copy
    (g + expert) mod copies. So copies differ by a row at most, and the odd row of each expert goes
    to another copy.

    Parameters
    ----------
    table
        Of ``copy_table``.
    counts
        [ranks, experts]: rows of each rank that chose each expert.
    """

    def __init__(self, table: Int64, counts: Int64) -> None:
        self._table, self._counts = table, counts
        self._copies = (table >= 0).sum(axis=1)
        self._first = np.cumsum(counts, axis=0) - counts

    def sent(self, rank: int) -> Int64:
        """[experts, devices]: rows that ``rank`` sends of each expert to each device."""
        begin, table = self._first[rank], self._table
        first = self._before(begin[:, None], table)
        return self._before((begin + self._counts[rank])[:, None], table) - first

    def received(self, device: int) -> Int64:
        """[ranks, experts]: rows that ``device`` gets of each rank for each expert."""
        column = self._table[:, device][None, :].repeat(len(self._counts), axis=0)
        first = self._before(self._first.T, column.T)
        return (self._before((self._first + self._counts).T, column.T) - first).T

    def _before(self, ends: Int64, copy: Int64) -> Int64:
        """Rows g < ``ends`` [experts, ...] that go to ``copy`` of each expert; 0 where it is -1."""
        copies = self._copies[:, None]
        step = (copy - np.arange(len(copies))[:, None]) % copies
        return np.where(copy >= 0, (ends + copies - 1 - step) // copies, 0)

    def order(self, rank: int, experts: Int64) -> Int64:
        """Order in which ``rank`` sends its choices: by device, expert and place.

        Parameters
        ----------
        experts
            [choices]: the expert of each choice.
        """
        by_expert = np.argsort(experts, kind="stable")
        chosen = experts[by_expert]
        starts = np.cumsum(self._counts[rank]) - self._counts[rank]
        number = np.arange(len(chosen)) - starts[chosen] + self._first[rank][chosen]
        copy = (number + chosen) % self._copies[chosen]
        device = self._devices[chosen, copy]
        return by_expert[np.argsort(device, kind="stable")]

    @property
    def _devices(self) -> Int64:
        """[experts, most copies]: the device of each copy."""
        found = np.zeros((len(self._table), int(self._copies.max())), dtype=np.int64)
        expert, device = np.nonzero(self._table >= 0)
        found[expert, self._table[expert, device]] = device
        return found
