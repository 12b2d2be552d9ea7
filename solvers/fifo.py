"""One cache for all items, first in, first out; otherwise as ``lru``."""

from __future__ import annotations

from solvers.lru import Lru

__all__ = ["Fifo"]


class Fifo(Lru):
    """See the module."""

    name = "fifo"
    eviction = "fifo"
