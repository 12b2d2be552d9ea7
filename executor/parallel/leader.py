"""One group of ranks on several machines: a launcher on each, the first of which leads.

The first machine's launcher listens at the coordinator's address. The others come there, say what
they are about to run, and are told whether all are about to run the same. Then each starts the
ranks of its own devices; these meet at the first rank's store and exchange rows among themselves,
while orders, answers, signs of life and ends go between launchers.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
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
from solvers.errors import InputError, MoeplanError, OptionError, RunError

__all__ = ["Leader"]

_GRACE_SECONDS = 2.0
"""So long after machines have lost each other, one that knows why may say it."""


class Leader(Closing):
    """All ranks, told what to do from the first machine; used as ``RankGroup`` is.

    Parameters
    ----------
    machines
        This machine's place.
    ranks
        The devices of each machine.
    facts
        What must be the same on all machines, by name.
    device
        What ranks compute on.
    timeout_seconds
        So long a rank waits for another that lives but does not answer.

    Raises
    ------
    RunError
        If a machine does not come in time.
    InputError
        If one is about to run something else.
    """

    def __init__(
        self,
        machines: Machines,
        ranks: Sequence[range],
        facts: Mapping[str, Any],
        device: DeviceName,
        *,
        timeout_seconds: float = 120.0,
    ) -> None:
        self._machines, self._ranks, self.devices = machines, ranks, ranks[-1].stop
        self._links: dict[int, Link] = {}
        self._own: RankProcesses | None = None
        self._answers: dict[int, list[dict[str, Any]]] = {}
        self._lost: list[LostPeerError] = []
        self._lost_at = 0.0
        try:
            self._gather(facts)
            link = self._links[1]
            name = machines.interface_to(link)
            for other in self._links.values():
                other.send({"start": True})
            self._own = RankProcesses(
                self.devices,
                ranks[0],
                device=device,
                interface=name,
                listen=link.host,
                watch=self._look,
            )
            meeting = {
                "host": link.host,
                "port": self._own.port,
                "timeout_seconds": timeout_seconds,
            }
        except BaseException as error:
            self._end(error)
            raise
        timeout = {"timeout_seconds": timeout_seconds}
        self.ask([{"order": "meet", **meeting, **timeout}] * self.devices)

    # --- coming together ----------------------------------------------------------------------

    def _gather(self, facts: Mapping[str, Any]) -> None:
        """Wait for all other machines, and hold what they say against ``facts``."""
        until = time.monotonic() + self._machines.wait_seconds
        pending: list[Link] = []
        said: dict[int, dict[str, Any]] = {}
        try:
            with self._listener() as listener:
                while len(self._links) + 1 < self._machines.count:
                    if time.monotonic() > until:
                        raise self._missing()
                    with contextlib.suppress(TimeoutError):
                        pending.append(Link(listener.accept()[0]))
                    pending = [one for one in pending if not self._came(one, said)]
                    for machine, link in list(self._links.items()):
                        # who has gone before the others came may come again
                        if not link.messages.empty():
                            self._links.pop(machine).close()
                            del said[machine]
        finally:
            for stranger in pending:
                stranger.close()
        for machine, values in sorted(said.items()):
            for name in sorted(facts.keys() | values.keys()):
                here, there = facts.get(name), values.get(name)
                if here != there:
                    raise InputError(
                        f"machine {machine} has another {name} ({_short(there)}) than machine 0 "
                        f"({_short(here)}): all of them run the same",
                    )

    def _listener(self) -> socket.socket:
        machines = self._machines
        kind = socket.AF_INET6 if ":" in machines.host else socket.AF_INET
        try:
            made = socket.create_server(
                (machines.host, machines.port), family=kind, backlog=machines.count
            )
        except OSError as error:
            raise OptionError(
                f"machine 0 cannot listen at {machines.address}: {error.strerror}; give an "
                "address of this machine, and a free port"
            ) from error
        made.settimeout(0.1)
        return made

    def _came(self, link: Link, said: dict[int, dict[str, Any]]) -> bool:
        """Whether it is known who has connected; strangers are sent away."""
        try:
            message = link.messages.get_nowait()
        except Empty:
            return False
        machine, facts = message.get("machine"), message.get("facts")
        if isinstance(machine, int) and isinstance(facts, dict):
            if machine not in range(1, self._machines.count) or machine in self._links:
                twice = machine in self._links
                line = f"machine {machine} of {self._machines.count} " + (
                    "has come already: give each machine a number of its own"
                    if twice
                    else "is one too many: give all machines the same number of them"
                )
                link.send({"end": told_error(OptionError(line))})
            else:
                self._links[machine] = link
                said[machine] = facts
                return True
        link.close()
        return True

    def _missing(self) -> RunError:
        machines = self._machines
        absent = [str(one) for one in range(1, machines.count) if one not in self._links]
        return RunError(
            f"machine {', '.join(absent)} of {machines.count} did not come to {machines.address} "
            f"within {machines.wait_seconds:g} seconds; all were ended"
        )

    # --- working --------------------------------------------------------------------------------

    def ask(
        self, orders: Sequence[dict[str, Any]], progress: Callable[[int, int], None] | None = None
    ) -> list[dict[str, Any]]:
        """Give each rank its order, and wait for all answers; as ``RankGroup.ask`` does.

        Raises
        ------
        RunError
            If a rank or a machine dies or loses another; all others are then ended, too.
        MoeplanError
            What a rank or a machine refuses.
        """
        self._answers, self._lost = {}, []
        try:
            if self._own is None:
                raise RuntimeError("the group has ended")
            for machine, link in self._links.items():
                mine = self._ranks[machine]
                link.send({"orders": list(orders[mine.start : mine.stop])})
            own = self._own.ask(orders[: self._ranks[0].stop], progress, self._look)
            while len(self._answers) < len(self._links):
                self._look()
                time.sleep(0.01)
        except LostPeerError as error:
            cause = self._cause(error)
            self._end(cause)
            raise cause from None
        except BaseException as error:
            self._end(error)
            raise
        others = [self._answers[machine] for machine in sorted(self._links)]
        return [*own, *(answer for answers in others for answer in answers)]

    def _look(self) -> None:
        """Take what other machines have said; raises what ends the work."""
        for machine, link in self._links.items():
            while not link.messages.empty():
                message = link.messages.get()
                if "answers" in message:
                    self._answers[machine] = message["answers"]
                elif "lost" in message:
                    self._note(LostPeerError(message["lost"][0], named=message["lost"][1]))
                elif "failed" in message:
                    raise known_error(*message["failed"])
                elif "gone" in message:
                    raise RunError(
                        f"machine {machine} of {self._machines.count} {message['gone']}; the "
                        "others were ended, too"
                    )
        if self._lost and time.monotonic() > self._lost_at + _GRACE_SECONDS:
            raise max(self._lost, key=lambda one: one.named)

    def _note(self, error: LostPeerError) -> None:
        """Who has lost others does not know why; the cause may still come."""
        if not self._lost:
            self._lost_at = time.monotonic()
        self._lost.append(error)

    def _cause(self, found: LostPeerError) -> MoeplanError:
        """The first cause, where a machine knows it soon."""
        self._note(found)
        while True:
            try:
                self._look()
            except MoeplanError as error:
                return error
            time.sleep(0.05)

    def _end(self, error: BaseException | None) -> None:
        """End all machines, and tell them why."""
        if error is not None and not isinstance(error, MoeplanError):
            how = "was interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            error = RunError(
                f"machine 0 of {self._machines.count} {how}; the others were ended, too"
            )
        for link in self._links.values():
            link.send({"end": None if error is None else told_error(error)})
        if self._own is not None:
            self._own.close()
            self._own = None
        for link in self._links.values():
            link.close()
        self._links = {}

    def close(self) -> None:
        """End all ranks on all machines; these know that all is done."""
        self._end(None)


def _short(value: Any) -> str:
    """A fact in a few letters: of a hash the first."""
    text = "none" if value is None else str(value)
    return text if len(text) < 20 else f"{text[:12]}…"
