"""What the schedule tells copies and compute: chunks, what is ready, what is named ahead; and what
it keeps of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from executor.units import Unit
from planner.documents import Event

__all__ = ["Chunk", "Load", "Named", "Routed"]


class Chunk(NamedTuple):
    """One piece of a copy: ``size_bytes`` from ``offset_bytes`` of ``unit`` into ``slot``."""

    unit: Unit
    slot: int
    offset_bytes: int
    size_bytes: int
    kind: str
    pass_index: int
    last: bool

    def event(self, start_ns: int, end_ns: int, size_bytes: int) -> Event:
        """The timeline's row for ``size_bytes`` of this unit's copy."""
        stage, item = self.unit.stage, self.unit.item
        return Event(
            self.kind, "disk", self.pass_index, stage, item, start_ns, end_ns, 0, size_bytes
        )


class Routed(NamedTuple):
    """What is computed in a stage, in order: what is here, then what must be copied first; and,
    meanwhile, what the host computes where it lies."""

    ready: tuple[Unit, ...]
    demanded: tuple[Unit, ...]
    hosted: tuple[Unit, ...] = ()


class Named(NamedTuple):
    """Experts that a predictor names, the likeliest first, for the layer so many ``stages`` on."""

    stages: int
    units: tuple[Unit, ...]


@dataclass(slots=True, eq=False)
class Load:
    """A unit in a slot, wholly or in part."""

    unit: Unit
    slot: int
    sequence: int
    kind: str
    size_bytes: int
    copied_bytes: int = 0
    complete: bool = False
    # a prefetch whose router has yet to speak, or an active expert still to be computed
    held: bool = True
    cancelled: bool = False
    age_ns: int = 0
    arrival: int = 0
