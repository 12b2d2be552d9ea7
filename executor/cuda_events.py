"""Times of what a GPU did, by its own events."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch

from executor.recorder import KEPT_PASSES, Recorder
from planner.documents import Event, Timeline
from planner.documents.timeline import EventKind

__all__ = ["CudaRecorder", "timed_event"]


class _Anchor(NamedTuple):
    """A point that both clocks know."""

    event: torch.cuda.Event
    at_ns: int

    def time_of(self, event: torch.cuda.Event) -> int:
        """When ``event`` was reached, on the recorder's clock."""
        self.event.synchronize()
        apart_ms: float = self.event.elapsed_time(event)
        return self.at_ns + round(apart_ms * 1e6)


class _Work(NamedTuple):
    kind: str
    pass_index: int
    layer: int
    item: int
    rows: int
    end: torch.cuda.Event


class _Copied(NamedTuple):
    """A chunk: the point behind it, and what to measure that from."""

    end: torch.cuda.Event
    anchor: _Anchor
    size_bytes: int

    @property
    def done(self) -> bool:
        """Whether the device has come to its end."""
        return bool(self.end.query())  # type: ignore[no-untyped-call]


class CudaRecorder(Recorder):
    """A recorder whose operations end when the device is done with them.

    An operation leaves an event behind it on the compute stream, a copy on its stream; what they
    say is read once a pass has ended. A copy begins when the channel turned to it, or when the
    copy before it had ended. As on a CPU, compute has no gaps: where the device waits for Python,
    that time counts with the operation that comes next.
    """

    def __init__(self, kept_passes: int = KEPT_PASSES, channel: str = "disk") -> None:
        torch.cuda.synchronize()
        super().__init__(kept_passes)
        self._channel = channel
        self._anchor = _Anchor(_now(), self.origin_ns)
        self._work: list[_Work] = []
        self._chunks: list[_Copied] = []
        self._ended: list[tuple[Event, _Copied]] = []
        self._copies_end_ns = 0
        self._lock = threading.Lock()

    def compute(
        self, kind: str, pass_index: int, layer: int, item: int, rows: int, size_bytes: int = 0
    ) -> None:
        """An operation that was queued now; none of a GPU's writes keys and values below."""
        self._work.append(_Work(kind, pass_index, layer, item, rows, _now()))
        if kind == "sample":
            self._settle(all_copies=False)

    def copied(self, end: torch.cuda.Event, size_bytes: int) -> None:
        """A chunk was queued, with ``end`` behind it."""
        with self._lock:
            self._chunks.append(_Copied(end, self._anchor, size_bytes))

    def copy(self, event: Event) -> None:
        """A copy, of the oldest chunks not yet accounted for; its end is theirs."""
        with self._lock:
            left = event.size_bytes
            while left > 0:
                last = self._chunks.pop(0)
                left -= last.size_bytes
            self._ended.append((event, last))

    def resume(self) -> None:
        """Compute goes on from now."""
        self._settle()
        super().resume()
        with self._lock:
            self._anchor = _Anchor(_now(), self._compute_ns)

    def _settle(self, *, all_copies: bool = True) -> None:
        """Read the clock at every event so far; of copies, at those that have ended."""
        with self._lock:
            work, self._work = self._work, []
            for one in work:
                one.end.synchronize()
                end_ns = max(self._anchor.time_of(one.end), self._compute_ns)
                self._add(one.kind, one.pass_index, one.layer, one.item, one.rows, end_ns)
                self._anchor = _Anchor(one.end, end_ns)
            while self._ended and (all_copies or self._ended[0][1].done):
                event, last = self._ended.pop(0)
                last.end.synchronize()
                start = max(event.start_ns, self._copies_end_ns)
                end = max(last.anchor.time_of(last.end) - self.origin_ns, start)
                self._copies_end_ns = end
                super().copy(event._replace(channel=self._channel, start_ns=start, end_ns=end))

    def take(self) -> list[Event]:
        """The events kept so far, which are forgotten."""
        self._settle()
        return super().take()

    def total_ns(self, kind: str) -> int:
        """Sum of the durations of one kind."""
        self._settle()
        return super().total_ns(kind)

    def durations(self) -> dict[EventKind, int]:
        """Sum of the durations of each kind that occurred."""
        self._settle()
        return super().durations()

    def counts(self) -> dict[EventKind, int]:
        """Number of events of each kind that occurred."""
        self._settle()
        return super().counts()

    def timeline(self) -> Timeline:
        """The events kept, by start."""
        self._settle()
        return super().timeline()


def timed_event() -> torch.cuda.Event:
    """An event that knows when it was reached."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _now() -> torch.cuda.Event:
    event = timed_event()
    event.record()
    return event
