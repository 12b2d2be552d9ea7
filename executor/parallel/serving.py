"""Experts of an offload plan, brought to their device as the executor's one channel does it.

The plan's residents stay; the chain copies the next layers' prefetches beside attention, exchanges
and experts; what is missing once sizes are known overtakes it. ``docs/runtime.md`` has the rules:
here, too, they are ``executor.schedule``'s.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from executor.device import Device
from executor.schedule import Chunk, Routed, Schedule
from executor.transfers import Following
from executor.units import Unit

__all__ = ["PlannedExperts", "Served"]


class Served(Protocol):
    """How a device's experts are found in each layer.

    Attributes
    ----------
    hits, misses
        Uses that found their expert here before its router had spoken, and the others.
    wait_ns
        Waits for experts.
    prefetched_bytes, wasted_bytes
        Copied ahead, and of these what was not used.
    """

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def wait_ns(self) -> int: ...
    @property
    def prefetched_bytes(self) -> int: ...
    @property
    def wasted_bytes(self) -> int: ...

    def enter(self, pass_index: int, stage: int) -> None:
        """Compute begins a stage; the stages follow one another without a gap."""

    def known(self, units: Sequence[Unit]) -> None:
        """Sizes are known: what the layer asks of this device, most rows first."""

    def serve(self, units: Collection[Unit]) -> Iterator[tuple[Unit, int | None]]:
        """These units, in the order in which they are best computed, each with its slot (None:
        resident), which is valid until the next is asked for."""

    def held(self) -> AbstractContextManager[None]:
        """No further copy begins meanwhile: what compute itself reads comes first."""


class PlannedExperts:
    """What a run's policy says, on this device's copy channel.

    Parameters
    ----------
    device
        Its policy is the plan's.
    own
        The experts placed on it.
    passes
        Of the whole run, at most.
    """

    def __init__(self, device: Device, own: Collection[Unit], passes: int) -> None:
        self._device = device
        sizes = {
            unit: size
            for unit, size in device.units.sizes.items()
            if unit.kind != "expert" or unit in own
        }
        self._schedule = Schedule(device.policy, replace(device.units, sizes=sizes), passes)
        self._transfers = device.memory.transfers(
            self._schedule, self._copy, device.memory.recorder(0)
        )
        self._routed = Routed((), ())
        self.wait_ns = self.prefetched_bytes = self._left_bytes = 0
        self._transfers.start()

    def _copy(self, chunk: Chunk, following: Following) -> None:
        self._device.copy(chunk, following)
        if chunk.kind == "copy_prefetch":
            self.prefetched_bytes += chunk.size_bytes

    @property
    def hits(self) -> int:
        """Uses that found a resident, a prefetch that was complete, or what was kept of it."""
        return self._schedule.served.total() - self.misses

    @property
    def misses(self) -> int:
        """Uses that found nothing complete when the sizes were known."""
        return self._schedule.served["on_demand"]

    @property
    def wasted_bytes(self) -> int:
        """Bytes of prefetches that were not used: once closed, also of those whose pass never
        came."""
        return self._transfers.wasted_bytes + self._left_bytes

    def enter(self, pass_index: int, stage: int) -> None:
        """See ``Served``."""
        self._transfers.enter(pass_index, stage)

    def known(self, units: Sequence[Unit]) -> None:
        """See ``Served``: demanded copies begin beside the rows' way."""
        self._routed = self._transfers.route(list(units), None)

    def serve(self, units: Collection[Unit]) -> Iterator[tuple[Unit, int | None]]:
        """See ``Served``; ``known`` has said which they are."""
        for unit in (*self._routed.ready, *self._routed.demanded):
            started = time.perf_counter_ns()
            slot, waited = self._transfers.wait(unit)
            if waited:
                self.wait_ns += time.perf_counter_ns() - started
            yield unit, slot
            self._transfers.computed(unit)

    def held(self) -> AbstractContextManager[None]:
        """See ``Served``."""
        return self._transfers.held()

    def close(self) -> None:
        """Stop copying."""
        self._transfers.close()
        self._left_bytes = self._schedule.ahead_bytes
        self._schedule.check_integrity()
