"""Carries out a plan with torch: weights on disk, a bounded pool in memory, one copy channel.

``import executor`` does not load torch; ``Engine`` does when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executor.packing import StoreSummary, pack, verify_store
from executor.source import WeightSource, open_weights

if TYPE_CHECKING:
    from executor.engine import Engine, Output

__all__ = [
    "Engine",
    "Output",
    "StoreSummary",
    "WeightSource",
    "open_weights",
    "pack",
    "verify_store",
]


def __getattr__(name: str) -> Any:
    if name in ("Engine", "Output"):
        from executor import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
