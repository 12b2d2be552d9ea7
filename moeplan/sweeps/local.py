"""Pairs planned by processes of this machine."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from moeplan.sweeps.task import ATTEMPTS, ONE_THREAD, Answers, Task, answer, died

__all__ = ["run_local"]

_CONTEXT = multiprocessing.get_context("spawn")


def run_local(tasks: Iterator[Task], workers: int) -> Answers:
    """Carry out tasks, ``workers`` at once; the answers come as they are found.

    A task whose worker dies is given to a new one, ``ATTEMPTS`` times in all. The workers end with
    the iterator, and with this process, however it ends.
    """
    seats = [_Seat() for _ in range(workers)]
    free, more = list(seats), True
    busy: dict[Any, tuple[_Seat, Task, int]] = {}
    try:
        while True:
            while free and more:
                task = next(tasks, None)
                more = task is not None
                if task is not None:
                    seat = free.pop()
                    busy[seat.give(task)] = (seat, task, 1)
            if not busy:
                return
            for ready in wait(list(busy)):
                seat, task, attempt = busy.pop(ready)
                said = seat.take()
                if said is None and attempt < ATTEMPTS:
                    busy[seat.give(task)] = (seat, task, attempt + 1)
                    continue
                free.append(seat)
                yield task, said or died(seat.ended)
    finally:
        for seat in seats:
            seat.end()


class _Seat:
    """One worker's place: a process is started when there is work for it and none."""

    def __init__(self) -> None:
        self._at: tuple[SpawnProcess, Connection] | None = None
        self.ended = ""

    def give(self, task: Task) -> Connection:
        """Send a task; the connection is ready when there is an answer, or the worker has died."""
        self._at = self._at or _started()
        pipe = self._at[1]
        with contextlib.suppress(OSError):  # it has died: ``take`` finds that out
            pipe.send((task.packed, task.inputs))
        return pipe

    def take(self) -> dict[str, Any] | None:
        """The answer; None where the worker has died."""
        if self._at is None:
            return None
        process, pipe = self._at
        try:
            said: dict[str, Any] = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            self.end()
            self.ended = f"exit code {process.exitcode}"
            return None
        return said

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._at is not None:
            process, pipe = self._at
            self._at = None
            process.kill()
            process.join()
            pipe.close()


def _started() -> tuple[SpawnProcess, Connection]:
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_serve, args=(there,), daemon=True)
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        process.start()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    there.close()
    return process, here


def _serve(pipe: Connection) -> None:
    """A worker: takes tasks until there are no more."""
    # Control-C at the terminal is for the process that started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(answer(*pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
