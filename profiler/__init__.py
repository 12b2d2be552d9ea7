"""Measures what the executor really runs, records routing, and holds predictions against runs.

``import profiler`` does not load torch; ``profile_checkpoint`` does when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiler.prompts import bundled_prompts
from profiler.verify import Verification, verify

if TYPE_CHECKING:
    from profiler.folder import profile_checkpoint

__all__ = ["Verification", "bundled_prompts", "profile_checkpoint", "verify"]


def __getattr__(name: str) -> Any:
    if name == "profile_checkpoint":
        from profiler import folder

        return folder.profile_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
