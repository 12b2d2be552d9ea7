"""What a back end returns: why it stopped, and apart from that, what it found."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Bound",
    "BoundClass",
    "CacheProof",
    "ChargedProof",
    "Eviction",
    "HostProof",
    "HostShare",
    "LiveEviction",
    "Outcome",
    "PlanProof",
    "Proof",
    "Schedule",
    "StageChoice",
    "Stop",
]

LiveEviction = Literal["none", "lru", "lifo", "fifo", "frequency", "stale", "plan"]
"""Rules that look at nothing but what has been (``Schedule.eviction``). Documents and the executor
take their names from here."""
Eviction = Literal[LiveEviction, "belady"]
"""And the one that knows what is to come."""


class Stop(Enum):
    """Why a back end stopped."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit"
    RULE = "rule"
    INTERRUPTED = "interrupted"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Decisions for one stage: ``resident`` ascending, ``prefetch`` in the order of copying.

    With ``looks_ahead`` the items that the stage is said to demand take the place of those of
    ``prefetch`` that have not begun, once the demand of the stage before is known. With ``waits``,
    too, none of ``prefetch`` begins before that.
    """

    start_resident: bool = False
    resident: tuple[int, ...] = ()
    prefetch: tuple[int, ...] = ()
    looks_ahead: bool = False
    waits: bool = False

    def bare(self) -> StageChoice:
        """The same, with no items copied ahead."""
        return dataclasses.replace(self, prefetch=(), looks_ahead=False, waits=False)


class HostShare(NamedTuple):
    """Which demanded items are worked on where they lie, on the host, instead of being copied.

    Of the items of a stage whose copies were demanded and had not begun, ``percent`` in a hundred
    (rounded down): those of the fewest rows, and none of more than ``rows``.
    """

    rows: int
    percent: int


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
        the least recently used first; ``fifo``: what came first; ``frequency``: what was used in
        the fewest stages; ``stale``: what the most turns of its stage went by without, then what
        has its next turn last; ``plan``: what no stage prefetches, then what is prefetched farthest
        ahead; ``belady``: what the demand itself needs farthest ahead; ``lifo``: each stage has its
        share of the slots and gives up what came last.
    host
        What the host works on; None: nothing.
    hold
        While a stage's lead is computed that may demand copies, no chunk begins of what stages more
        than so many on need; None: that makes no difference.
    """

    stages: tuple[StageChoice, ...]
    slots: int
    start_slots: int
    reserve: int
    eviction: Eviction = "none"
    host: HostShare | None = None
    hold: int | None = None

    def replace(self, **changes: Any) -> Schedule:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


BoundClass = Literal["plan", "clairvoyant", "physical", "cache"]
"""Whom a bound is for (``Bound``); documents take the names from here."""


Integers = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False, slots=True)
class PlanProof:
    """Multipliers of the inequalities in ``solvers.proof_plan``.

    Attributes
    ----------
    share
        [stages, items].
    late, whole, carry
        [passes, stages].
    chain, wait, sets
        [stages].
    """

    share: Integers
    late: Integers
    whole: Integers
    carry: Integers
    chain: Integers
    wait: Integers
    sets: Integers


@dataclass(frozen=True, eq=False, slots=True)
class ChargedProof:
    """Multipliers of the inequalities in ``solvers.proof_charged``, [passes, stages] each."""

    late: Integers
    whole: Integers
    start: Integers
    fit: Integers


@dataclass(frozen=True, eq=False, slots=True)
class HostProof:
    """Multipliers of the inequalities in ``solvers.proof_host``, [passes, stages] each."""

    work: Integers
    host: Integers


@dataclass(frozen=True, eq=False, slots=True)
class Proof:
    """Multipliers that prove a bound for schedules of ``least_slots`` to ``most_slots`` slots.

    Python integers, all in units of 1 / ``scale``, none negative. ``solvers.proof`` says which
    inequality each belongs to, and recomputes the bound.

    Attributes
    ----------
    least_slots, most_slots
        Slots for items; ``most_slots`` None: as many as fit.
    scale
        Of all multipliers.
    memory
        Of the capacity.
    room
        [stages]: of the start slot.
    busy, ahead, held
        [passes, stages]: of the channel, of what is copied ahead, of the slots.
    plan
        Those that only hold for the class ``plan``; None in a proof for all schedules.
    host
        Those of a host that works on items; None: all are 0.
    back
        [passes, stages]: of what streaming a start unit adds to the lead; None: all are 0.
    charged
        Those that charge copies ahead, where the problem has a price of them; else None.
    """

    least_slots: int
    most_slots: int | None
    scale: int
    memory: int
    room: Integers
    busy: Integers
    ahead: Integers
    held: Integers
    plan: PlanProof | None = None
    host: HostProof | None = None
    back: Integers | None = None
    charged: ChargedProof | None = None


@dataclass(frozen=True, eq=False, slots=True)
class CacheProof:
    """Multipliers of the inequalities in ``solvers.proof_cache``.

    Python integers, all in units of 1 / ``scale``, none negative.

    Attributes
    ----------
    scale
        Of all multipliers.
    ahead
        Whether it holds where copies ahead that were not demanded stay in a cache.
    channel
        [passes]: of what the channel copies.
    device
        [passes, stages]: of what the device computes; all that is left where there is no host.
    memory
        [passes, stages]: of the capacity when a stage begins.
    """

    scale: int
    ahead: bool
    channel: Integers
    device: Integers
    memory: Integers


@dataclass(frozen=True, slots=True)
class Bound:
    """No policy of the class takes less than ``value_ns`` (weighted sum over all passes).

    ``clairvoyant`` here: any fixed residents and any number of slots that fit, without eviction
    caching; prefetches know the demand and copies may be ordered in any way. ``plan``: likewise,
    but what is copied ahead, and in which order, is the same in all passes, as in a ``Schedule``
    without eviction; where copies ahead have a price (``Problem.price``) that alone keeps them from
    being what a pass demands. ``cache``: with any cache that knows the demand, and whatever is
    copied ahead; items that are copied ahead and stay in a cache unused are left out where
    ``cached.ahead`` is false. ``physical``: all. Where a host works on items, each lets it take any
    of them in any pass. ``proofs`` cover all numbers of slots, ``cached`` proves the class
    ``cache``; without either, the bound is plain arithmetic.
    """

    value_ns: int
    policies: BoundClass
    proofs: tuple[Proof, ...] = field(default=(), compare=False)
    cached: CacheProof | None = field(default=None, compare=False)


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
