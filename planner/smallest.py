"""The least memory that an n and b, or any of them, works in."""

from __future__ import annotations

import itertools
from dataclasses import replace

from planner.documents import Workload
from planner.encode import Encoding
from planner.factors import Factors
from planner.forms import with_forms
from planner.kv import Place, kv_places
from planner.profiles import Profile
from solvers.layout import smallest_capacity

__all__ = [
    "CHUNK_BYTES",
    "needed_bytes",
    "smallest_account",
    "smallest_budget_bytes",
    "smallest_capacity_of",
]

CHUNK_BYTES = (4 << 20, 1 << 20, 256 << 10)
"""Pieces of a copy, the first that fits; small ones only where memory is very tight."""


def smallest_capacity_of(encoding: Encoding) -> int:
    """Least memory for residents and slots."""
    # of batches that are copied by themselves one is like the other
    few = replace(encoding, n_batches=1) if encoding.kv == "batches" else encoding
    return smallest_capacity(few.stages(Factors()), encoding.slot_bytes)


def needed_bytes(encoding: Encoding) -> int:
    """The smallest device budget with which an n and b works."""
    return encoding.fixed_bytes + smallest_capacity_of(encoding)


def smallest_budget_bytes(profile: Profile, workload: Workload, kv: Place = "auto") -> int:
    """The smallest device budget with which any n and b works: one sequence at a time."""
    return smallest_account(profile, workload, kv)[0]


def smallest_account(
    profile: Profile, workload: Workload, kv: Place = "auto"
) -> tuple[int, dict[str, int]]:
    """The smallest budget, and what it is for: purpose -> bytes."""
    accounts = []
    whole = replace(profile, forms=())
    views = with_forms(Encoding(whole, workload, 1, 1, 0, CHUNK_BYTES[0]))
    places = kv_places(profile.model, profile.hardware.device, kv)
    for view, place, chunk in itertools.product(views, places, CHUNK_BYTES):
        encoding = Encoding(view, workload, 1, 1, 0, chunk, place)
        total = needed_bytes(encoding)
        purposes = dict(encoding.fixed.by_purpose)
        starts = [stage.start.held_bytes for stage in encoding.stages(Factors()) if stage.start]
        purposes["kv" if place == "batches" else "dense_slots"] += max(starts, default=0)
        purposes["slots"] += total - sum(purposes.values())
        accounts.append((total, purposes))
    return min(accounts, key=lambda entry: entry[0])
