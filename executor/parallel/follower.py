"""A machine that does not lead: its launcher does what the first one's asks for."""

from __future__ import annotations

import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any

from executor.closing import Closing
from executor.parallel.group import (
    DeviceName,
    LostPeerError,
    RankProcesses,
    known_error,
    told_error,
)
from executor.parallel.link import Link
from executor.parallel.machines import Machines
from solvers.errors import MoeplanError, OptionError, RunError

__all__ = ["Follower"]

_CAUSE_SECONDS = 4.0
"""So long after a failure here, the first machine may say what all machines are told."""


class Follower(Closing):
    """The ranks of a machine that does not lead.

    Parameters
    ----------
    machines
        This machine's place.
    devices
        How many devices all machines have together.
    ranks
        Those of this machine.
    facts
        What must be the same on all machines, by name.
    device
        What ranks compute on.

    Raises
    ------
    RunError
        If the first machine does not answer in time.
    """

    def __init__(
        self,
        machines: Machines,
        devices: int,
        ranks: range,
        facts: Mapping[str, Any],
        device: DeviceName,
    ) -> None:
        self._machines, self._devices, self._ranks = machines, devices, ranks
        self._device: DeviceName = device
        self._own: RankProcesses | None = None
        # what was said while this machine was at work
        self._early: deque[dict[str, Any]] = deque()
        self._link = Link(self._connect())
        self._link.send({"machine": machines.number, "facts": dict(facts)})

    def _connect(self) -> socket.socket:
        machines = self._machines
        until = time.monotonic() + machines.wait_seconds
        while True:
            try:
                return socket.create_connection((machines.host, machines.port), timeout=5.0)
            except socket.gaierror as error:
                raise OptionError(
                    f"there is no host {machines.host!r}: {error.strerror}"
                ) from error
            except OSError as error:
                if time.monotonic() > until:
                    raise RunError(
                        f"machine 0 did not answer at {machines.address} within "
                        f"{machines.wait_seconds:g} seconds ({error.strerror or error})"
                    ) from error
            time.sleep(0.2)

    def serve(self, prepare: Callable[[list[dict[str, Any]]], None]) -> None:
        """Do what the first machine asks for, until all is done.

        Parameters
        ----------
        prepare
            Puts into orders what this machine knows better: its own paths; may refuse them.

        Raises
        ------
        MoeplanError
            What ended the work, the same on all machines.
        """
        while True:
            message = self._early.popleft() if self._early else self._link.messages.get()
            if "end" in message and message["end"] is None:
                return
            self._check(message)
            try:
                if "start" in message:
                    name = self._machines.interface_to(self._link)
                    self._own = RankProcesses(
                        self._devices,
                        self._ranks,
                        device=self._device,
                        interface=name,
                        watch=self._look,
                    )
                elif "orders" in message and self._own is not None:
                    prepare(message["orders"])
                    answers = self._own.ask(message["orders"], watch=self._look)
                    self._link.send({"answers": answers})
            except _Ended as ended:
                raise ended.cause from None
            except LostPeerError as error:
                self._link.send({"lost": [str(error), error.named]})
                self._hear_why(error)
            except MoeplanError as error:
                self._link.send({"failed": told_error(error)})
                self._hear_why(error)
            except RuntimeError:
                last = traceback.format_exc().strip().splitlines()[-1]
                line = f"machine {self._machines.number} of {self._machines.count} failed: {last}"
                self._link.send({"failed": told_error(RunError(line))})
                raise

    def _look(self) -> None:
        while not self._link.messages.empty():
            message = self._link.messages.get()
            try:
                self._check(message)
            except MoeplanError as error:
                raise _Ended(error) from None
            self._early.append(message)

    def _check(self, message: dict[str, Any]) -> None:
        if "gone" in message:
            raise RunError(
                f"machine 0 at {self._machines.address} {message['gone']}; this one was ended, too"
            )
        if "end" in message:
            why = message["end"] or told_error(RunError("machine 0 ended before all was done"))
            raise known_error(*why)

    def _hear_why(self, error: MoeplanError) -> None:
        """Wait for what the first machine says of it; else it is ``error``."""
        until = time.monotonic() + _CAUSE_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                message = self._link.messages.get(timeout=left)
            except Empty:
                break
            self._check(message)
        raise error

    def close(self) -> None:
        """End this machine's ranks."""
        if self._own is not None:
            self._own.close()
            self._own = None
        self._link.close()


class _Ended(Exception):  # noqa: N818 (no error of its own)
    """The first machine has said that all ends, and why."""

    def __init__(self, cause: MoeplanError) -> None:
        super().__init__(str(cause))
        self.cause = cause
