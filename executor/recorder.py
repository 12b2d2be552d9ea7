"""What happened in a run: events of the first passes, sums over all of them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import cast

from planner.documents import Event, Timeline
from planner.documents.timeline import EventKind

__all__ = ["KEPT_PASSES", "Recorder"]

KEPT_PASSES = 4
"""Passes whose events are kept one by one: the first prefill and three of decode."""


class Recorder:
    """Events of one channel each for compute and copies; two threads append, each its own kinds.

    Times count from the moment the recorder was made. Compute is recorded without gaps: an event
    begins where the one before it ended, so that bookkeeping counts with the operation that it
    serves, and durations add up to the time that passed.
    """

    def __init__(self, kept_passes: int = KEPT_PASSES) -> None:
        self.kept_passes = kept_passes
        self.origin_ns = time.perf_counter_ns()
        self._compute_ns = self.origin_ns
        self._events: list[Event] = []
        self._copies: list[Event] = []
        self._duration: defaultdict[str, int] = defaultdict(int)
        self._count: defaultdict[str, int] = defaultdict(int)

    def compute(
        self, kind: str, pass_index: int, layer: int, item: int, rows: int, size_bytes: int = 0
    ) -> None:
        """An operation (or a wait) on the compute channel that ends now, and what it writes."""
        self._add(kind, pass_index, layer, item, rows, time.perf_counter_ns(), size_bytes)

    def _add(
        self,
        kind: str,
        pass_index: int,
        layer: int,
        item: int,
        rows: int,
        end_ns: int,
        size_bytes: int = 0,
    ) -> None:
        start_ns, self._compute_ns = self._compute_ns, end_ns
        self._duration[kind] += end_ns - start_ns
        self._count[kind] += 1
        if pass_index < self.kept_passes:
            origin = self.origin_ns
            self._events.append(
                Event(
                    kind,
                    "compute",
                    pass_index,
                    layer,
                    item,
                    start_ns - origin,
                    end_ns - origin,
                    rows,
                    size_bytes,
                )
            )

    def copy(self, event: Event) -> None:
        """A copy on the disk channel, or a part of one; times from the recorder's origin."""
        self._duration[event.kind] += event.end_ns - event.start_ns
        self._count[event.kind] += 1
        if event.pass_index < self.kept_passes:
            self._copies.append(event)

    def beside(self, event: Event) -> None:
        """What another resource did meanwhile, recorded by compute; times from the origin."""
        self._duration[event.kind] += event.end_ns - event.start_ns
        self._count[event.kind] += 1
        if event.pass_index < self.kept_passes:
            self._events.append(event)

    def resume(self) -> None:
        """Compute goes on from now; the time since its last event belongs to nothing."""
        self._compute_ns = time.perf_counter_ns()

    def restart(self) -> None:
        """The run begins now, and times count from here: nothing was recorded yet."""
        self.resume()
        self.origin_ns = self._compute_ns

    def take(self) -> list[Event]:
        """The events kept so far, which are forgotten; for measuring."""
        compute, self._events = self._events, []
        copies, self._copies = self._copies, []
        return [*compute, *copies]

    def total_ns(self, kind: str) -> int:
        """Sum of the durations of one kind."""
        return self._duration.get(kind, 0)

    def durations(self) -> dict[EventKind, int]:
        """Sum of the durations of each kind that occurred."""
        return cast(dict[EventKind, int], dict(sorted(self._duration.items())))

    def counts(self) -> dict[EventKind, int]:
        """Number of events of each kind that occurred."""
        return cast(dict[EventKind, int], dict(sorted(self._count.items())))

    def timeline(self) -> Timeline:
        """The events kept, by start."""
        events = [*self._events, *self._copies]
        return Timeline.of(sorted(events, key=lambda event: (event.start_ns, event.end_ns)))
