"""What a run shows of one kind of operation, and of what its correction does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.documents import Event

__all__ = ["Seen", "Step", "every_other", "ratio", "took"]


@dataclass(frozen=True, slots=True)
class Step:
    """One kind's correction, and its effect on the run that it comes from.

    Attributes
    ----------
    kind
        An operation kind (``expert in int8-1``: of the experts in a form), or ``copy``.
    events
        How many it comes from.
    measured_ns, before_ns, after_ns
        All of them together, as they were and as the costs say before and after.
    held_out_ratio
        Measured / predicted of every other event by a correction that comes from the rest; None
        where there are too few. ``after_ns`` has seen what it is held against, this has not.
    """

    kind: str
    events: int
    measured_ns: int
    before_ns: int
    after_ns: int
    held_out_ratio: float | None

    @property
    def before_ratio(self) -> float:
        """Measured / predicted by the costs as they were."""
        return self.measured_ns / max(self.before_ns, 1)

    @property
    def after_ratio(self) -> float:
        """Measured / predicted by the corrected costs."""
        return self.measured_ns / max(self.after_ns, 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """One event, what is corrected by it (a ``Step.kind``), and by how much copies beside it (or
    computation beside a copy) lengthen it."""

    event: Event
    corrects: str
    factor: float

    @property
    def alone_ns(self) -> float:
        """What it took, freed of what ran beside it."""
        return (self.event.end_ns - self.event.start_ns) / self.factor


def every_other(seen: Sequence[Seen], first: int) -> list[Seen]:
    """Every other event of each kind."""
    by_kind: defaultdict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in seen:
        by_kind[one.event.kind, one.corrects].append(one)
    return [one for own in by_kind.values() for one in own[first::2]]


def took(seen: Iterable[Seen]) -> int:
    return sum(one.event.end_ns - one.event.start_ns for one in seen)


def ratio(seen: Sequence[Seen], says_ns: int) -> float | None:
    return took(seen) / says_ns if seen and says_ns else None
