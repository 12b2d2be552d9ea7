"""Waiting for what another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(true: Callable[[], object]) -> None:
    """Wait until it is so, a minute at most."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)
