"""Processes of this machine, one a rank, and the watch over them; loads no torch.

Ranks of one machine meet through a file and talk over the loopback interface; of those of several
machines ``executor.parallel.machines`` takes care. Whoever of them dies or fails, all others are
ended at once, and the first cause is what is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import executor
from executor.closing import Closing
from solvers import errors
from solvers.counting import counted
from solvers.errors import MoeplanError, RunError

__all__ = ["LostPeerError", "RankGroup", "RankProcesses", "known_error", "told_error"]

DeviceName = Literal["cpu", "cuda"]

_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 1.0
"""So long after a rank has failed, its peers may say what they know of it."""

_END_SECONDS = 3.0
"""So long ranks may take to end by themselves."""


class LostPeerError(RunError):
    """Ranks of this machine lost others; why, these know.

    ``named``: which do not answer is known.
    """

    def __init__(self, message: str, *, named: bool) -> None:
        super().__init__(message)
        self.named = named


class RankProcesses(Closing):
    """Ranks of a group that are processes of this machine, started, without having met.

    Parameters
    ----------
    devices
        How many the whole group has.
    ranks
        Those of this machine.
    device
        What each computes on; ``cuda``: the n-th of this machine has its GPU n.
    interface
        The network interface by which they reach all others.
    listen
        Address at which the first of them keeps the store where all meet; None: none does.
    watch
        As of ``ask``.

    Attributes
    ----------
    processes
        Their process ids, by rank.
    port
        Of that store.

    Raises
    ------
    RunError
        If they cannot be started.
    UnsupportedError
        If there is no GPU for each.
    """

    def __init__(
        self,
        devices: int,
        ranks: range,
        *,
        device: DeviceName = "cpu",
        interface: str,
        listen: str | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.devices, self.ranks = devices, ranks
        self.processes: tuple[int, ...] = ()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (``close`` does)
        self._orders: list[int] = []
        # answers of each rank, and behind them what the first process tells
        self._answers: list[int] = []
        self._partial = [b""] * (len(ranks) + 1)
        self._codes: dict[int, int] = {}
        try:
            self._first = self._start(interface)
        except OSError as error:
            self._let_go()
            raise RunError(
                f"{counted(devices, 'process')} cannot be started: {error.strerror}"
            ) from error
        cores = len(os.sched_getaffinity(0))
        with self._or_closed():
            answers = self.ask(
                [
                    {
                        "rank": rank,
                        "devices": devices,
                        "device": device,
                        "place": place,
                        "places": len(ranks),
                        "threads": max(cores // len(ranks), 1),
                        "listen": None if place else listen,
                    }
                    for place, rank in enumerate(ranks)
                ],
                watch=watch,
            )
        self.port: int | None = answers[0]["port"]

    @contextlib.contextmanager
    def _or_closed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _start(self, interface: str) -> subprocess.Popen[bytes]:
        root = str(Path(executor.__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            "NCCL_SOCKET_IFNAME": f"={interface}",
            # asking whether there is a GPU must not begin to use it before the ranks are forked
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            **os.environ,
            "GOMP_SPINCOUNT": "0",
            # no threads before the ranks are forked
            "OPENBLAS_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": interface,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        theirs: list[int] = []
        for _ in self.ranks:
            orders, ours = os.pipe()
            mine, answers = os.pipe()
            self._orders.append(ours)
            self._answers.append(mine)
            theirs += [orders, answers]
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "executor.parallel.worker", *map(str, theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                pass_fds=theirs,
                # a group of their own: an interrupt is for us, and all are ended at once
                start_new_session=True,
            )
        finally:
            for end in theirs:
                os.close(end)

    def ask(
        self,
        orders: Sequence[dict[str, Any]],
        progress: Callable[[int, int], None] | None = None,
        watch: Callable[[], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Give each rank its order, and wait for all answers.

        Parameters
        ----------
        orders
            One for each rank here.
        progress
            Called with what the first of them reports of its passes.
        watch
            Called again and again meanwhile; what it raises ends the wait.

        Raises
        ------
        RunError
            If a rank dies or loses another; all others are then ended, too.
        MoeplanError
            What a rank refuses.
        """
        answers: dict[int, dict[str, Any]] = {}
        failed: dict[int, dict[str, Any]] = {}
        for pipe, order in zip(self._orders, orders, strict=True):
            # who is dead is noticed below
            with contextlib.suppress(BrokenPipeError):
                _write(pipe, json.dumps(order).encode() + b"\n")
        give_up: float | None = None
        with selectors.DefaultSelector() as selector:
            for at, pipe in enumerate((*self._answers, self._told())):
                selector.register(pipe, selectors.EVENT_READ, at)
            while len(answers) < len(self.ranks):
                if watch is not None:
                    watch()
                for key, _ in selector.select(_LOOK_SECONDS):
                    number: int = key.data
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    for value in self._lines(number, data):
                        if "done" in value:
                            answers[number] = value["done"]
                        elif "error" in value:
                            failed[number] = value["error"]
                        elif "ended" in value:
                            self._codes[value["ended"][0]] = value["ended"][1]
                        elif "processes" in value:
                            self.processes = tuple(value["processes"])
                        elif progress is not None and number == 0:
                            progress(*value["progress"])
                ended = self._codes or self._first.poll() is not None
                if (ended or failed) and give_up is None:
                    give_up = time.monotonic() + _GRACE_SECONDS
                if give_up is not None and (
                    time.monotonic() > give_up or self._knows_cause(failed)
                ):
                    raise self._cause(failed)
        return [answers[place] for place in range(len(self.ranks))]

    def _told(self) -> int:
        if self._first.stdout is None:
            raise RuntimeError("the first process has no output")
        return self._first.stdout.fileno()

    def _lines(self, number: int, data: bytes) -> list[dict[str, Any]]:
        *whole, self._partial[number] = (self._partial[number] + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def _knows_cause(self, failed: dict[int, dict[str, Any]]) -> bool:
        """Whether nothing that is still to come can be the first cause."""
        return any(code < 0 for code in self._codes.values()) or any(
            not error["lost_peer"] for error in failed.values()
        )

    def _cause(self, failed: dict[int, dict[str, Any]]) -> Exception:
        """The first cause; ends all ranks."""
        self._log.seek(0)
        log = self._log.read().decode(errors="replace").strip().splitlines()
        last = log[-1] if log else "it left no message"
        alone = self._first.poll()
        self.close()
        who = [f"device {rank} of {self.devices}" for rank in self.ranks]
        for place, code in sorted(self._codes.items()):
            if code < 0:
                name = signal.Signals(-code).name
                hint = " (was memory short?)" if code == -signal.SIGKILL else ""
                told = f"was ended by {name}{hint}; the others were ended, too"
                return RunError(f"{who[place]} {told}")
        for place, error in sorted(failed.items()):
            if error["known"] is not None:
                return known_error(*error["known"])
            if not error["lost_peer"]:
                return RuntimeError(f"{who[place]}:\n{error['trace']}")
        for place, code in sorted(self._codes.items()):
            if place not in failed:
                return RunError(f"{who[place]} ended with code {code}: {last}")
        if alone is not None:
            told = f"code {alone}" if alone >= 0 else signal.Signals(-alone).name
            return RunError(
                f"the process that starts devices {min(self.ranks)} to {max(self.ranks)} was ended "
                f"by {told}, so all were ended: {last}"
            )
        silent = [str(rank) for place, rank in enumerate(self.ranks) if place not in failed]
        other = f"device {', '.join(silent)}" if silent else "another"
        return LostPeerError(
            f"{who[min(failed)]} got no answer from {other} in time; all were ended",
            named=bool(silent),
        )

    def close(self) -> None:
        """End all ranks."""
        # a rank ends when its orders do, whatever it is at, unless it was stopped
        while self._orders:
            os.close(self._orders.pop())
        self._signal(signal.SIGCONT)
        try:
            self._first.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._first.wait()
        for pipe in (self._first.stdin, self._first.stdout):
            if pipe is not None:
                pipe.close()
        self._let_go()

    def _let_go(self) -> None:
        for pipe in (*self._orders, *self._answers):
            os.close(pipe)
        self._orders, self._answers = [], []
        self._log.close()

    def _signal(self, number: int) -> None:
        # while the group's first process is not reaped, the group is ours
        if self._first.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._first.pid, number)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


class RankGroup(RankProcesses):
    """All ranks of a group, processes of this machine, ready to be told what to do.

    Parameters
    ----------
    devices
        How many.
    device
        What each computes on.
    timeout_seconds
        So long a rank waits for another that lives but does not answer.
    """

    def __init__(
        self, devices: int, *, device: DeviceName = "cpu", timeout_seconds: float = 120.0
    ) -> None:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        super().__init__(devices, range(devices), device=device, interface=interface)
        # they meet there once
        with (
            self._or_closed(),
            tempfile.TemporaryDirectory(prefix="moeplan-ranks-") as folder,
        ):
            meeting = {"file": str(Path(folder) / "meeting"), "timeout_seconds": timeout_seconds}
            self.ask([{"order": "meet", **meeting}] * devices)


def told_error(error: MoeplanError) -> list[Any]:
    """An error as another process is told of it: what ``known_error`` takes."""
    return [type(error).__name__, str(error), vars(error)]


def known_error(name: str, message: str, more: Mapping[str, Any]) -> MoeplanError:
    """An error of another process, with what it has beside its line; of a class that is not in the
    error tree a ``RunError``."""
    if name not in errors.__all__:
        return RunError(message)
    cls: type[MoeplanError] = getattr(errors, name)
    # each class asks for its own fields
    error = cls.__new__(cls, message)
    vars(error).update(more)
    return error
