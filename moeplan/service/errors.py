"""Errors of the service alone; they need none of its packages."""

from __future__ import annotations

from solvers.errors import MoeplanError, RunError

__all__ = ["QueueFullError", "StoreError", "StoreFullError"]


class StoreError(RunError):
    """The database cannot be reached, is of a newer version, or holds what it should not."""


class StoreFullError(StoreError):
    """The database's disk is full."""


class QueueFullError(MoeplanError):
    """As many jobs wait as may; the caller can come again."""
