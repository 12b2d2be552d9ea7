"""Copies of the replay's channel, and what it asks of a problem beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from solvers.outcome import Schedule
from solvers.problem import Problem, Stage, Unit

__all__ = [
    "START",
    "Copy",
    "CopyPart",
    "Lists",
    "Parts",
    "needs_of",
    "slot_share",
    "streams_start",
]

START = -1
"""Item number of a start unit."""


class CopyPart(NamedTuple):
    """One uninterrupted piece of a copy: ``kind`` is ``start``, ``prefetch`` or ``demand``."""

    kind: str
    pass_index: int
    stage: int
    item: int
    start_ns: int
    end_ns: int
    size_bytes: int


class Copy:
    """A copy under way; ``left`` chunks have not begun yet. ``here`` counts stages through all
    passes. A copy that was given up has the kind ``dropped``."""

    __slots__ = ("begun_bytes", "here", "item", "kind", "left", "unit")

    def __init__(self, kind: str, here: int, item: int, unit: Unit) -> None:
        self.kind = kind
        self.here = here
        self.item = item
        self.unit = unit
        self.left = unit.chunks
        self.begun_bytes = 0

    @property
    def begun_ns(self) -> int:
        """What the chunks that have begun take, undisturbed."""
        unit = self.unit
        return (unit.chunks - self.left) * unit.chunk_ns if self.left else unit.copy_ns


class Lists:
    """What the chain copies in each stage: the schedule's list, or what was named instead.

    Parameters
    ----------
    problem, schedule
        What runs.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        starts = streams_start(problem, schedule)
        self._own = [
            ([START] if streams else []) + list(choice.prefetch)
            for streams, choice in zip(starts, schedule.stages, strict=True)
        ]
        self._resident = [frozenset(choice.resident) for choice in schedule.stages]
        self._waits = [choice.waits for choice in schedule.stages]
        self._named: dict[int, list[int]] = {}

    def of(self, here: int) -> list[int]:
        """Of a stage, counted through all passes."""
        named = self._named.get(here)
        return self._own[here % len(self._own)] if named is None else named

    def waits(self, here: int) -> bool:
        """Whether no item of a stage may be copied yet, since nobody has named any."""
        return self._waits[here % len(self._own)] and here not in self._named

    def name(self, here: int, begun: int, items: tuple[int, ...]) -> None:
        """Items take the place of a stage's copies but the first ones, which have ``begun``: no
        more than are replaced, and no residents."""
        planned = self.of(here)
        kept, rest = planned[:begun], planned[begun:]
        start = [START] if START in rest else []
        resident = self._resident[here % len(self._own)]
        fresh = [item for item in items if item not in kept and item not in resident]
        self._named[here] = kept + start + fresh[: len(rest) - len(start)]

    def passed(self, here: int) -> None:
        """The chain has come to a stage's end."""
        self._named.pop(here, None)


class Parts:
    """The record of what a channel copied.

    Parameters
    ----------
    stages
        Of a pass.
    first
        Number of the first pass.

    Attributes
    ----------
    made
        In the order in which they began.
    """

    def __init__(self, stages: Sequence[Stage], first: int) -> None:
        self._stages = stages
        self._first = first
        self._last: tuple[Copy, str] | None = None
        self.made: list[CopyPart] = []

    def note(self, copy: Copy, start: int, end: int, size: int) -> None:
        """Keep a part, joined to the one before where the copy just goes on."""
        # an item of a sequential stage is known to be needed all along: its copy stays one part
        here, stage = divmod(copy.here, len(self._stages))
        key = (copy, "" if self._stages[stage].sequential else copy.kind)
        if self._last == key and self.made[-1].end_ns == start:
            start, size = self.made[-1].start_ns, self.made[-1].size_bytes + size
            self.made.pop()
        here += self._first
        self.made.append(CopyPart(copy.kind, here, stage, copy.item, start, end, size))
        self._last = key


def streams_start(problem: Problem, schedule: Schedule) -> list[bool]:
    """Of each stage, whether its start unit is copied."""
    return [
        stage.start is not None and not choice.start_resident
        for stage, choice in zip(problem.stages, schedule.stages, strict=True)
    ]


def slot_share(problem: Problem, schedule: Schedule) -> int:
    """Slots of each stage whose items stream, with ``lifo``; one at least."""
    pairs = zip(problem.stages, schedule.stages, strict=True)
    streaming = sum(len(choice.resident) < len(stage.items) for stage, choice in pairs)
    return max(schedule.slots // max(streaming, 1), 1)


def needs_of(problem: Problem, passes: range) -> dict[tuple[int, int], list[int]]:
    """For each item the stages, counted through these passes, that demand it."""
    found: dict[tuple[int, int], list[int]] = {}
    demand = problem.scenarios.demand[passes.start : passes.stop]
    for index, stage, item in zip(*np.nonzero(demand), strict=True):
        here = int(index) * len(problem.stages) + int(stage)
        found.setdefault((int(stage), int(item)), []).append(here)
    return found
