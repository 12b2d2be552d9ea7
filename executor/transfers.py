"""The copy channel: one reader thread that carries out what the schedule chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from executor.direct import STALL_SECONDS
from executor.failures import out_of_memory
from executor.recorder import Recorder
from executor.schedule import Chunk, Named, Routed, Schedule
from executor.units import Unit
from solvers.errors import CancelledError, MoeplanError, RunError

__all__ = ["Copy", "Following", "Transfers"]

Following = Callable[[], Chunk | None]
"""What will likely be copied behind the chunk that is being copied."""

Copy = Callable[[Chunk, Following], None]
"""Reads a chunk into its slot."""

_LOOK_SECONDS = 1.0
"""So often who waits for a copy looks whether its reader still lives."""

_SLOWEST_BYTES_PER_SECOND = 1_000_000
"""Slower pace is refused, so that a chunk's time has a bound."""


class Transfers:
    """Copies units into slots while compute goes on.

    The schedule is touched under one lock only; reading happens outside it.

    Parameters
    ----------
    schedule
        What to copy next.
    copy
        Reads one chunk into its slot.
    recorder
        Where copies are recorded.

    Attributes
    ----------
    stuck
        Whether a read has not come back: what it writes to must not be used again.
    """

    def __init__(
        self,
        schedule: Schedule,
        copy: Copy,
        recorder: Recorder,
    ) -> None:
        self._schedule = schedule
        self._copy = copy
        self._recorder = recorder
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._reading: tuple[Chunk, float] | None = None
        self.stuck = False
        self._stopping = False
        self._held = False
        # whether the reader waits for something to copy, and what it then copies first
        self._idle = False
        self._chosen: Chunk | None = None
        self._thread = threading.Thread(target=self._run, name="moeplan-reader", daemon=True)

    def start(self) -> None:
        """Let the channel begin."""
        self._thread.start()

    # --- the reader thread --------------------------------------------------------------------

    def _run(self) -> None:
        segment: list[int] = []
        current: Chunk | None = None
        # since when the channel is at work: as for compute, copies are recorded without gaps, so
        # that the time between two of them counts with the second
        since = time.perf_counter_ns()
        try:
            while True:
                with self._changed:
                    chunk = self._next_chunk()
                    self._idle = chunk is None
                    while chunk is None and not self._stopping:
                        self._close_segment(current, segment)
                        current = None
                        self._changed.wait()
                        since = time.perf_counter_ns()
                        chunk, self._chosen = self._chosen, None
                    self._idle = False
                if chunk is None:
                    break
                if current is None or (chunk.unit, chunk.kind) != (current.unit, current.kind):
                    self._close_segment(current, segment)
                    segment[:] = [since, 0, 0]
                current = chunk
                self._reading = chunk, time.monotonic()
                with out_of_memory("copying to the device"):
                    self._copy(chunk, self._following)
                self._reading = None
                segment[1] = since = time.perf_counter_ns()
                segment[2] += chunk.size_bytes
                with self._changed:
                    if self._schedule.chunk_copied():
                        self._close_segment(current, segment)
                        current = None
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - compute raises it, see ``_check``
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        self._close_segment(current, segment)

    def _stir(self) -> None:
        """Something has changed: wake the reader if it has something to copy now.

        Most operations give it nothing, and a thread that wakes for nothing takes the interpreter
        from compute."""
        if self._idle and self._chosen is None:
            self._chosen = self._next_chunk()
            if self._chosen is not None:
                self._changed.notify_all()

    def _next_chunk(self) -> Chunk | None:
        return None if self._stopping or self._held else self._schedule.next_chunk()

    def _following(self) -> Chunk | None:
        with self._changed:
            return None if self._stopping or self._held else self._schedule.following()

    def _close_segment(self, chunk: Chunk | None, segment: list[int]) -> None:
        if chunk is None or not segment or not segment[2]:
            return
        origin = self._recorder.origin_ns
        self._recorder.copy(chunk.event(segment[0] - origin, segment[1] - origin, segment[2]))
        segment.clear()

    # --- what compute calls -------------------------------------------------------------------

    def _check(self) -> None:
        failure = self._failure
        try:
            if isinstance(failure, MoeplanError):
                raise failure
            if isinstance(failure, Exception):
                raise RuntimeError("the reader thread failed") from failure
            if failure is not None or (self._thread.ident and not self._thread.is_alive()):
                raise RunError(
                    "the reader thread was ended from outside: start the run again"
                ) from failure
        finally:
            # an error holds the frames that it went through, which must not hold it
            del failure

    def _check_reading(self) -> None:
        """Refuse to wait for a read that will not come back."""
        reading = self._reading
        if reading is None:
            return
        chunk, since = reading
        most = STALL_SECONDS + chunk.size_bytes / _SLOWEST_BYTES_PER_SECOND
        if time.monotonic() - since > most:
            self.stuck = True
            raise RunError(
                f"a read of {chunk.size_bytes} bytes has not come back for {most:.0f} s: does the "
                "disk hang?"
            )

    def cancel(self) -> None:
        """Let whoever computes stop at the next stage, or at once where it waits for a copy."""
        with self._changed:
            if self._failure is None:
                self._failure = CancelledError("the run was cancelled")
            self._changed.notify_all()

    def copies(self, pass_index: int, starts: Mapping[Unit, int]) -> None:
        """How many bytes of dense parts a pass copies: told before the pass before it."""
        with self._changed:
            self._schedule.copies(pass_index, starts)

    def enter(self, pass_index: int, stage: int) -> None:
        """Compute begins a stage."""
        with self._changed:
            self._check()
            self._schedule.enter(pass_index, stage)
            self._stir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """No further chunk begins meanwhile: what compute itself reads comes first."""
        with self._changed:
            self._check()
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._stir()

    def wait(self, unit: Unit) -> tuple[int | None, bool]:
        """Wait until ``unit`` is on the device: its slot (None: resident), and whether it waited.

        Raises
        ------
        RunError
            If the channel failed.
        """
        with self._changed:
            waited = False
            while not self._schedule.ready(unit):
                self._check()
                self._check_reading()
                waited = True
                self._changed.wait(_LOOK_SECONDS)
            self._check()
            if unit.kind == "dense":
                self._schedule.lead_begins()
            return self._schedule.slot(unit), waited

    def route(
        self,
        active: list[Unit],
        dense_stage: int | None,
        named: Named | None = None,
        rows: Mapping[Unit, int] | None = None,
    ) -> Routed:
        """The router has spoken: free the stage's dense part and queue what is missing."""
        with self._changed:
            self._check()
            if dense_stage is not None:
                self._schedule.release_dense(dense_stage)
            routed = self._schedule.route(active, named, rows)
            self._stir()
            return routed

    def release_dense(self, stage: int) -> None:
        """A layer without experts is done with its dense part."""
        with self._changed:
            self._schedule.release_dense(stage)
            self._stir()

    def release_start(self, unit: Unit) -> None:
        """A batch is done with its keys and values in one layer."""
        with self._changed:
            self._schedule.release_start(unit)
            self._stir()

    def computed(self, unit: Unit) -> None:
        """A computation from ``unit`` has ended."""
        with self._changed:
            self._schedule.computed(unit)
            self._stir()

    @property
    def wasted_bytes(self) -> int:
        """Bytes copied for prefetches that were not used."""
        with self._changed:
            return self._schedule.wasted_bytes

    def close(self) -> None:
        """Stop after the chunk on the channel.

        Raises
        ------
        RunError
            If the reader does not come back from a read.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is None or self.stuck:
            return
        self._thread.join(STALL_SECONDS)
        if self._thread.is_alive():
            self.stuck = True
            raise RunError(f"a read did not come back within {STALL_SECONDS:.0f} s")
        self._failure = None
