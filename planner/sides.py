"""What each layer computes in a pass: all of its tokens or, with an encoder, those of its side.

An encoder computes the prompts in prefill, and in decode nothing; a decoder behind one a single
token of each sequence in either: the one that it begins with, then each new one.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.documents import ModelSpec, Surface, Workload
from planner.profiles import Profile
from planner.scenarios import PassShape
from planner.span import seen_tokens
from solvers.errors import UnsupportedError

__all__ = ["Attended", "attended", "embedded", "parts_of", "tokens_each"]


class Attended(NamedTuple):
    """A kind of attention in a pass, what it costs, and the tokens that one of them sees."""

    kind: str
    costs: Surface
    seen: int


def tokens_each(model: ModelSpec, shape: PassShape, layer: int) -> int:
    """Tokens of each sequence that a layer computes in a pass."""
    prompt = shape.context if shape.phase == "prefill" else 0
    if layer < model.encoder_depth:
        return prompt
    return 1 if model.encoder else prompt or 1


def embedded(model: ModelSpec, shape: PassShape) -> int:
    """Tokens that a pass begins with: with an encoder both sides'."""
    last = len(model.layers) - 1
    both = (0, last) if model.encoder else (last,)
    return shape.sequences * sum(tokens_each(model, shape, layer) for layer in both)


def parts_of(model: ModelSpec, layer: int) -> tuple[bool, ...]:
    """What tells layers apart that compute other operations, or on other tokens."""
    spec = model.layers[layer]
    has = (spec.experts > 0, spec.shared_expert_bytes > 0, spec.mlp_bytes > 0)
    return (layer < model.encoder_depth, *has)


def attended(
    profile: Profile, workload: Workload, shape: PassShape, layer: int
) -> tuple[Attended, ...]:
    """A layer's attention in a pass, in its order; none where the layer has nothing to compute.

    Raises
    ------
    UnsupportedError
        If the costs know nothing of attention to prompts, which a decoder behind an encoder has.
    """
    model, costs, prefill = profile.model, profile.costs, shape.phase == "prefill"
    if not tokens_each(model, shape, layer):
        return ()
    if layer < model.encoder_depth or (prefill and not model.encoder):
        return (Attended("attention", costs.attention_prefill, shape.context),)
    if not model.encoder:
        seen = seen_tokens(workload, shape.context)
        return (Attended("attention", costs.attention_decode, seen),)
    cross = costs.cross_prefill if prefill else costs.cross_decode
    if cross is None:
        raise UnsupportedError(f"{model.name}: the costs do not know attention to prompts")
    # its own: the token that it began with, and those made since
    own = 1 if prefill else shape.context - workload.prompt_tokens + 1
    return (
        Attended("attention", costs.attention_decode, own),
        Attended("cross_attention", cross, workload.prompt_tokens),
    )
