"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Told", "untold"]

Told = Callable[[int, int, str], None]
"""Called with what is done, of how much (0: not known), and what it is."""


def untold(done: int, total: int, what: str) -> None:
    """No progress is wanted."""
