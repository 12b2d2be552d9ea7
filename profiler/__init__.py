"""Measures what the executor really runs, records routing, and holds predictions against runs.

``folder`` makes a profile and ``written`` keeps it; ``measure`` asks ``compute``, ``link`` and
``contention`` on a ``bench`` of the executor's own parts, and ``curves`` fits their samples;
``record`` keeps what routers choose. ``verify`` holds a run against its plan, ``refine`` corrects
costs by a run.
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
