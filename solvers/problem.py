"""The problem, without a word about models: stages, units, scenarios, one memory, one channel.

A *pass* goes through all stages in order. A stage may need a *start unit* before its lead
computation; when the lead has ended, the stage's demand is known: which of its *items* are to be
worked on, each after its copy. Residents are never copied. All numbers are integers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError
from solvers.price import AheadPrice
from solvers.scenarios import Int32, Int64, Scenarios

__all__ = ["Problem", "Scenarios", "Stage", "Unit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What one copy brings.

    Attributes
    ----------
    size_bytes
        Bytes that a copy moves.
    held_bytes
        Memory that it takes as a resident (and as a start unit in a slot).
    chunks, chunk_ns, last_ns
        A copy is ``chunks`` pieces; all take ``chunk_ns`` but the last, which takes ``last_ns``.
    chunk_bytes
        Bytes of each piece but the last.
    """

    size_bytes: int
    held_bytes: int
    chunks: int = 1
    chunk_ns: int = 0
    last_ns: int = 0
    chunk_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.size_bytes, self.held_bytes, self.chunk_ns, self.last_ns) < 0:
            raise OptionError(f"a unit has a negative size or duration: {self}")
        if self.chunks < 1 or self.chunk_bytes * (self.chunks - 1) > self.size_bytes:
            raise OptionError(f"a unit's chunks do not add up to its size: {self}")

    @property
    def copy_ns(self) -> int:
        """Duration of the whole copy, undisturbed."""
        return (self.chunks - 1) * self.chunk_ns + self.last_ns


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of every pass.

    Attributes
    ----------
    start
        Unit that must be there before the lead computation; None where nothing is needed.
    items
        Units that scenarios may demand.
    sequential
        Residents are the first items, all others are prefetched in index order, and work goes in
        index order (the tiles of an output projection).
    short_starts
        What is copied instead of ``start``, no more of it, in the passes for which
        ``Scenarios.short`` says which of them; empty: the same in all passes. It takes a start
        unit's slot all the same.
    """

    start: Unit | None
    items: tuple[Unit, ...]
    sequential: bool = False
    short_starts: tuple[Unit, ...] = ()

    def __post_init__(self) -> None:
        start = self.start
        for short in self.short_starts:
            if (
                start is None
                or start.held_bytes != short.held_bytes
                or start.size_bytes < short.size_bytes
                or start.copy_ns < short.copy_ns
            ):
                raise OptionError(f"a short start unit is more than the whole one: {short}")

    def start_in(self, short: int) -> Unit | None:
        """The start unit's copy in a pass, by its number in ``Scenarios.short``."""
        return self.short_starts[short - 1] if short and self.short_starts else self.start


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be decided: residents, prefetches and their order, and slots.

    Attributes
    ----------
    stages
        In the order in which every pass goes through them.
    scenarios
        What passes demand.
    capacity_bytes
        Memory for residents and slots.
    slot_bytes
        Memory of one slot for items; it holds the largest of them.
    fan_out
        Items that one row demands.
    measure
        What is minimised, summed over the passes by weight: ``time``, compute ``idle`` inside
        passes, or ``bytes`` copied.
    correction_ns
        [stages, items], of either sign: added to the minimised time for each item that is not
        resident, so that few passes do not make the items look better that they happen not to
        demand (``solvers.variate``). None: nothing is added.
    price
        Of what is copied by the time at which a stage's demand is known: what is taken off again
        without eviction caching, for ``correction_ns`` is of copies on demand. None: nothing is.
    ahead
        [passes or more, stages, items]: rows that are said to demand each item once the demand of
        the stage with items before is known; None where nothing is said.

    Notes
    -----
    A start slot takes the ``held_bytes`` of the largest start unit that is not resident.
    """

    stages: tuple[Stage, ...]
    scenarios: Scenarios
    capacity_bytes: int
    slot_bytes: int
    fan_out: int = 1
    measure: Literal["time", "idle", "bytes"] = "time"
    correction_ns: Int64 | None = None
    price: AheadPrice | None = None
    ahead: Int32 | None = None

    def __post_init__(self) -> None:
        if self.correction_ns is not None:
            self._refuse_correction(self.correction_ns)
        if self.price is not None and (
            self.correction_ns is None or self.price.ppm.shape != self.scenarios.demand.shape
        ):
            raise OptionError("a price does not fit scenarios, or there is no correction_ns")
        if self.ahead is not None:
            passes, *rest = self.scenarios.demand.shape
            if list(self.ahead.shape[1:]) != rest or len(self.ahead) < passes:
                raise OptionError("ahead and scenarios differ in passes, stages or items")
            self.ahead.setflags(write=False)
        if self.scenarios.demand.shape[1] != len(self.stages):
            raise OptionError("scenarios and stages differ in number of stages")
        if self.capacity_bytes < 0 or self.slot_bytes < 0:
            raise OptionError("capacity or slot size is negative")
        width = self.scenarios.demand.shape[2]
        for index, stage in enumerate(self.stages):
            if len(stage.items) > width:
                raise OptionError(f"stage {index} has more items than the scenarios' arrays")
            if self.scenarios.demand[:, index, len(stage.items) :].any():
                raise OptionError(f"stage {index}: an item is demanded that does not exist")
            if stage.short_starts and max(self.scenarios.shortened, default=0) > len(
                stage.short_starts
            ):
                raise OptionError(f"stage {index}: a pass copies a start unit that does not exist")

    def _refuse_correction(self, table: Int64) -> None:
        if self.measure != "time":
            raise OptionError(f"a correction is of time, and {self.measure} is minimised")
        if table.shape != self.scenarios.demand.shape[1:]:
            raise OptionError("correction_ns and scenarios differ in stages or items")
        for index, stage in enumerate(self.stages):
            if table[index, len(stage.items) :].any():
                raise OptionError(f"stage {index}: a correction for an item that does not exist")
        table.setflags(write=False)

    def replace(self, **changes: Any) -> Problem:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @cached_property
    def correction(self) -> Int64:
        """[stages, items]: ``correction_ns``, 0 without."""
        if self.correction_ns is not None:
            return self.correction_ns
        return np.zeros(self.scenarios.demand.shape[1:], dtype=np.int64)

    @property
    def most_corrected_ns(self) -> int:
        """The least that any residents make of ``correction``; 0 or less."""
        return int(np.minimum(self.correction, 0).sum())

    @cached_property
    def copy_ns(self) -> Int64:
        """[stages, items]: duration of each item's copy; 0 where there is no such item."""
        table = np.zeros(self.scenarios.demand.shape[1:], dtype=np.int64)
        for index, stage in enumerate(self.stages):
            table[index, : len(stage.items)] = [item.copy_ns for item in stage.items]
        return table

    @cached_property
    def item_bytes(self) -> Int64:
        """[stages, items]: memory of each item as a resident."""
        table = np.zeros(self.scenarios.demand.shape[1:], dtype=np.int64)
        for index, stage in enumerate(self.stages):
            table[index, : len(stage.items)] = [item.held_bytes for item in stage.items]
        return table

    @property
    def start_kinds(self) -> range:
        """The numbers that passes have in ``Scenarios.short``, and those below."""
        return range(max(self.scenarios.shortened, default=0) + 1)

    @cached_property
    def pass_start_ns(self) -> Int64:
        """[passes, stages]: duration of each start unit's copy; 0 where there is none."""
        rows = [
            [unit.copy_ns if (unit := s.start_in(short)) else 0 for s in self.stages]
            for short in self.start_kinds
        ]
        every: Int64 = np.array(rows, dtype=np.int64).reshape(len(rows), len(self.stages))
        return every[np.array(self.scenarios.shortened, dtype=np.int64)]

    @cached_property
    def start_ns(self) -> Int64:
        """[stages]: the least of ``pass_start_ns`` over the passes."""
        if self.scenarios.passes:
            least: Int64 = self.pass_start_ns.min(axis=0)
            return least
        return np.array([s.start.copy_ns if s.start else 0 for s in self.stages], dtype=np.int64)

    @cached_property
    def start_lead_ns(self) -> Int64:
        """[passes, stages]: what a start unit that is not resident adds to the lead."""
        longer = self.scenarios.start_lead_ns
        if longer is None:
            return np.zeros(self.scenarios.lead_ns.shape, dtype=np.int64)
        there = np.array([stage.start is not None for stage in self.stages], dtype=bool)
        found: Int64 = np.where(there, longer, 0)
        return found

    @cached_property
    def start_bytes(self) -> Int64:
        """[stages]: memory of each start unit as a resident."""
        return np.array([s.start.held_bytes if s.start else 0 for s in self.stages], dtype=np.int64)

    @cached_property
    def demanded(self) -> npt.NDArray[np.float64]:
        """[passes, stages, items]: 1 where demanded, shifted so that its mean over the passes of
        one kind is ``mean_demanded`` (a control variate); plain 0 and 1 without it."""
        active: npt.NDArray[np.float64] = (self.scenarios.demand > 0).astype(np.float64)
        mean = self.scenarios.mean_demanded
        if mean is None:
            return active
        shifted = active.copy()
        kinds: dict[bytes, list[int]] = {}
        for index in range(len(active)):
            kinds.setdefault(mean[index].tobytes(), []).append(index)
        for members in kinds.values():
            shifted[members] += mean[members[0]] - active[members].mean(axis=0)
        return shifted
