"""What all exports share: what they are made from, what they are, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.documents import (
    ExpertPlacement,
    Hardware,
    ModelSpec,
    Plan,
    Trace,
    document_hash,
)
from planner.memory import context_tokens, group_sequences
from solvers.counting import counted
from solvers.errors import UnsupportedError

__all__ = [
    "JSON",
    "MADE",
    "SHELL",
    "YAML",
    "Export",
    "Sources",
    "comments",
    "copies",
    "family_of",
    "gib",
    "json_export",
    "layer_list",
    "lost_always",
    "needs_gpu",
    "number_list",
    "shape",
    "streams_from",
    "tokens_at_once",
]

JSON = "application/json"
YAML = "application/yaml"
SHELL = "text/x-shellscript"

MADE = "export"
"""The ``kind`` that exports in JSON begin with; those with comments say it in the first one."""


_MOST_TOKENS = 4096
"""Computed at once by others: their buffers grow with them, and a plan, which computes a group's
prefill in tiles, has no room for those of a whole one."""


@dataclass(frozen=True, slots=True)
class Sources:
    """A plan, and what it is about, as far as it is at hand.

    Attributes
    ----------
    model, hardware
        Those of ``plan.inputs``.
    trace
        Of a run of the plan.
    placement
        Of the model's experts on several devices.
    """

    plan: Plan
    model: ModelSpec | None = None
    hardware: Hardware | None = None
    trace: Trace | None = None
    placement: ExpertPlacement | None = None

    def known(self) -> tuple[ModelSpec, Hardware]:
        """Model and hardware.

        Raises
        ------
        UnsupportedError
            If they are not at hand, the plan has quantized experts, or the model has an encoder.
        """
        if self.model is None or self.hardware is None:
            raise UnsupportedError("a plan alone does not say what its model is; give its profile")
        if self.model.quantized is not None:
            how = self.model.quantized.format
            raise UnsupportedError(
                f"{self.model.name}: the plan is for experts in {how}, which no other engine "
                "reads; export a plan for the checkpoint as it is"
            )
        if self.plan.policy.expert_forms:
            raise UnsupportedError(
                f"{self.model.name}: the plan has experts in forms of their own, which no other "
                "engine reads; export a plan that allows no error"
            )
        if self.model.encoder:
            raise UnsupportedError(
                f"{self.model.name}: the plan is for an encoder-decoder, whose parts no other "
                "engine is known to place"
            )
        return self.model, self.hardware


@dataclass(frozen=True, slots=True)
class Export:
    """What another engine takes.

    Attributes
    ----------
    target
        The engine.
    text
        What goes into the file.
    body
        The same as JSON values; of other formats the text.
    cannot_express
        What of the plan the engine cannot do, a sentence each; in the text, too.
    """

    target: str
    text: str
    body: Any
    cannot_express: tuple[str, ...]


def json_export(
    target: str, plan: Plan, body: dict[str, Any], cannot_express: Sequence[str]
) -> Export:
    """An export in JSON, with what it is and what it lacks around ``body``."""
    whole = {
        "kind": MADE,
        "target": target,
        "plan": document_hash(plan),
        "cannot_express": list(cannot_express),
        **body,
    }
    text = json.dumps(whole, indent=1, allow_nan=False) + "\n"
    return Export(target, text, whole, tuple(cannot_express))


def comments(target: str, plan: Plan, lines: Sequence[str], cannot_express: Sequence[str]) -> str:
    """The head of a file whose format has comments that begin with ``#``."""
    said = [f"moeplan {MADE} to {target}, of plan {document_hash(plan)}", *lines]
    said += [f"Cannot be expressed: {line}" for line in cannot_express]
    return "".join(f"# {line}\n" for line in said)


def family_of(model: ModelSpec, known: Sequence[str], target: str) -> str:
    """The model's family.

    Raises
    ------
    UnsupportedError
        If it is none of those that are ``known`` of the target.
    """
    if model.family not in known:
        raise UnsupportedError(
            f"{model.name}: how {target} names the parts of a {model.family!r} model is not known "
            f"(known: {', '.join(known)})"
        )
    return model.family


def needs_gpu(plan: Plan, target: str, does: str) -> None:
    """Refuse a plan for a machine without a GPU.

    Raises
    ------
    UnsupportedError
        If it is one.
    """
    if plan.device != "cuda":
        raise UnsupportedError(
            f"{target} {does}, and this plan is for a processor that reads weights from its disk; "
            "plan for a GPU (--hardware names one, --profile-out keeps what the export needs: "
            "see docs/offline.md)"
        )


def streams_from(hardware: Hardware) -> str:
    """``host`` or ``disk``: where weights lie that do not stay on the device."""
    return "host" if any(channel.name == "h2d" for channel in hardware.channels) else "disk"


def shape(plan: Plan) -> tuple[int, int, int]:
    """Sequences at once, positions of each at its longest, and tokens of the longest prefill."""
    sequences = group_sequences(plan.policy, plan.workload)
    return sequences, context_tokens(plan.workload), sequences * plan.workload.prompt_tokens


def lost_always(plan: Plan, model: ModelSpec) -> list[str]:
    """What no other engine has: the promise, and, where weights are copied at all, batches that
    share a copy."""
    policy = plan.policy
    lost = ["the promised speed: it is for moeplan's own runtime"]
    if copies(plan, model) and policy.n_batches > 1:
        sequences = shape(plan)[0]
        lost.append(
            f"{counted(policy.n_batches, 'batch')} of {policy.batch_size} that share each copy of "
            f"the weights: only the number of sequences, {sequences}, can be told"
        )
    return lost


def copies(plan: Plan, model: ModelSpec) -> bool:
    """Whether a run of the plan copies any expert or dense part."""
    return any(
        not policy.dense_resident or len(policy.resident) < layer.experts
        for policy, layer in zip(plan.policy.layers, model.layers, strict=True)
    )


def tokens_at_once(plan: Plan, lost: list[str], least: int) -> int:
    """Tokens that one step computes: those of a whole prefill, as far as buffers are not too large.

    Parameters
    ----------
    lost
        Gets a sentence where prefill takes several steps.
    least
        It is at least as many.
    """
    prefill = shape(plan)[2]
    most = max(_MOST_TOKENS, least)
    if prefill > most:
        lost.append(
            f"prefill of {counted(prefill, 'token')} with one copy of the weights: {most} are "
            "computed at once, and each such step copies or reads them anew"
        )
    return max(min(prefill, most), least)


def gib(size_bytes: int) -> str:
    """``2.3 GiB``, or smaller units."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def number_list(numbers: Sequence[int]) -> str:
    """``0, 3 to 7, 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def layer_list(layers: Sequence[int]) -> str:
    """``layer 7``, ``layers 0, 3 to 7``."""
    return f"layer{'' if len(layers) == 1 else 's'} {number_list(layers) or 'none'}"
