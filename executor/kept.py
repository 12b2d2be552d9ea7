"""Keys and values that lie below the device: the slots that they come to, and how they go back.

With the dense part of their layer, or each batch's alone: ``Policy.kv`` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from executor.chunks import Chunk
from executor.memory import Region, Regions
from executor.source import WeightSource
from executor.spill import ALL, Spill
from executor.state import GroupState
from executor.units import Unit
from planner.documents import Policy
from planner.memory import aligned, dense_slot_bytes

__all__ = ["Kept"]


class Kept:
    """Where keys and values of a pass lie on the device, by layer or by batch.

    Parameters
    ----------
    spill
        Where they lie below.
    source, policy
        What runs.
    regions
        Where slots, and room for batches that stay, are cut from.
    dense_slots
        Where the slots for dense parts begin: keys and values that come with one lie behind it.
    view
        A region's bytes.
    dtype
        Of keys and values.

    Attributes
    ----------
    came
        By slot: bytes of keys and values that were copied there last.
    """

    def __init__(
        self,
        spill: Spill,
        source: WeightSource,
        policy: Policy,
        regions: Regions,
        dense_slots: Sequence[int],
        view: Callable[[Region], memoryview],
        dtype: torch.dtype,
    ) -> None:
        self._spill, self._source, self._size = spill, source, policy.batch_size
        self._regions, self._view, self._dtype = regions, view, dtype
        self._dense_slots, self._slots = dense_slots, list[int]()
        self._resident: dict[Unit, int] = {}
        self.came: dict[int, int] = {}
        if policy.kv == "batches":
            slots = range(policy.start_slots)
            self._slots = [self._take(f"slot {slot}") for slot in slots]
            for layer, one in enumerate(policy.layers):
                for batch in one.kv_resident:
                    self._resident[Unit(layer, "kv", batch)] = self._take(f"{layer}.{batch}")

    def _take(self, name: str) -> int:
        return self._regions.take("kv", name, self._spill.layer_bytes)

    def bind_residents(self, state: GroupState) -> None:
        """Let attention find those of batches that stay."""
        for unit in self._resident:
            views = self._spill.views(self._values(unit, None))
            state.bind(unit.stage, *views, unit.item, stay=True)

    def start_sizes(self, lengths: Sequence[int]) -> dict[Unit, int]:
        """Bytes that a pass copies, of each dense part with its keys and values or of each batch's
        alone, where the sequences, place by place, have had so many tokens by then (0: begins, or
        is none)."""
        spill, sizes = self._spill, {}
        for layer, batch in spill.places:
            first = batch * self._size
            own = lengths if batch == ALL else lengths[first : first + self._size]
            size = spill.columns_bytes(min(max(own, default=0), spill.columns))
            if batch == ALL:
                unit = Unit(layer, "dense", -1)
                dense = self._source.size_bytes(unit)
                sizes[unit] = aligned(dense) + size if size else dense
            else:
                sizes[Unit(layer, "kv", batch)] = size
        return sizes

    def copy(self, chunk: Chunk) -> None:
        """Read one chunk of a batch's, of which there may be none yet."""
        if chunk.size_bytes:
            memory = self.memory(chunk.unit, chunk.slot)
            at = chunk.offset_bytes, chunk.size_bytes
            self._spill.read(chunk.unit.stage, memory, *at, chunk.unit.item)
        self.came[chunk.slot] = chunk.offset_bytes + chunk.size_bytes

    def bind(self, unit: Unit, slot: int, state: GroupState, reach: Callable[[range], int]) -> None:
        """Let attention find what came with a unit to a slot, and numbers beyond it.

        Parameters
        ----------
        unit, slot
            A dense part, or a batch's keys and values, and where it lies.
        state
            The pass.
        reach
            Columns that the pass looks at or writes, of any of some sequences.
        """
        values, members = self._values(unit, slot), _members(unit, state)
        came = self.came.get(slot, 0)
        self._spill.clear_beyond(values, came, state, members, reach(members))
        state.bind(unit.stage, *self._spill.views(values), max(unit.item, 0))

    def write(self, unit: Unit, slot: int, state: GroupState) -> int:
        """Write back what attention added to what came with a unit: bytes."""
        memory, members = self.memory(unit, slot), _members(unit, state)
        begun = max((state.counts[at] for at in members if state.joins(at)), default=0)
        going = filter(state.goes_on, members)
        tokens = [(state.column(state.past[at]), at - members.start) for at in going]
        columns = min(begun, state.columns)
        return self._spill.write(unit.stage, memory, columns, tokens, unit.item)

    def _offset(self, unit: Unit, slot: int | None) -> int:
        if slot is None:
            return self._resident[unit]
        if unit.kind == "kv":
            return self._slots[slot]
        return self._dense_slots[slot] + dense_slot_bytes(self._source.model, unit.stage)

    def memory(self, unit: Unit, slot: int | None) -> memoryview:
        """The bytes of all that may come with a unit."""
        return self._view(Region(self._offset(unit, slot), self._spill.layer_bytes))

    def _values(self, unit: Unit, slot: int | None) -> torch.Tensor:
        count = self._spill.layer_bytes // self._dtype.itemsize
        return self._regions.tensor(self._offset(unit, slot), (count,), self._dtype)


def _members(unit: Unit, state: GroupState) -> range:
    """The sequences whose keys and values come with a unit."""
    return state.batch(unit.item) if unit.kind == "kv" else range(state.sequences)
