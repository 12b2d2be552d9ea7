"""What a budget that cannot work is told."""

from __future__ import annotations

from planner.documents import Workload
from planner.kv import Place
from planner.profiles import Profile
from planner.sizes import typed_size
from planner.smallest import smallest_account
from solvers.errors import BudgetError

__all__ = ["PURPOSES", "too_small"]


def too_small(profile: Profile, workload: Workload, memory_bytes: int, kv: Place) -> BudgetError:
    """The smallest budget that can work, and what it is for."""
    smallest, purposes = smallest_account(profile, workload, kv)
    ranked = sorted(purposes.items(), key=lambda item: (-item[1], item[0]))
    most = ", ".join(f"{typed_size(size)} for {PURPOSES[name]}" for name, size in ranked[:3])
    return BudgetError(
        f"a budget of {memory_bytes:,} bytes is too small for this model and workload: the "
        f"smallest that works is {smallest:,} bytes ({typed_size(smallest)}), with one sequence at "
        f"a time and nothing resident; most of it is {most}",
        smallest,
    )


PURPOSES = {
    "dense": "dense parts",
    "dense_slots": "the dense part of one layer",
    "experts": "experts",
    "slots": "one expert or head tile",
    "head": "the final norm",
    "kv": "KV at its longest",
    "hidden": "hidden states",
    "workspace": "workspace and the read buffer",
    "logits": "logits",
    "embedding": "embedding rows",
}
"""What the smallest budget's purposes hold, in words."""
