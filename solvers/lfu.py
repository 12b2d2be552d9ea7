"""One cache for all items, least frequently used out first; otherwise as ``lru``."""

from __future__ import annotations

from solvers.lru import Lru

__all__ = ["Lfu"]


class Lfu(Lru):
    """See the module."""

    name = "lfu"
    eviction = "frequency"
