"""The front door: command line, timelines for the terminal and the browser, public names.

``cli`` is the program and its error table, ``commands`` what each command does, ``options`` reads
sizes and paths, ``output`` writes results and progress, ``words`` explains a plan, ``terminal``
and ``page`` draw timelines. The names below load what they need when they are first used, so that
``import moeplan`` is quick and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor import Engine, Output, Piece, Sampling, open_weights, pack
    from executor.synth import write_synthetic
    from planner.check import check_plan
    from planner.checkpoint import read_checkpoint
    from planner.compare import compare
    from planner.documents import Plan, Trace, Workload, load_document, write_document
    from planner.forms import allowing
    from planner.model_spec import read_model
    from planner.profiles import Profile, load_profile
    from planner.solve import make_plan
    from profiler import profile_checkpoint, verify
    from solvers.errors import CancelledError

__all__ = [
    "CancelledError",
    "Engine",
    "Output",
    "Piece",
    "Plan",
    "Profile",
    "Sampling",
    "Trace",
    "Workload",
    "allowing",
    "check_plan",
    "compare",
    "load_document",
    "load_profile",
    "make_plan",
    "open_weights",
    "pack",
    "profile_checkpoint",
    "read_checkpoint",
    "read_model",
    "verify",
    "write_document",
    "write_synthetic",
]

_HOMES = {
    "CancelledError": "solvers.errors",
    "Engine": "executor",
    "Output": "executor",
    "Piece": "executor",
    "Plan": "planner.documents",
    "Profile": "planner.profiles",
    "Sampling": "executor",
    "Trace": "planner.documents",
    "Workload": "planner.documents",
    "allowing": "planner.forms",
    "check_plan": "planner.check",
    "compare": "planner.compare",
    "load_document": "planner.documents",
    "load_profile": "planner.profiles",
    "make_plan": "planner.solve",
    "open_weights": "executor",
    "pack": "executor",
    "profile_checkpoint": "profiler",
    "read_checkpoint": "planner.checkpoint",
    "read_model": "planner.model_spec",
    "verify": "profiler",
    "write_document": "planner.documents",
    "write_synthetic": "executor.synth",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
