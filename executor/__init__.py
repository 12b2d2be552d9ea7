"""Carries out a plan with torch: weights on disk, a bounded pool in memory, one copy channel.

``engine`` is what others use; ``generation`` and ``runtime`` carry passes out, ``schedule`` decides
what is copied next and ``transfers`` copies it, ``operations`` and ``adapters`` compute, ``device``
and ``ledger`` hold the memory under its budget. ``source``, ``store`` and ``packing`` are where
weights come from, ``recorder`` what happened; ``virtual`` runs all of it on a made-up clock,
``parallel`` on several processes; ``synth`` writes checkpoints of random weights.
``import executor`` does not load torch; ``Engine`` does when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executor.packing import StoreSummary, pack, verify_store
from executor.source import WeightSource, open_weights

if TYPE_CHECKING:
    from executor.engine import Engine
    from executor.outputs import Output, Piece
    from executor.sampling import Sampling

__all__ = [
    "Engine",
    "Output",
    "Piece",
    "Sampling",
    "StoreSummary",
    "WeightSource",
    "open_weights",
    "pack",
    "verify_store",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from executor.engine import Engine

        return Engine
    if name in ("Output", "Piece"):
        from executor import outputs

        return getattr(outputs, name)
    if name == "Sampling":
        from executor.sampling import Sampling

        return Sampling
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
