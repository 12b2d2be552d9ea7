"""This machine among those that run one placement."""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import dataclass

from executor.parallel.link import Link, interface_of
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = ["Machines"]


@dataclass(frozen=True, slots=True)
class Machines:
    """This machine among those that run one placement.

    Attributes
    ----------
    count, number
        How many there are, and which this is; 0 leads.
    host, port
        Where the first one's launcher listens.
    interface
        Network interface to the others; None: the one by which they reach the coordinator.
    wait_seconds
        So long others may take to come.
    """

    count: int
    number: int
    host: str
    port: int
    interface: str | None = None
    wait_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.count < 2 or not 0 <= self.number < self.count:
            raise OptionError(f"machine {self.number} of {self.count}: there is none, or no other")
        names = [name for _, name in socket.if_nameindex()]
        if self.interface is not None and self.interface not in names:
            raise OptionError(
                f"this machine has no network interface {self.interface!r}; it has "
                f"{', '.join(names)}"
            )

    def ranks(self, devices: int, nodes: int) -> list[range]:
        """The devices of each machine: whole nodes of a placement that has some.

        Raises
        ------
        OptionError
            If they do not divide.
        """
        if nodes > 1 and nodes % self.count:
            raise OptionError(
                f"the placement's {counted(nodes, 'node')} cannot be divided over "
                f"{counted(self.count, 'machine')}: take as many machines as it has nodes, or a "
                "divisor"
            )
        if devices < self.count:
            raise OptionError(
                f"the placement is for {counted(devices, 'device')}, fewer than "
                f"{counted(self.count, 'machine')}"
            )
        ends = [machine * devices // self.count for machine in range(self.count + 1)]
        return [range(first, stop) for first, stop in itertools.pairwise(ends)]

    def interface_to(self, link: Link) -> str:
        """The interface that ranks use."""
        return self.interface or os.environ.get("GLOO_SOCKET_IFNAME") or interface_of(link.host)

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return f"{self.host}:{self.port}"
