"""Plans in the words of other engines; every export says what of its plan it cannot express.

Pure translations of documents: nothing of an engine is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.exports import accelerate, ktransformers, llama_cpp, perfetto, vllm
from planner.exports.base import JSON, MADE, SHELL, YAML, Export, Sources
from planner.exports.whole import Whole, keep_whole
from solvers.errors import OptionError

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
    "accelerate": Target(accelerate.export, JSON, _PROFILE),
    "llama.cpp": Target(llama_cpp.export, SHELL, _PROFILE),
    "ktransformers": Target(ktransformers.export, YAML, _PROFILE),
    "vllm": Target(vllm.export, JSON, _PROFILE | {"placement"}),
    "perfetto": Target(perfetto.export, JSON, frozenset({"trace"})),
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
        If the target knows nothing of the plan's model or device.
    """
    if target not in TARGETS:
        raise OptionError(f"--to {target!r} is unknown; choose from {', '.join(TARGETS)}")
    return TARGETS[target].make(sources)
