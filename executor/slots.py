"""Slots and what lies in them: the part of the schedule that says where a copy goes.

What is copied when is ``executor.schedule``; ``docs/runtime.md`` has the rules of both.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from copy import copy
from typing import Any

from executor.chunks import Load
from executor.units import Unit, Units
from planner.documents import Policy
from solvers.errors import RunError

__all__ = ["Slots"]


class Slots:
    """Slots for dense parts and for experts and head tiles, with the loads that they hold.

    Parameters
    ----------
    policy
        How many there are, and how contents are evicted.
    units
        What there is to copy, and what is resident and in none of them.

    Attributes
    ----------
    streaming
        Stages that have experts or tiles in slots.
    free, free_starts
        Numbers of the slots that hold nothing: of those for experts and tiles, and of those for
        what stages wait for before they begin.
    loads
        By unit, what the others hold, wholly or in part.
    cached
        Complete loads among them that may be evicted.
    """

    def __init__(self, policy: Policy, units: Units) -> None:
        self._policy = policy
        self._units = units
        self.free_starts = list(range(policy.start_slots))
        self.free = list(range(policy.slots))
        self.loads: dict[Unit, Load] = {}
        self.cached: dict[Unit, Load] = {}
        stages = {u.stage for u in units.sizes if not u.starts and u not in units.resident}
        self.streaming = frozenset(map(units.stage, stages))
        self._share = max(policy.slots // max(len(stages), 1), 1)

    def twin(self) -> Slots:
        """Slots that may be changed without changing these; they have the same loads."""
        twin = copy(self)
        twin.free, twin.free_starts = self.free[:], self.free_starts[:]
        twin.loads, twin.cached = self.loads.copy(), self.cached.copy()
        return twin

    def take(self, stage: int, worth: Callable[[Load], tuple[Any, ...]]) -> int | None:
        """A slot for an expert or a tile of this stage, if need be that of what is ``worth`` least;
        None where all are needed."""
        lifo = self._policy.eviction == "lifo"
        own = lifo and self._of(stage) >= self._share
        if self.free and not own:
            return self.free.pop(0)
        evictable = [load for load in self.cached.values() if not own or load.unit.stage == stage]
        if not evictable:
            return None
        victim = min(evictable, key=worth)
        del self.cached[victim.unit], self.loads[victim.unit]
        return victim.slot

    def take_start(self) -> int | None:
        """A slot for a dense part, or a batch's keys and values; None where all are needed."""
        return self.free_starts.pop(0) if self.free_starts else None

    def _of(self, stage: int) -> int:
        """Slots that hold experts or tiles of one stage."""
        return sum(unit.stage == stage and not unit.starts for unit in self.loads)

    def give_back(self, load: Load) -> None:
        """A load's slot is free."""
        del self.loads[load.unit]
        insort(self.free_starts if load.unit.starts else self.free, load.slot)

    def ready(self, unit: Unit) -> bool:
        """Whether ``unit`` lies complete on the device."""
        if unit in self._units.resident:
            return True
        load = self.loads.get(unit)
        return load is not None and load.complete

    def place(self, unit: Unit) -> int | None:
        """The slot that holds a complete unit; None for a resident.

        Raises
        ------
        RunError
            If the unit is not there: the runtime would compute from foreign bytes.
        """
        if unit in self._units.resident:
            return None
        load = self.loads.get(unit)
        if load is None or not load.complete:
            raise RunError(f"{unit} is used before it was copied")
        return load.slot

    @property
    def ahead_bytes(self) -> int:
        """Bytes copied for prefetches whose router has yet to speak."""
        return sum(
            load.copied_bytes
            for load in self.loads.values()
            if load.kind == "copy_prefetch" and load.held and not load.cancelled
        )

    def check_integrity(self) -> None:
        """Raise if slots were lost or shared."""
        starts = [load.slot for load in self.loads.values() if load.unit.starts]
        other = [load.slot for load in self.loads.values() if not load.unit.starts]
        if sorted(starts + self.free_starts) != list(range(self._policy.start_slots)):
            raise RuntimeError(f"start slots: {starts} in use and {self.free_starts} free")
        if sorted(other + self.free) != list(range(self._policy.slots)):
            raise RuntimeError(f"slots: {other} in use and {self.free} free")
        for unit, load in self.loads.items():
            if unit in self._units.resident:
                raise RuntimeError(f"{unit} is resident and in a slot")
            if (unit in self.cached) != (load.complete and not load.held):
                raise RuntimeError(f"{unit}: cached and held at once, or neither")
