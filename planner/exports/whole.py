"""Which parts of a model stay, where experts of a layer stay or go together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.documents import ModelSpec, Plan
from planner.exports.base import gib, layer_list, shape
from solvers.counting import counted

__all__ = ["Whole", "keep_whole"]

_RUNNING = ("kv", "hidden", "workspace", "logits")
"""What a plan accounts for beside weights and the slots they stream through."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What stays on the device.

    Attributes
    ----------
    embedding, head
        Whether they do; of a tied model they are one.
    dense
        Layers whose dense part stays.
    experts
        Layers all of whose experts stay; only where the dense part does.
    layers, moe
        How many layers there are, and which have experts.
    used_bytes, room_bytes
        Weights that stay, and what the plan's budget leaves for weights.
    passing_bytes
        Of the room, kept free for the largest part that goes through it; 0 where all stays.
    missing_bytes
        What the room lacks for that part alone.
    """

    embedding: bool
    head: bool
    dense: tuple[int, ...]
    experts: tuple[int, ...]
    layers: int
    moe: tuple[int, ...]
    used_bytes: int
    room_bytes: int
    passing_bytes: int
    missing_bytes: int

    @property
    def offloaded(self) -> tuple[int, ...]:
        """Layers whose experts do not stay."""
        return tuple(layer for layer in self.moe if layer not in self.experts)

    @property
    def dense_away(self) -> tuple[int, ...]:
        """Layers whose dense part does not stay."""
        return tuple(layer for layer in range(self.layers) if layer not in self.dense)

    def said(self, plan: Plan, model: ModelSpec) -> list[str]:
        """What is lost of the plan's residents, and where its budget does not do."""
        kept = [len(layer.resident) for layer in plan.policy.layers]
        partly = any(0 < kept[index] < model.layers[index].experts for index in self.moe)
        gone = [index for index in self.offloaded if kept[index]]
        lines = []
        if partly or gone:
            few = counted(sum(kept), "expert")
            text = f"single residents: the plan keeps {few}, chosen one by one; here "
            text += "a layer's experts stay or go together"
            if gone:
                text += f", and those of {layer_list(gone)} go"
            lines.append(text)
        if self.missing_bytes:
            lines.append(
                f"the budget: {gib(self.passing_bytes)} go through the device at once (all experts "
                f"of a layer, or another whole part), {gib(self.missing_bytes)} more than "
                "the plan's memory leaves for weights; the plan needs slots for a few experts only"
            )
        return lines


def keep_whole(
    plan: Plan, model: ModelSpec, *, embedding: bool, positions: int | None = None
) -> Whole:
    """Fill the plan's budget with whole parts.

    What the plan accounts for keys and values, hidden states, workspace and logits is set aside,
    and, unless everything fits, room for the largest part to pass through. Then come dense parts
    (those that the plan keeps first), the head, the embedding, and the experts of whole layers: the
    layer with the largest share of residents first, among equals the last one.

    Parameters
    ----------
    embedding
        Whether the engine has the embedding on the device at all.
    positions
        For how many tokens the engine has keys and values, where not for as many as the plan.
    """
    account = plan.memory["device"]
    running = sum(account.by_purpose.get(name, 0) for name in _RUNNING)
    if positions is not None:
        planned, kv = math.prod(shape(plan)[:2]), account.by_purpose.get("kv", 0)
        running += -(-kv * positions // planned) - kv
    room = max(account.capacity_bytes - running - model.final_norm_bytes, 0)
    layers, policies = model.layers, plan.policy.layers
    parts: list[tuple[str, int, int]] = [
        ("dense", layer.index, layer.dense_bytes)
        for layer in sorted(layers, key=lambda one: not policies[one.index].dense_resident)
    ]
    parts.append(("head", -1, model.embedding_bytes if model.tied else model.head_bytes))
    if embedding and not model.tied:
        parts.append(("embedding", -1, model.embedding_bytes))
    by_share = sorted(
        (layer for layer in layers if layer.experts),
        key=lambda one: (-len(policies[one.index].resident) / one.experts, -one.index),
    )
    parts += [("experts", one.index, one.experts * one.expert_bytes) for one in by_share]
    sizes = [size for _, _, size in parts]
    passing = 0 if sum(sizes) <= room else max(sizes)
    missing = max(passing - room, 0)
    # where the largest part does not pass at all, leaving more out does not help
    free = room if missing else room - passing
    kept: set[tuple[str, int]] = set()
    used = 0
    for name, index, size in parts:
        left_out = name == "experts" and (missing > 0 or ("dense", index) not in kept)
        if used + size <= free and not left_out:
            kept.add((name, index))
            used += size
    head = ("head", -1) in kept
    return Whole(
        embedding=head if model.tied else ("embedding", -1) in kept,
        head=head,
        dense=tuple(layer.index for layer in layers if ("dense", layer.index) in kept),
        experts=tuple(layer.index for layer in layers if ("experts", layer.index) in kept),
        layers=len(layers),
        moe=model.moe_layers,
        used_bytes=used,
        room_bytes=room,
        passing_bytes=passing,
        missing_bytes=missing,
    )
