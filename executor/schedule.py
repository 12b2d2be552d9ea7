"""Which unit is copied next, and which slot holds what: the runtime's rules as a state machine.

No torch, no threads, no clock: the same object is driven by threads in a real run and by a virtual
clock in tests. ``docs/runtime.md`` has the rules; the comments here say which one is at work. What
lies where is ``executor.slots``.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from executor.chunks import Chunk, Load, Named, Routed
from executor.eviction import Needs, Worths
from executor.slots import Slots
from executor.units import Unit, Units
from planner.documents import Policy, ServedAs

__all__ = ["Chunk", "Named", "Routed", "Schedule"]


class Schedule:
    """Slots, the demand queue and the chain.

    Parameters
    ----------
    policy
        Slots, reserve, eviction and chunk size.
    units
        What there is to copy.
    passes
        Passes of the whole run, over all groups.
    clock
        Nanoseconds, for the age of cached contents only.
    needs
        Of a recorded run, for eviction by ``belady``.

    Attributes
    ----------
    wasted_bytes
        Bytes of prefetches that were not used.
    served
        How often an active expert was met in each way; a prefetch that was not complete when the
        router spoke counts as on demand.

    Raises
    ------
    OptionError
        If ``belady`` has nothing recorded.
    """

    def __init__(
        self,
        policy: Policy,
        units: Units,
        passes: int,
        clock: Callable[[], int] = time.perf_counter_ns,
        needs: Needs | None = None,
    ) -> None:
        self._worths = Worths(policy, units, needs)
        self._clock = clock
        self._policy = policy
        self._units = units
        self._stages = len(units.chain)
        self._last_sequence = passes * self._stages - 1
        self._sequence = 0
        self._routed_sequence = -1
        self._slots = Slots(policy, units)
        self._demand: deque[Unit] = deque()
        self._chain_sequence = 0
        self._chain_index = 0
        self._chain_load: Load | None = None
        # by sequence: what the chain copies there instead of the plan's list
        self._instead: dict[int, tuple[Unit, ...]] = {}
        # by pass: bytes of dense parts that are not those of ``units``
        self._starts: dict[int, Mapping[Unit, int]] = {}
        self._flying: Load | None = None
        self._flying_bytes = 0
        self._arrivals = 0
        # how many stages on the chain may copy while a layer that may demand copies comes to its
        # router
        self._hold = self._stages if policy.hold is None else policy.hold
        self._leading = False
        self.wasted_bytes = 0
        self.served: Counter[ServedAs] = Counter()

    # --- what the copy channel asks -----------------------------------------------------------

    def next_chunk(self) -> Chunk | None:
        """Choose the next chunk and mark it as being copied; None when nothing may start."""
        if self._flying is not None:
            raise RuntimeError("the channel copies one chunk at a time")
        load = self._next_demand() or self._next_of_chain()
        if load is None:
            return None
        size = min(self._policy.chunk_bytes, load.size_bytes - load.copied_bytes)
        self._flying, self._flying_bytes = load, size
        return Chunk(
            load.unit,
            load.slot,
            load.copied_bytes,
            size,
            load.kind,
            load.sequence // self._stages,
            load.copied_bytes + size == load.size_bytes,
        )

    def chunk_copied(self) -> bool:
        """The chunk on the channel has ended; True when its unit is now complete."""
        load, size = self._flying, self._flying_bytes
        if load is None:
            raise RuntimeError("no chunk is on the channel")
        self._flying = None
        load.copied_bytes += size
        if load.cancelled:
            self._slots.give_back(load)
            return False
        if load.copied_bytes < load.size_bytes:
            return False
        load.complete = True
        self._arrivals += 1
        load.arrival = self._arrivals
        if load is self._chain_load:
            self._chain_load = None
            self._chain_index += 1
        elif self._demand and self._demand[0] == load.unit:
            self._demand.popleft()
        return True

    def following(self) -> Chunk | None:
        """What the channel would copy behind the chunk that is on it, if it chose now: what compute
        says until then may change that. Nothing is changed by asking."""
        if self._flying is None:
            return None
        # the rules themselves, on copies of what they change
        guess = copy(self)
        guess._slots = self._slots.twin()
        guess._demand, guess._instead = self._demand.copy(), self._instead.copy()
        flying = guess._flying = guess._slots.loads[self._flying.unit] = replace(self._flying)
        if self._chain_load is self._flying:
            guess._chain_load = flying
        guess.chunk_copied()
        return guess.next_chunk()

    def _next_demand(self) -> Load | None:
        if not self._demand:
            return None
        unit = self._demand[0]
        load = self._slots.loads.get(unit)
        if load is not None:
            return load
        slot = self._slots.take(unit.stage, self._worth)
        if slot is None:
            return None
        kind = "copy_head" if unit.kind == "head" else "copy_demand"
        return self._start(unit, slot, self._sequence, kind)

    def _next_of_chain(self) -> Load | None:
        # never a whole pass ahead, and not beyond the run's last pass; less while it is held back
        ahead = min(self._hold if self._leading else self._stages, self._stages - 1)
        farthest = min(self._sequence + ahead, self._last_sequence)
        if self._chain_load is not None:
            return self._chain_load if self._chain_load.sequence <= farthest else None
        while True:
            if self._chain_sequence > farthest:
                return None
            stage = self._list(self._chain_sequence)
            if self._chain_index >= len(stage):
                self._instead.pop(self._chain_sequence, None)
                self._chain_sequence += 1
                self._chain_index = 0
                continue
            unit = stage[self._chain_index]
            if not unit.starts and self._unnamed(self._chain_sequence):
                return None
            if unit in self._slots.loads:
                self._chain_index += 1
                continue
            break
        if unit.starts:
            taken = self._slots.take_start()
            if taken is None:
                return None
            load = self._start(unit, taken, self._chain_sequence, f"copy_{unit.kind}")
        else:
            if len(self._slots.free) + len(self._slots.cached) <= self._policy.reserve:
                return None
            taken = self._slots.take(unit.stage, self._worth)
            if taken is None:
                # with lifo, the stage's share may be full of what is still needed
                return None
            kind = "copy_head" if unit.kind == "head" else "copy_prefetch"
            load = self._start(unit, taken, self._chain_sequence, kind)
        self._chain_load = load
        return load

    def _list(self, sequence: int) -> tuple[Unit, ...]:
        """What the chain copies in a stage, in order."""
        return self._instead.get(sequence, self._units.chain[sequence % self._stages])

    def _unnamed(self, sequence: int) -> bool:
        """Whether a stage waits for a predictor, which has not spoken yet."""
        return sequence % self._stages in self._units.waits and sequence not in self._instead

    def _expect(self, named: Named) -> None:
        """A predictor has spoken: what has not begun of a stage's prefetches gives way."""
        sequence = self._sequence + named.stages
        if self._chain_sequence > sequence:
            return
        before = self._list(sequence)
        begun: tuple[Unit, ...] = ()
        if self._chain_sequence == sequence:
            begun = before[: self._chain_index + (self._chain_load is not None)]
        rest = before[len(begun) :]
        dense = tuple(unit for unit in rest if unit.starts)
        fresh = tuple(
            unit for unit in named.units if unit not in begun and unit not in self._units.resident
        )
        self._instead[sequence] = (*begun, *dense, *fresh[: len(rest) - len(dense)])

    def _start(self, unit: Unit, slot: int, sequence: int, kind: str) -> Load:
        starts = self._starts.get(sequence // self._stages, {})
        size = starts.get(unit, self._units.sizes[unit])
        load = self._slots.loads[unit] = Load(unit, slot, sequence, kind, size)
        return load

    def _worth(self, load: Load) -> tuple[Any, ...]:
        routed = self._routed_sequence == self._sequence
        return self._worths.of(load.unit, load.age_ns, load.arrival, self._sequence, routed)

    # --- what compute asks and reports --------------------------------------------------------

    def copies(self, pass_index: int, starts: Mapping[Unit, int]) -> None:
        """How many bytes of dense parts with keys and values, or of those alone, a pass copies,
        where it is not what ``units`` says: told before compute enters the pass before it."""
        self._starts[pass_index] = starts

    def enter(self, pass_index: int, stage: int) -> None:
        """Compute begins a stage; the stages follow one another without a gap."""
        sequence = pass_index * self._stages + stage
        if sequence not in (self._sequence, self._sequence + 1):
            raise RuntimeError(f"stage {sequence} entered after {self._sequence}")
        self._sequence = sequence
        if not stage:
            self._starts.pop(pass_index - 1, None)

    def lead_begins(self) -> None:
        """The stage's dense part is there: until its router has spoken, copies may be held back.

        Nothing that is computed until then waits for a copy.
        """
        self._leading = self._sequence % self._stages in self._slots.streaming

    def ready(self, unit: Unit) -> bool:
        """Whether ``unit`` lies complete on the device."""
        return self._slots.ready(unit)

    def slot(self, unit: Unit) -> int | None:
        """The slot that holds a complete unit; None for a resident.

        Raises
        ------
        RunError
            If the unit is not there: the runtime would compute from foreign bytes.
        """
        return self._slots.place(unit)

    def release_dense(self, stage: int) -> None:
        """Step 3 has ended: a streamed dense part's slot is free."""
        self._leading = False
        self.release_start(Unit(stage, "dense", -1))

    def release_start(self, unit: Unit) -> None:
        """What a stage waited for is needed no longer: its slot is free, if it has one."""
        load = self._slots.loads.get(unit)
        if load is not None:
            self._slots.give_back(load)

    def route(
        self, active: list[Unit], named: Named | None = None, rows: Mapping[Unit, int] | None = None
    ) -> Routed:
        """The router has spoken (or stage L begins).

        Parameters
        ----------
        active
            What the stage computes, in the order wanted: experts by most tokens, then lower index;
            head tiles by index.
        named
            What a predictor now says that a later stage of this pass will need.
        rows
            Tokens of each active expert, where a host may compute some.

        Returns
        -------
        Routed
            Ready units, demanded ones and those of the host, each in the order in which they are
            computed.
        """
        if self._routed_sequence == self._sequence:
            raise RuntimeError("a stage is routed once")
        self._routed_sequence, self._leading = self._sequence, False
        layer, _ = self._units.place(self._sequence % self._stages)
        wanted = set(active)
        met = {unit: self._served_as(unit) for unit in active if unit.kind == "expert"}
        partial: Unit | None = None
        chained = self._chain_load
        if chained is not None and chained.sequence == self._sequence:
            # the stage's prefetch that is partly copied: demanded first if it is active
            self._chain_load = None
            if chained.unit in wanted:
                partial = chained.unit
                if chained.kind == "copy_prefetch":
                    chained.kind = "copy_demand"
            else:
                self._drop(chained)
        if self._chain_sequence <= self._sequence:
            for passed in range(self._chain_sequence, self._sequence + 1):
                self._instead.pop(passed, None)
            self._chain_sequence, self._chain_index = self._sequence + 1, 0
        if named is not None:
            self._expect(named)
        for unit in [unit for unit in self._slots.loads if unit.stage == layer]:
            load = self._slots.loads[unit]
            if unit.starts or load.cancelled:
                continue
            if unit in wanted:
                self._slots.cached.pop(unit, None)
                load.held = True
            elif load.held and load.complete:
                self._drop(load)
        ready = tuple(unit for unit in active if self.ready(unit))
        here = set(ready)
        first = () if partial is None else (partial,)
        rest = tuple(unit for unit in active if unit not in here and unit != partial)
        hosted = self._hosted(rest, rows or {})
        rest = rest[: len(rest) - len(hosted)]
        self.served.update((met | dict.fromkeys(hosted, "on_host")).values())
        self._demand.extend((*first, *rest))
        return Routed(ready, (*first, *rest), hosted)

    def _hosted(self, units: tuple[Unit, ...], rows: Mapping[Unit, int]) -> tuple[Unit, ...]:
        """What the host takes of those that were demanded and have not begun: the last ones."""
        host = self._policy.host
        if host is None:
            return ()
        experts = [unit for unit in units if unit.kind == "expert"]
        few = len(experts) * host.percent // 100
        least = experts[len(experts) - few :]
        return tuple(unit for unit in least if rows[unit] <= host.rows)

    def _served_as(self, unit: Unit) -> ServedAs:
        if unit in self._units.resident:
            return "resident"
        if unit in self._slots.cached:
            return "cached"
        load = self._slots.loads.get(unit)
        return "prefetched" if load is not None and load.complete else "on_demand"

    def _drop(self, load: Load) -> None:
        """A prefetch that is not active."""
        self.wasted_bytes += load.copied_bytes
        if load.complete:
            self._release(load)
        elif load is self._flying:
            # a chunk once started is finished, and its bytes are wasted, too
            load.cancelled = True
            self.wasted_bytes += self._flying_bytes
        else:
            self._slots.give_back(load)

    def computed(self, unit: Unit) -> None:
        """A computation from ``unit`` has ended."""
        load = self._slots.loads.get(unit)
        if load is not None:
            self._worths.used(unit, self._sequence)
            self._release(load)

    def _release(self, load: Load) -> None:
        if self._policy.eviction != "none":
            load.held = False
            load.age_ns = self._clock()
            self._slots.cached[load.unit] = load
        else:
            self._slots.give_back(load)

    @property
    def ahead_bytes(self) -> int:
        """Bytes copied for prefetches whose router has yet to speak."""
        return self._slots.ahead_bytes

    def check_integrity(self) -> None:
        """Raise if slots were lost or shared: called when idle and after each test."""
        self._slots.check_integrity()
