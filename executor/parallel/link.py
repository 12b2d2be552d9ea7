"""A line between the launchers of two machines: JSON objects, and a sign of life each second."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import threading
from queue import SimpleQueue
from typing import Any

from executor.closing import Closing
from solvers.errors import OptionError

__all__ = ["SILENT_SECONDS", "Link", "interface_of"]

SILENT_SECONDS = 5.0
"""Who says nothing for so long is given up."""

_LIFE_SECONDS = 1.0
_MOST_BYTES = 1 << 30
_GET_ADDRESS = 0x8915


class Link(Closing):
    """One side of a connection.

    Parameters
    ----------
    connection
        A connected socket, which is this link's from now on.

    Attributes
    ----------
    messages
        What the other side said; at its end ``{"gone": how}``.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(SILENT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host: str = connection.getsockname()[0]
        self.messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._show_life, daemon=True).start()

    def _read(self) -> None:
        how = "has gone"
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(_MOST_BYTES):
                    message = json.loads(line)
                    if not isinstance(message, dict):
                        raise ValueError("no JSON object")
                    if message:
                        self.messages.put(message)
        except TimeoutError:
            how = "does not answer"
        except ValueError:
            how = "does not speak as moeplan does"
        except OSError:
            pass
        self.messages.put({"gone": how})

    def _show_life(self) -> None:
        while not self._closed.wait(_LIFE_SECONDS):
            self.send({})

    def send(self, message: dict[str, Any]) -> None:
        """Say something. That the other has gone is said by ``messages``."""
        with contextlib.suppress(OSError), self._writing:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Hang up, once the other has done so, too: else it might not hear the last words."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._reader.join(_LIFE_SECONDS)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        self._socket.close()


def interface_of(address: str) -> str:
    """The network interface that has an IPv4 address.

    Raises
    ------
    OptionError
        If none has.
    """
    names = [name for _, name in socket.if_nameindex()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    raise OptionError(
        f"which network interface has {address} cannot be told: give --interface, one of "
        f"{', '.join(names)}"
    )
