"""Expert buffering: an own cache of expert weights on each device.

"Towards MoE Deployment" (arXiv 2303.06182), section 6: a device keeps as many of its experts as its
memory holds; what is missing is read when its tokens have come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from executor.units import Unit

__all__ = ["Eviction", "ExpertBuffer"]

Eviction = Literal["lru", "lifo"]


class ExpertBuffer:
    """Slots that keep their contents until a slot is needed.

    Parameters
    ----------
    slots
        How many experts fit, at least 1.
    eviction
        ``lifo``: what was read last goes first, so that under the same walk through the layers in
        each pass the others stay. ``lru``: what was used least recently goes first.
    read
        Reads a unit into a slot.

    Attributes
    ----------
    hits, misses
        Uses that found their expert here, and those that had to read it.
    wait_ns
        Time of those reads.
    prefetched_bytes, wasted_bytes
        0: nothing is read before it is needed.
    """

    prefetched_bytes = wasted_bytes = 0

    def __init__(self, slots: int, eviction: Eviction, read: Callable[[Unit, int], None]) -> None:
        if slots < 1:
            raise ValueError("an expert buffer needs a slot")
        self._read, self._eviction = read, eviction
        self._free = list(range(slots))[::-1]
        # oldest first: by reading (lifo) or by use (lru)
        self._slot: dict[Unit, int] = {}
        self.hits = self.misses = self.wait_ns = 0

    def __contains__(self, unit: Unit) -> bool:
        return unit in self._slot

    def preload(self, units: Iterable[Unit]) -> None:
        """Read units ahead of all use, as far as slots are free."""
        for unit in units:
            if not self._free:
                return
            if unit not in self._slot:
                self._take(unit)

    def use(self, unit: Unit) -> int:
        """The slot that holds ``unit``, read now where it is missing; valid until the next call."""
        slot = self._slot.get(unit)
        if slot is None:
            self.misses += 1
            started = time.perf_counter_ns()
            slot = self._take(unit)
            self.wait_ns += time.perf_counter_ns() - started
            return slot
        self.hits += 1
        if self._eviction == "lru":
            self._slot[unit] = self._slot.pop(unit)
        return slot

    def enter(self, pass_index: int, stage: int) -> None:
        """Which stage it is makes no difference."""

    def known(self, units: Sequence[Unit]) -> None:
        """Nothing is read before it is used."""

    def serve(self, units: Collection[Unit]) -> Iterator[tuple[Unit, int]]:
        """Units with their slots, what is there first; a slot is valid until the next is asked
        for."""
        for unit in sorted(units, key=lambda one: one not in self):
            yield unit, self.use(unit)

    def held(self) -> AbstractContextManager[None]:
        """Nothing is read beside what compute does."""
        return nullcontext()

    def keep_only(self, units: Collection[Unit]) -> None:
        """Free the slots of all other units: they have gone to other devices."""
        for unit in [unit for unit in self._slot if unit not in units]:
            self._free.append(self._slot.pop(unit))

    def _take(self, unit: Unit) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            last = self._eviction == "lifo"
            victim = next(reversed(self._slot) if last else iter(self._slot))
            slot = self._slot.pop(victim)
        try:
            self._read(unit, slot)
        except BaseException:
            self._free.append(slot)
            raise
        self._slot[unit] = slot
        return slot
