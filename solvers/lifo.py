"""Expert buffering (arXiv 2303.06182): each stage has its own share of the slots, and gives up what
came last; nothing is copied ahead.

Start units stay as far as memory goes, then items of sequential stages; the rest of memory is
slots, as for ``lru``.
"""

from __future__ import annotations

from solvers.lru import Lru

__all__ = ["Lifo"]


class Lifo(Lru):
    """See the module."""

    name = "lifo"
    eviction = "lifo"
