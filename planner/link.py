"""The copy channel of a machine."""

from __future__ import annotations

from planner.documents import Channel, Hardware
from solvers.errors import UnsupportedError

__all__ = ["copy_link"]


def copy_link(hardware: Hardware) -> Channel:
    """The channel that weights come over: from the disk, or to a GPU from host memory.

    Raises
    ------
    UnsupportedError
        If the machine has none of them.
    """
    wanted = ("disk",) if hardware.device == "cpu" else ("disk", "h2d")
    for channel in hardware.channels:
        if channel.name in wanted:
            return channel
    raise UnsupportedError(
        "hardware: no 'disk' channel; this version plans for weights on the disk"
    )
