"""Families whose checkpoints hold all experts of a layer in one tensor.

gpt-oss (arXiv 2508.10925), Llama-4, Granite-MoE and PowerMoE, JetMoE (arXiv 2404.07413).
"""

from __future__ import annotations

from dataclasses import replace

from planner.architectures.base import Architecture, LayerShape, Weight, linear, mlp, norm
from planner.architectures.blocks import Attention, Feed, grouped_query, router, stack, whole
from planner.architectures.reading import ConfigReader

__all__ = ["gpt_oss", "granitemoe", "jetmoe", "llama4"]


def _halves(inner: int, hidden: int, joint: str, down: str) -> tuple[Weight, ...]:
    """Gate and up as the halves of one tensor's rows, down as another's."""
    shape = (inner, hidden)
    return (
        Weight("gate_proj.weight", shape, "expert", joint, (0, inner, 2 * inner), quantized=True),
        Weight(
            "up_proj.weight", shape, "expert", joint, (inner, 2 * inner, 2 * inner), quantized=True
        ),
        Weight("down_proj.weight", (hidden, inner), "expert", down, quantized=True),
    )


def granitemoe(read: ConfigReader) -> Architecture:
    """Granite-MoE and PowerMoE: gate and up in one tensor."""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    bias = read.flag("attention_bias", False)
    attention = grouped_query(read, qkv_bias=bias, output_bias=bias)
    count, top_k = read.experts("num_local_experts")
    feed = Feed(
        (
            router(
                count,
                hidden,
                role="block_sparse_moe.router",
                stored="block_sparse_moe.router.layer",
            ),
        ),
        _halves(
            inner,
            hidden,
            "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.output_linear.weight",
        ),
        count,
        top_k,
        inner,
    )
    return whole(read, stack(read, lambda _: attention, lambda _: feed))


def gpt_oss(read: ConfigReader) -> Architecture:
    """gpt-oss: biases everywhere, attention sinks, every other layer with a window; gate and up
    alternate column by column, so that one expert's are one piece."""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    heads, count = read.heads()[0], read.layers()
    bias = read.flag("attention_bias", True)
    number, top_k = read.experts("num_local_experts")
    types = read.per_layer("layer_types", ("sliding_attention", "full_attention"), count)
    plain = grouped_query(read, qkv_bias=bias, output_bias=bias)
    sinks = Weight("self_attn.sinks", (heads,), "attention")
    full = replace(plain, weights=(*plain.weights, sinks))
    sliding = replace(full, window=read.window())
    feed = Feed(
        linear("mlp.router", number, hidden, "router", bias=True, quantized=False),
        (
            Weight(
                "gate_up_proj",
                (hidden, 2 * inner),
                "expert",
                "mlp.experts.gate_up_proj",
                quantized=True,
            ),
            Weight("down_proj", (inner, hidden), "expert", "mlp.experts.down_proj", quantized=True),
            Weight("gate_up_proj_bias", (2 * inner,), "expert", "mlp.experts.gate_up_proj_bias"),
            Weight("down_proj_bias", (hidden,), "expert", "mlp.experts.down_proj_bias"),
        ),
        number,
        top_k,
        inner,
    )

    def attention(index: int) -> Attention:
        kind = types[index] if types else ("full_attention" if index % 2 else "sliding_attention")
        return sliding if kind == "sliding_attention" else full

    return whole(read, stack(read, attention, lambda _: feed))


def llama4(read: ConfigReader) -> Architecture:
    """The text part of Llama-4: one expert chosen, one shared, dense layers between.

    Attention in chunks keeps no more of the past than a window of the chunk's length. With the
    vision tower the language model's names begin with ``language_model.``.
    """
    wrapped = "language_model." if read.config.get("moeplan_wrapped") else ""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    count, bias = read.layers(), read.flag("attention_bias", False)
    number, top_k = read.experts("num_local_experts")
    chunk = read.natural("attention_chunk_size", default=0)
    context = read.positive("max_position_embeddings", default=131072)
    rotary = (
        read.per_layer("no_rope_layers", (0, 1), count)
        if read.config.get("no_rope_layers")
        else None
    )
    every = read.positive("no_rope_layer_interval", default=4)
    step = read.positive("interleave_moe_layer_step", default=1)
    sparse_layers = read.numbers("moe_layers") or frozenset(range(step - 1, count, step))
    full = grouped_query(read, qkv_bias=bias, output_bias=bias)
    chunked = replace(full, window=chunk if 0 < chunk < context else None)
    sparse = Feed(
        (
            router(number, hidden, role="feed_forward.router"),
            *mlp("feed_forward.shared_expert", inner, hidden, "shared_expert"),
        ),
        (
            Weight(
                "gate_up_proj",
                (hidden, 2 * inner),
                "expert",
                "feed_forward.experts.gate_up_proj",
                quantized=True,
            ),
            Weight(
                "down_proj",
                (inner, hidden),
                "expert",
                "feed_forward.experts.down_proj",
                quantized=True,
            ),
        ),
        number,
        top_k,
        inner,
    )
    wide = read.positive("intermediate_size_mlp", default=16384)
    dense = Feed(mlp("feed_forward", wide, hidden, "mlp"))

    def attention(index: int) -> Attention:
        return chunked if (rotary[index] if rotary else (index + 1) % every) else full

    layers = stack(
        read,
        attention,
        lambda index: sparse if index in sparse_layers else dense,
        prefix=f"{wrapped}model.layers.",
    )
    return whole(
        read,
        layers,
        max_context=context,
        prefix=f"{wrapped}model.",
        head=f"{wrapped}lm_head.weight",
        spare_prefix=("vision_model.", "multi_modal_projector."),
    )


def jetmoe(read: ConfigReader) -> Architecture:
    """JetMoE: a mixture in attention too. Its query and output matrices belong to the dense part,
    since a pass of many tokens needs them all; one token touches the chosen ones alone."""
    hidden = read.positive("hidden_size")
    inner = read.positive("intermediate_size", "ffn_hidden_size")
    number, top_k = read.experts("num_local_experts", "moe_num_experts")
    kv_heads, head_dim = read.positive("num_key_value_heads"), read.positive("kv_channels")
    width, one = kv_heads * head_dim, kv_heads * head_dim * hidden
    chosen = top_k * one
    feed_in, feed_out = "mlp.input_linear.weight", "mlp.output_linear.weight"
    root = "self_attention.experts"
    layer = LayerShape(
        dense=(
            *norm("input_layernorm", hidden),
            Weight(f"{root}.bias", (hidden,), "attention"),
            Weight(
                f"{root}.input_linear.weight",
                (number, width, hidden),
                "attention",
                active=chosen,
            ),
            Weight(
                f"{root}.output_linear.weight",
                (number, hidden, width),
                "attention",
                active=chosen,
            ),
            Weight(f"{root}.router.layer.weight", (number, hidden), "attention"),
            *linear("self_attention.kv_proj", 2 * width, hidden, "attention"),
            *norm("post_attention_layernorm", hidden),
            Weight("mlp.router.layer.weight", (number, hidden), "router"),
            # added to the sum of the experts: counted with what leads to them
            Weight("mlp.bias", (hidden,), "router"),
        ),
        prefix="",
        kv_values=2 * width,
        expert=_halves(inner, hidden, feed_in, feed_out),
        experts=number,
        top_k=top_k,
        expert_intermediate=inner,
    )
    layers = tuple(
        replace(layer, prefix=f"model.layers.{index}.") for index in range(read.layers())
    )
    return whole(
        read,
        layers,
        tied=True,
        max_context=read.positive("n_positions", default=4096),
        heads=(kv_heads * top_k, kv_heads, head_dim),
    )
