"""Sizes in words that can be given to an option, in quotes."""

from __future__ import annotations

__all__ = ["typed_size"]


def typed_size(size_bytes: int) -> str:
    """``2.7 MiB``: at least ``size_bytes``, so that it works where that many bytes do."""
    unit, name = (1 << 10, "KiB") if size_bytes < 1 << 20 else (1 << 20, "MiB")
    tenths = -(-10 * size_bytes // unit)
    return f"{tenths // 10}.{tenths % 10} {name}"
