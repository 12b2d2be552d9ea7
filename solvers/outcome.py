"""What a back end returns: why it stopped, and apart from that, what it found."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

__all__ = ["Bound", "BoundClass", "Eviction", "Outcome", "Schedule", "StageChoice", "Stop"]

Eviction = Literal["none", "lru", "lifo"]


class Stop(Enum):
    """Why a back end stopped."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit"
    RULE = "rule"
    INTERRUPTED = "interrupted"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Decisions for one stage: ``resident`` ascending, ``prefetch`` in the order of copying."""

    start_resident: bool = False
    resident: tuple[int, ...] = ()
    prefetch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is fixed before any demand is known.

    Attributes
    ----------
    stages
        One entry a stage.
    slots, start_slots
        Slots for items and for start units.
    reserve
        Item slots that prefetches leave to copies on demand.
    eviction
        ``none``: a slot is free after its item's work; ``lru``: contents stay until it is taken,
        the least recently used first; ``lifo``: likewise, but each stage has its share of the slots
        and gives up what came last.
    """

    stages: tuple[StageChoice, ...]
    slots: int
    start_slots: int
    reserve: int
    eviction: Eviction = "none"

    def replace(self, **changes: Any) -> Schedule:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


BoundClass = Literal["plan", "clairvoyant", "physical"]


@dataclass(frozen=True, slots=True)
class Bound:
    """No policy of the class takes less than ``value_ns`` (weighted sum over all passes).

    ``clairvoyant`` here: any fixed residents and any number of slots that fit, without eviction
    caching; prefetches know the demand and copies may be ordered in any way.
    """

    value_ns: int
    policies: BoundClass


@dataclass(frozen=True, slots=True)
class Outcome:
    """``schedule`` is None where none was found, ``bound`` where none was proven.

    ``smallest_capacity_bytes`` is given when the problem is infeasible: the least capacity with
    which it has a schedule.
    """

    stop: Stop
    schedule: Schedule | None
    bound: Bound | None = None
    smallest_capacity_bytes: int | None = None
    notes: tuple[str, ...] = ()
