"""The blocks that families share: grouped-query attention, gated experts, a stack of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.architectures.base import Architecture, LayerShape, Weight, linear, mlp, norm
from planner.architectures.reading import ConfigReader

__all__ = [
    "NUMBERED",
    "Attention",
    "Feed",
    "dense_feed",
    "experts",
    "grouped_query",
    "prediction_layer",
    "router",
    "small_experts",
    "stack",
    "whole",
]

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
NUMBERED = ("w1", "w3", "w2")
"""Mixtral's names of gate, up and down."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention: its weights and what it keeps."""

    weights: tuple[Weight, ...]
    kv_values: int
    window: int | None = None
    state_values: int = 0
    state_float32_values: int = 0


@dataclass(frozen=True, slots=True)
class Feed:
    """What follows attention: weights of the dense part, and the experts if there are any."""

    dense: tuple[Weight, ...]
    expert: tuple[Weight, ...] = ()
    experts: int = 0
    top_k: int = 0
    inner: int = 0


def grouped_query(
    read: ConfigReader,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    query_norm: int = 0,
    key_norm: int = 0,
    window: int | None = None,
    gated_query: bool = False,
) -> Attention:
    """Grouped-query attention; norms of queries and keys where their size is not 0; a query twice
    as wide where it carries the output's gate."""
    hidden = read.positive("hidden_size")
    heads, kv_heads, head_dim = read.heads()
    query, key = heads * head_dim, kv_heads * head_dim
    weights = (
        *linear(
            "self_attn.q_proj",
            (2 if gated_query else 1) * query,
            hidden,
            "attention",
            bias=qkv_bias,
        ),
        *linear("self_attn.k_proj", key, hidden, "attention", bias=qkv_bias),
        *linear("self_attn.v_proj", key, hidden, "attention", bias=qkv_bias),
        *linear("self_attn.o_proj", hidden, query, "attention", bias=output_bias),
    )
    if query_norm:
        weights += norm("self_attn.q_norm", query_norm, part="attention")
        weights += norm("self_attn.k_norm", key_norm, part="attention")
    return Attention(weights, 2 * key, window)


def experts(
    inner: int, hidden: int, pattern: str, names: tuple[str, str, str] = PROJECTIONS
) -> tuple[Weight, ...]:
    """One expert's gate, up and down; ``pattern`` is the stored name with ``{e}`` and ``{w}``."""
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return tuple(
        Weight(f"{role}.weight", shape, "expert", pattern.replace("{w}", name), quantized=True)
        for role, name, shape in zip(PROJECTIONS, names, shapes, strict=True)
    )


def router(count: int, hidden: int, *, role: str = "mlp.gate", stored: str = "") -> Weight:
    """The router's matrix; no checkpoint quantizes it."""
    return linear(role, count, hidden, "router", stored=stored, quantized=False)[0]


def stack(
    read: ConfigReader,
    attention: Callable[[int], Attention],
    feed: Callable[[int], Feed],
    *,
    prefix: str = "model.layers.",
    norm_bias: bool = False,
    first: int = 0,
    count: int | None = None,
) -> tuple[LayerShape, ...]:
    """Layers of norm, attention, norm, feed-forward."""
    hidden = read.positive("hidden_size")
    count = read.layers() if count is None else count
    layers = []
    for index in range(first, first + count):
        mixer, after = attention(index), feed(index)
        layers.append(
            LayerShape(
                dense=(
                    *norm("input_layernorm", hidden, bias=norm_bias),
                    *mixer.weights,
                    *norm("post_attention_layernorm", hidden, bias=norm_bias),
                    *after.dense,
                ),
                prefix=f"{prefix}{index}.",
                kv_values=mixer.kv_values,
                expert=after.expert,
                experts=after.experts,
                top_k=after.top_k,
                expert_intermediate=after.inner,
                state_values=mixer.state_values,
                state_float32_values=mixer.state_float32_values,
                window=mixer.window,
            )
        )
    return tuple(layers)


def whole(
    read: ConfigReader,
    layers: tuple[LayerShape, ...],
    *,
    tied: bool = False,
    extra: tuple[Weight, ...] = (),
    spare: tuple[LayerShape, ...] = (),
    spare_prefix: tuple[str, ...] = (),
    buffers: tuple[str, ...] = (),
    max_context: int | None = None,
    prefix: str = "model.",
    head: str = "lm_head.weight",
    heads: tuple[int, int, int] | None = None,
) -> Architecture:
    """The whole model around ``layers``.

    Tensors whose names begin with one of ``spare_prefix`` or end in one of ``buffers`` (values that
    are computed, but were saved) may be stored and are left alone.
    """
    hidden, vocab = read.positive("hidden_size"), read.positive("vocab_size")
    query_heads, kv_heads, head_dim = heads or read.heads()
    skip = (*spare_prefix, *(layer.prefix for layer in spare))
    return Architecture(
        family=read.family,
        hidden_size=hidden,
        vocab_size=vocab,
        attention_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_context=read.positive("max_position_embeddings", default=max_context),
        layers=layers,
        embedding=Weight(f"{prefix}embed_tokens.weight", (vocab, hidden), "outside"),
        final_norm=Weight(f"{prefix}norm.weight", (hidden,), "outside"),
        head=None
        if read.flag("tie_word_embeddings", tied)
        else Weight(head, (vocab, hidden), "outside"),
        extra=extra,
        spare=spare,
        skipped=lambda name: name.endswith((".inv_freq", *buffers)) or name.startswith(skip),
    )


def prediction_layer(read: ConfigReader, layer: LayerShape, vocab_copies: int) -> LayerShape:
    """A multi-token-prediction layer as DeepSeek-V3 stores it (arXiv 2412.19437, section 2.2):
    a layer like the last one, two norms, a projection of both inputs, and ``vocab_copies`` copies
    of embedding and head."""
    hidden, vocab = read.positive("hidden_size"), read.positive("vocab_size")
    more = (
        *norm("enorm", hidden),
        *norm("hnorm", hidden),
        *linear("eh_proj", hidden, 2 * hidden, "mlp", quantized=False),
        *norm("shared_head.norm", hidden),
        *(
            Weight(name, (vocab, hidden), "outside")
            for name in ("embed_tokens.weight", "shared_head.head.weight")[:vocab_copies]
        ),
    )
    return LayerShape(
        dense=(*layer.dense, *more),
        prefix=layer.prefix,
        kv_values=layer.kv_values,
        expert=layer.expert,
        experts=layer.experts,
        top_k=layer.top_k,
        expert_intermediate=layer.expert_intermediate,
    )


def small_experts(read: ConfigReader, *keys: str, shared: tuple[Weight, ...] = ()) -> Feed:
    """Experts under ``mlp.experts``, with what every token uses beside them."""
    hidden = read.positive("hidden_size")
    inner = read.positive("moe_intermediate_size", "intermediate_size")
    count, top_k = read.experts(*keys)
    return Feed(
        (router(count, hidden), *shared),
        experts(inner, hidden, "mlp.experts.{e}.{w}.weight"),
        count,
        top_k,
        inner,
    )


def dense_feed(read: ConfigReader) -> Feed:
    """The gated feed-forward of a layer without experts."""
    return Feed(mlp("mlp", read.positive("intermediate_size"), read.positive("hidden_size"), "mlp"))
