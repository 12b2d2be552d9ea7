"""Keeps workers alive: starts as many as wanted, and another one for each that ends."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time

from moeplan.service.worker import WorkerSettings

__all__ = ["Supervisor"]

_log = logging.getLogger("moeplan.service")

_LOOK_SECONDS = 0.1
_LIVED_SECONDS = 5.0
"""A worker that ended sooner may end again: the next one waits, longer each time."""
_MOST_WAIT_SECONDS = 10.0
_GRACE_SECONDS = 5.0


class _Seat:
    """One worker's place."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.wait = 0.0


class Supervisor:
    """Worker processes of one server.

    Parameters
    ----------
    settings
        Of each worker.
    count
        How many.
    """

    def __init__(self, settings: WorkerSettings, count: int) -> None:
        self._settings = settings
        self._seats = [_Seat() for _ in range(count)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="supervisor")
        self.restarts = 0

    def start(self) -> None:
        """Start the workers."""
        self._thread.start()

    def stop(self) -> None:
        """Let the workers give their jobs back and end; those that do not are killed."""
        self._stopping.set()
        self._thread.join()
        running = [seat.process for seat in self._seats if seat.process is not None]
        for process in running:
            if process.stdin is not None:
                # one that has ended already is no fault here
                with contextlib.suppress(OSError):
                    process.stdin.close()
        until = time.monotonic() + _GRACE_SECONDS
        for process in running:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def pids(self) -> list[int]:
        """Processes that run now."""
        return [
            seat.process.pid
            for seat in self._seats
            if seat.process is not None and seat.process.poll() is None
        ]

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for seat in self._seats:
                self._look(seat)

    def _look(self, seat: _Seat) -> None:
        now = time.monotonic()
        if seat.process is not None:
            code = seat.process.poll()
            if code is None:
                return
            lived = now - seat.started
            seat.wait = (
                0.0 if lived > _LIVED_SECONDS else min(2 * seat.wait + 0.2, _MOST_WAIT_SECONDS)
            )
            _log.info("worker %d ended (%d) after %.1f s", seat.process.pid, code, lived)
            if seat.process.stdin is not None:
                with contextlib.suppress(OSError):
                    seat.process.stdin.close()
            seat.process, seat.started = None, now
            self.restarts += 1
        if now - seat.started >= seat.wait:
            seat.process, seat.started = _spawn(self._settings), now


def _spawn(settings: WorkerSettings) -> subprocess.Popen[bytes]:
    # a session of its own: Control-C at the server's terminal is for the server
    process = subprocess.Popen(
        [sys.executable, "-m", "moeplan.service.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(settings.to_line())
            process.stdin.flush()
    return process
