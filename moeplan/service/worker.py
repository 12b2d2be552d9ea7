"""A worker: a process that takes one job after the other and solves it.

``python -m moeplan.service.worker`` reads its settings from the first line of stdin, so that no
password shows in a list of processes, and ends when stdin does: with the server that started it.
One thread solves; one renews the lease and hears of cancelling, and ends the whole process where
the work is no longer wanted, since a search inside a native library cannot be stopped otherwise.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moeplan.service.errors import StoreError, StoreFullError
from moeplan.service.problems import problem, problem_of
from moeplan.service.store import Beat, Job, Store
from moeplan.service.store.documents import Entry
from solvers.errors import MoeplanError

__all__ = ["Worker", "WorkerSettings", "main"]

_log = logging.getLogger("moeplan.worker")

_TICK_SECONDS = 0.2
_NICE = 19
"""Searches give way to whoever answers requests."""
_SESSION_NICE = 10
"""A tenth of an ordinary session's share: with less, a busy machine would let leases run out."""
_DATABASE_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works.

    Attributes
    ----------
    store_url
        Where its jobs are.
    lease_seconds
        After so long without a sign of life another worker takes its job up.
    poll_seconds
        How often it looks for a job when there was none.
    most_attempts
        A job that so many workers died of is failed.
    memory_bytes
        Address space of the process.
    """

    store_url: str
    lease_seconds: float = 30.0
    poll_seconds: float = 0.25
    most_attempts: int = 3
    memory_bytes: int = 8 << 30

    def to_line(self) -> bytes:
        """The first line of a worker's stdin."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Worker:
    """Takes jobs of one store; see the module."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._store = Store(settings.store_url)
        self._owner = f"{socket.gethostname()[:30]}:{os.getpid()}"
        self._current: Job | None = None
        self._told: dict[str, Any] | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        """Held while the store hears of a job: else the end of one could look like a lost lease."""

    def watch(self) -> None:
        """In a thread: when stdin ends, give the job back and end."""
        while sys.stdin.buffer.read(4096):
            pass
        job = self._current
        if job is not None:
            try:
                self._store.jobs.release(job)
            except StoreError as error:
                _log.warning("job %s is left to its lease: %s", job.id, error)
        _end()

    def run(self) -> None:
        """Work until the process ends."""
        while True:
            try:
                job = self._store.jobs.claim(
                    self._owner,
                    lease_seconds=self._settings.lease_seconds,
                    most_attempts=self._settings.most_attempts,
                )
            except StoreError as error:
                _log.warning("%s", error)
                time.sleep(_DATABASE_RETRY_SECONDS)
                continue
            if job is None:
                time.sleep(self._settings.poll_seconds)
            else:
                self._do(job)

    def _do(self, job: Job) -> None:
        self._told, self._current = None, job
        self._over.clear()
        heart = threading.Thread(target=self._beat, args=(job,), daemon=True)
        heart.start()
        try:
            self._solve(job)
        finally:
            self._current = None
            self._over.set()
            heart.join()

    def _solve(self, job: Job) -> None:
        from moeplan.service.work import carry_out

        try:
            entries, result = carry_out(self._store, job, self._tell)
        except StoreError:
            raise  # no fault of the job: its lease ends, and somebody else takes it up
        except MoeplanError as error:
            self._fail(job, problem_of(error))
        except MemoryError:
            size = f"{self._settings.memory_bytes >> 20} MiB"
            detail = f"the job needs more memory than a worker has ({size}): ask for less"
            self._fail(job, problem(422, "memory", "Too large", detail))
        except Exception as error:  # noqa: BLE001 - a bug fails its job, told in the log, not the worker
            _log.exception("job %s (%s)", job.id, job.kind)
            detail = (
                f"a bug in moeplan ended the job: {type(error).__name__}; the server's log tells"
            )
            self._fail(job, problem(500, "internal", "Internal error", detail))
        else:
            self._keep(job, entries, result)

    def _fail(self, job: Job, told: dict[str, Any]) -> None:
        with self._lock:
            self._store.jobs.fail(job, told)
            self._over.set()

    def _keep(self, job: Job, entries: Sequence[Entry], result: str) -> None:
        """End a job with what was made; where the store's disk is full, wait for room with it."""
        while True:
            try:
                with self._lock:
                    if not self._store.jobs.finish(job, entries, result):
                        self._store.jobs.confirm_cancel(job)
                    self._over.set()
                return
            except StoreFullError as error:
                _log.warning("what job %s made waits for room: %s", job.id, error)
                time.sleep(_DATABASE_RETRY_SECONDS)

    def _tell(self, progress: dict[str, Any]) -> None:
        self._told = progress

    def _beat(self, job: Job) -> None:
        """Renew the lease until the job is over; end the process where it is no longer wanted."""
        lease = self._settings.lease_seconds
        every = min(lease / 4, 1.0)
        due = time.monotonic() + every
        while not self._over.wait(min(_TICK_SECONDS, every)):
            told, self._told = self._told, None
            if told is None and time.monotonic() < due:
                continue
            due = time.monotonic() + every
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    beat = self._store.jobs.beat(job, lease_seconds=lease, progress=told)
                    if beat is Beat.GO_ON:
                        continue
                    if beat is Beat.CANCEL:
                        self._store.jobs.confirm_cancel(job)
                except StoreError as error:
                    _log.warning("the lease of job %s was not renewed: %s", job.id, error)
                    continue
                _end()


def _end() -> None:
    """End this process and what it started, whatever runs in it."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def _load() -> None:
    """Import what most jobs need before giving way, so that none waits for it with a tenth of a
    busy machine."""
    import moeplan.service.work  # noqa: F401
    from solvers.registry import load

    load("cpsat")


def _give_way() -> None:
    """Yield the processors to everybody else.

    Linux may weigh whole sessions against each other ("autogroup"), and only then the processes
    within one: a worker leads a session, so that its nice value alone would count for nothing.
    """
    os.nice(_NICE)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a system without such groups, or that allows no change
            Path("/proc/self/autogroup").write_text(str(_SESSION_NICE))


def main() -> int:
    """The program."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    settings = WorkerSettings(**json.loads(sys.stdin.buffer.readline()))
    _load()
    _give_way()
    resource.setrlimit(resource.RLIMIT_AS, (settings.memory_bytes,) * 2)
    worker = Worker(settings)
    threading.Thread(target=worker.watch, daemon=True).start()
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
