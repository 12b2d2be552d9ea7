"""How busy computation and copies are, and so what binds: one answer for notes and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from planner.documents import PredictedTotals

__all__ = ["BINDS_WORDS", "Binds", "Busy", "busy_of"]

Binds = Literal["compute", "copies", "host", "latency"]

BINDS_WORDS: Mapping[Binds, str] = {
    "compute": "computation binds",
    "copies": "the copy channel binds",
    "host": "the CPU binds, which computes experts",
    "latency": "neither binds alone: each waits for the other",
}

_NEARLY_ALL = 0.8
"""Share of the time from which on one of them is what binds."""


class Busy(NamedTuple):
    """Shares of the time in which computation, the copy channel, and a host that computes experts
    beside the device work, and which of them binds.

    ``binds`` is the busiest; ``latency`` where none is busy nearly all of the time.
    """

    compute: float
    channel: float
    host: float
    binds: Binds


def busy_of(totals: PredictedTotals) -> Busy:
    """What a prediction says of each.

    Parameters
    ----------
    totals
        Of the whole workload; what is no wait is computation.
    """
    wall = max(totals.wall_ns, 1)
    spent = {str(kind): ns for kind, ns in totals.duration_by_kind_ns.items()}
    compute = 1 - (totals.bubble_inter_layer_ns + totals.bubble_intra_layer_ns) / wall
    # a copy that begins in the last pass may end after it
    channel = min(sum(ns for kind, ns in spent.items() if kind.startswith("copy_")) / wall, 1.0)
    host = spent.get("host_expert", 0) / wall
    shares: dict[Binds, float] = {"compute": compute, "copies": channel, "host": host}
    most = max(shares, key=lambda name: shares[name])
    return Busy(compute, channel, host, most if shares[most] >= _NEARLY_ALL else "latency")
