"""A device without weights, on a virtual clock: decisions that can be tested to the nanosecond.

It drives the same ``Schedule`` as a real run does, with durations that are given. The planner's
replay (``solvers.replay``) follows the same rules by its own code; the two agree event by event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from executor.schedule import Chunk, Named, Schedule
from executor.units import Unit, Units
from planner.documents import Event, Policy, ServedAs
from solvers.errors import RunError
from solvers.replay import Credit

__all__ = ["VirtualResult", "VirtualStage", "run_virtual"]


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """What compute does in one stage of one pass.

    Attributes
    ----------
    prologue_ns
        Before the dense part is waited for (``embed``).
    lead_ns
        Until the router has spoken.
    work
        (item, rows, duration_ns) of what the stage demands: experts, or head tiles.
    epilogue_ns
        ``combine`` or ``sample``.
    host
        (item, duration_ns) of the same, where they lie on the host.
    named
        What a predictor says once the router has spoken: how many stages on, and which experts.
    """

    prologue_ns: int
    lead_ns: int
    work: tuple[tuple[int, int, int], ...]
    epilogue_ns: int
    named: tuple[int, tuple[int, ...]] | None = None
    host: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class VirtualResult:
    """Events in the order in which they began, on each channel; when each pass ended; how often an
    active expert was served in each way."""

    compute: tuple[Event, ...]
    copies: tuple[Event, ...]
    host: tuple[Event, ...]
    pass_end_ns: tuple[int, ...]
    copied_bytes: int
    wasted_bytes: int
    served: dict[ServedAs, int]


def run_virtual(
    policy: Policy,
    units: Units,
    passes: Sequence[Sequence[VirtualStage]],
    chunk_ns: Callable[[Unit, int], int],
    starts: Mapping[int, Mapping[Unit, int]] = MappingProxyType({}),
    credit: Credit | None = None,
) -> VirtualResult:
    """Run ``passes`` on a virtual clock.

    Parameters
    ----------
    policy, units
        What is carried out.
    passes
        For each pass its stages: the layers (batch by batch, and then their experts, where units
        are so), then the head.
    chunk_ns
        Duration of a chunk, from its unit and its bytes.
    starts
        By pass: bytes of what stages wait for of which it copies another number than
        ``units.sizes`` says.
    credit
        By how much a channel that has rested is ahead of ``chunk_ns``.

    Raises
    ------
    RunError
        If compute waits for a copy that can never start.
    """
    return _Virtual(policy, units, passes, chunk_ns, starts, credit).run()


def _needs(units: Units, passes: Sequence[Sequence[VirtualStage]]) -> dict[Unit, list[int]]:
    """When each unit is needed, as ``Schedule`` takes it."""
    found: dict[Unit, list[int]] = {}
    for index, stages in enumerate(passes):
        for stage, times in enumerate(stages):
            layer, _ = units.place(stage)
            kind: Literal["expert", "head"] = "head" if layer == units.layers else "expert"
            for item, _, _ in times.work:
                here = index * (units.layers + 1) + layer
                found.setdefault(Unit(layer, kind, item), []).append(here)
    return found


class _Virtual:
    def __init__(
        self,
        policy: Policy,
        units: Units,
        passes: Sequence[Sequence[VirtualStage]],
        chunk_ns: Callable[[Unit, int], int],
        starts: Mapping[int, Mapping[Unit, int]],
        credit: Credit | None,
    ) -> None:
        self._units = units
        self._passes = passes
        self._chunk_ns = chunk_ns
        self._now = 0
        needs = _needs(units, passes) if policy.eviction == "belady" else None
        self._schedule = Schedule(policy, units, len(passes), lambda: self._now, needs)
        for index, sizes in starts.items():
            self._schedule.copies(index, sizes)
        self._flying: Chunk | None = None
        self._ends = 0
        self._bucket = credit
        self._credit_ns = credit.depth_ns if credit else 0
        self._compute: list[Event] = []
        self._copies: list[Event] = []
        self._host: list[Event] = []
        self._joined: Chunk | None = None
        self._copied_bytes = 0

    def run(self) -> VirtualResult:
        ends = []
        for index, stages in enumerate(self._passes):
            for stage, times in enumerate(stages):
                self._stage(index, stage, times)
            ends.append(self._now)
        self._schedule.check_integrity()
        return VirtualResult(
            tuple(self._compute),
            tuple(event for event in self._copies if event.start_ns < self._now),
            tuple(self._host),
            tuple(ends),
            self._copied_bytes,
            self._schedule.wasted_bytes,
            dict(self._schedule.served),
        )

    def _stage(self, index: int, stage: int, times: VirtualStage) -> None:
        schedule = self._schedule
        schedule.enter(index, stage)
        if stage == 0:
            self._work("embed", index, -1, -1, times.prologue_ns, 0)
        layer, batch = self._units.place(stage)
        if batch is None:
            self._layer(index, layer, times)
            return
        kept = Unit(layer, "kv", batch)
        self._wait(kept, "wait_kv", index)
        self._work("attention", index, layer, batch, times.lead_ns, 0)
        schedule.release_start(kept)

    def _layer(self, index: int, stage: int, times: VirtualStage) -> None:
        """A layer, or what is left of it when each batch had its attention; or the head."""
        schedule, head = self._schedule, stage == self._units.layers
        if not head:
            self._wait(Unit(stage, "dense", -1), "wait_dense", index)
            schedule.lead_begins()
        self._work("attention", index, stage, -1, times.lead_ns, 0)
        if not head:
            schedule.release_dense(stage)
        # most rows first, tiles by index; sorting keeps the order of equals
        wanted = sorted(times.work, key=lambda one: (0 if head else -one[1], one[0]))
        kind: Literal["expert", "head"] = "head" if head else "expert"
        work = {Unit(stage, kind, item): (rows, duration) for item, rows, duration in wanted}
        named = None
        if times.named is not None:
            stages, items = times.named
            units = tuple(Unit(stage + stages, "expert", item) for item in items)
            named = Named(stages, units)
        rows_of = {unit: rows for unit, (rows, _) in work.items()}
        routed = schedule.route(list(work), named, rows_of)
        done = self._on_host(index, stage, routed.hosted, dict(times.host), rows_of)
        for unit in (*routed.ready, *routed.demanded):
            self._wait(unit, f"wait_{kind}", index)
            rows, duration = work[unit]
            self._work(kind, index, stage, unit.item, duration, rows)
            schedule.computed(unit)
        if routed.hosted and done > self._now:
            begin, item = self._now, routed.hosted[-1].item
            self._choose()
            self._advance(done)
            self._compute.append(
                Event("wait_expert", "compute", index, stage, item, begin, self._now, 0, 0)
            )
        self._work("sample" if head else "combine", index, stage, -1, times.epilogue_ns, 0)

    def _on_host(
        self,
        index: int,
        stage: int,
        units: tuple[Unit, ...],
        durations: dict[int, int],
        rows: dict[Unit, int],
    ) -> int:
        """The host's work of a stage begins, one after another; returns when it will have ended."""
        now = self._now
        for unit in units:
            end = now + durations[unit.item]
            at = index, stage, unit.item
            self._host.append(Event("host_expert", "cpu", *at, now, end, rows[unit], 0))
            now = end
        return now

    def _work(self, kind: str, index: int, layer: int, item: int, duration: int, rows: int) -> None:
        if duration:
            begin = self._now
            self._choose()
            self._advance(begin + duration)
            self._compute.append(
                Event(kind, "compute", index, layer, item, begin, self._now, rows, 0)
            )

    def _wait(self, unit: Unit, kind: str, index: int) -> None:
        begin = self._now
        while not self._schedule.ready(unit):
            self._choose()
            if self._flying is None:
                raise RunError(f"pass {index}: {unit} can never be copied")
            self._now = self._ends
            self._land()
        if self._now > begin:
            self._compute.append(
                Event(kind, "compute", index, unit.stage, unit.item, begin, self._now, 0, 0)
            )

    # --- the channel --------------------------------------------------------------------------

    def _choose(self) -> None:
        """The channel chooses what it copies from now on, if it is idle."""
        if self._flying is not None:
            return
        chunk = self._schedule.next_chunk()
        if chunk is None:
            self._joined = None
            return
        self._flying = chunk
        self._ends = self._now + self._duration_ns(chunk)
        joined = self._joined
        last = self._copies[-1] if self._copies else None
        if (
            joined is not None
            and last is not None
            and (joined.unit, joined.kind) == (chunk.unit, chunk.kind)
            and last.end_ns == self._now
        ):
            size = last.size_bytes + chunk.size_bytes
            self._copies[-1] = last._replace(end_ns=self._ends, size_bytes=size)
        else:
            self._copies.append(chunk.event(self._now, self._ends, chunk.size_bytes))
        self._joined = None if chunk.last else chunk

    def _duration_ns(self, chunk: Chunk) -> int:
        """How long the chunk that begins now takes; ``_ends`` is still when the last one ended."""
        lasting = self._chunk_ns(chunk.unit, chunk.size_bytes)
        if self._bucket is None:
            return lasting
        filled = self._credit_ns + self._now - self._ends
        filled = min(filled, self._bucket.depth_ns)
        least = math.ceil(Fraction(lasting * self._bucket.peak_ppm, 1_000_000))
        duration = max(least, lasting - filled)
        self._credit_ns = filled - (lasting - duration)
        return duration

    def _land(self) -> None:
        """The chunk on the channel has ended."""
        if self._flying is not None:
            self._copied_bytes += self._flying.size_bytes
            self._flying = None
            self._schedule.chunk_copied()

    def _advance(self, to: int) -> None:
        """Let time pass; at ``to`` itself compute acts before the channel chooses."""
        while self._flying is not None and self._ends <= to:
            self._now = self._ends
            self._land()
            if self._ends < to:
                self._choose()
        self._now = to
