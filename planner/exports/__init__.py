"""Plans in the words of other engines; every export says what of its plan it cannot express.

One file a target: ``accelerate``, ``llama_cpp``, ``ktransformers``, ``vllm``, and ``perfetto`` for
timelines. ``base`` has what they share, ``whole`` which parts stay where experts of a layer go
together. Pure translations of documents: nothing of an engine is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.exports.accelerate import export as to_accelerate
from planner.exports.base import JSON, MADE, SHELL, YAML, Export, Sources
from planner.exports.ktransformers import export as to_ktransformers
from planner.exports.llama_cpp import export as to_llama_cpp
from planner.exports.perfetto import export as to_perfetto
from planner.exports.vllm import export as to_vllm
from planner.exports.whole import Whole, keep_whole
from solvers.errors import OptionError, UnsupportedError

__all__ = ["MADE", "TARGETS", "Export", "Sources", "Target", "Whole", "export", "keep_whole"]


@dataclass(frozen=True, slots=True)
class Target:
    """What plans can be exported to.

    Attributes
    ----------
    make
        The translation.
    media_type
        Of what it makes.
    reads
        Which of ``Sources`` it uses beside the plan.
    """

    make: Callable[[Sources], Export]
    media_type: str
    reads: frozenset[str]


_PROFILE = frozenset({"model", "hardware"})

TARGETS: dict[str, Target] = {
    "accelerate": Target(to_accelerate, JSON, _PROFILE),
    "llama.cpp": Target(to_llama_cpp, SHELL, _PROFILE),
    "ktransformers": Target(to_ktransformers, YAML, _PROFILE),
    "vllm": Target(to_vllm, JSON, _PROFILE | {"placement"}),
    "perfetto": Target(to_perfetto, JSON, frozenset({"trace"})),
}


def export(target: str, sources: Sources) -> Export:
    """A plan for another engine.

    Parameters
    ----------
    target
        One of ``TARGETS``.
    sources
        The plan, and of the rest at least what the target must have: its model and hardware.

    Raises
    ------
    OptionError
        If there is no such target.
    UnsupportedError
        If the target knows nothing of the plan's model or device, or cannot attend as it says.
    """
    if target not in TARGETS:
        raise OptionError(f"--to {target!r} is unknown; choose from {', '.join(TARGETS)}")
    window = sources.plan.workload.attention_window
    if window is not None and "model" in TARGETS[target].reads:
        raise UnsupportedError(
            f"{target} attends to all tokens, and this plan to a window of {window}: plan without "
            "--attention-window"
        )
    return TARGETS[target].make(sources)
