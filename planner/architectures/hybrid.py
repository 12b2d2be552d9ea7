"""Models that mix full attention with linear attention: Qwen3-Next, Qwen3.5, MiniMax-M1.

A layer of linear attention adds nothing to the cache for a token; each sequence keeps a state of
fixed size instead.
"""

from __future__ import annotations

from planner.architectures.base import Architecture, LayerShape, Weight, linear, norm
from planner.architectures.blocks import (
    NUMBERED,
    Attention,
    Feed,
    experts,
    grouped_query,
    router,
    stack,
    whole,
)
from planner.architectures.decoders import qwen_feed
from planner.architectures.reading import ConfigReader

__all__ = ["minimax", "minimax_m1", "qwen3_5_moe", "qwen3_next"]


def _gated_delta(read: ConfigReader, *, separate: bool) -> Attention:
    """Gated delta rule (arXiv 2412.06464); ``separate``: one projection for each input."""
    hidden = read.positive("hidden_size")
    key_heads, value_heads = (
        read.positive("linear_num_key_heads"),
        read.positive("linear_num_value_heads"),
    )
    key_dim, value_dim = (
        read.positive("linear_key_head_dim"),
        read.positive("linear_value_head_dim"),
    )
    kernel = read.positive("linear_conv_kernel_dim", default=4)
    key, value = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * key + value
    if separate:
        inputs = (
            *linear("linear_attn.in_proj_qkv", mixed, hidden, "attention"),
            *linear("linear_attn.in_proj_z", value, hidden, "attention"),
            *linear("linear_attn.in_proj_b", value_heads, hidden, "attention", quantized=False),
            *linear("linear_attn.in_proj_a", value_heads, hidden, "attention", quantized=False),
        )
    else:
        inputs = (
            *linear("linear_attn.in_proj_qkvz", mixed + value, hidden, "attention"),
            *linear(
                "linear_attn.in_proj_ba", 2 * value_heads, hidden, "attention", quantized=False
            ),
        )
    weights = (
        Weight("linear_attn.conv1d.weight", (mixed, 1, kernel), "attention"),
        *inputs,
        Weight("linear_attn.dt_bias", (value_heads,), "attention"),
        Weight("linear_attn.A_log", (value_heads,), "attention"),
        *norm("linear_attn.norm", value_dim, part="attention"),
        *linear("linear_attn.out_proj", hidden, value, "attention"),
    )
    return Attention(
        weights,
        kv_values=0,
        state_values=mixed * kernel,
        # the recurrent state is kept in float32
        state_float32_values=value_heads * key_dim * value_dim,
    )


def _qwen_hybrid(read: ConfigReader, prefix: str, *, separate: bool) -> tuple[LayerShape, ...]:
    count, head_dim = read.layers(), read.heads()[2]
    types = read.per_layer("layer_types", ("linear_attention", "full_attention"), count)
    interval = read.positive("full_attention_interval", default=4)
    full = _full(read, head_dim)
    slow = _gated_delta(read, separate=separate)

    def attention(index: int) -> Attention:
        if types is None:
            return full if (index + 1) % interval == 0 else slow
        return full if types[index] == "full_attention" else slow

    return stack(read, attention, qwen_feed(read, shared=True), prefix=prefix)


def _full(read: ConfigReader, head_dim: int) -> Attention:
    bias = read.flag("attention_bias", False)
    return grouped_query(
        read,
        qkv_bias=bias,
        output_bias=bias,
        query_norm=head_dim,
        key_norm=head_dim,
        gated_query=True,
    )


def qwen3_next(read: ConfigReader) -> Architecture:
    """Qwen3-Next: three layers of gated delta rule to one of gated full attention."""
    layers = _qwen_hybrid(read, "model.layers.", separate=False)
    return whole(read, layers, spare_prefix=("mtp.",))


def qwen3_5_moe(read: ConfigReader) -> Architecture:
    """The text part of Qwen3.5-MoE: Qwen3-Next with separate input projections.

    With its vision tower the language model's names begin with ``model.language_model.``.
    """
    prefix = "model.language_model." if read.config.get("moeplan_wrapped") else "model."
    layers = _qwen_hybrid(read, f"{prefix}layers.", separate=True)
    hidden, head_dim = read.positive("hidden_size"), read.heads()[2]
    feed = qwen_feed(read, shared=True)
    spare = stack(
        read,
        lambda _: _full(read, head_dim),
        feed,
        prefix="mtp.layers.",
        count=read.layers("mtp_num_hidden_layers", default=0),
    )
    if spare:
        more = (
            *linear("fc", hidden, 2 * hidden, "mlp", quantized=False),
            *norm("norm", hidden),
            *norm("pre_fc_norm_embedding", hidden),
            *norm("pre_fc_norm_hidden", hidden),
        )
        spare += (LayerShape(dense=more, prefix="mtp.", kv_values=0),)
    return whole(read, layers, spare=spare, spare_prefix=("mtp.", "model.visual."), prefix=prefix)


def _lightning(read: ConfigReader) -> Attention:
    """Lightning attention (arXiv 2501.08313): one matrix for each head, kept in float32."""
    hidden, (heads, _, head_dim) = read.positive("hidden_size"), read.heads()
    width = heads * head_dim
    weights = (
        *linear("self_attn.qkv_proj", 3 * width, hidden, "attention"),
        *norm("self_attn.norm", width, part="attention"),
        *linear("self_attn.output_gate", width, hidden, "attention"),
        *linear("self_attn.out_proj", hidden, width, "attention"),
    )
    return Attention(weights, kv_values=0, state_float32_values=heads * head_dim * head_dim)


def _minimax(read: ConfigReader, linear_layers: list[bool]) -> Architecture:
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    count, top_k = read.experts("num_local_experts")
    if read.natural("shared_intermediate_size", default=0):
        raise read.refuse("shared experts (shared_intermediate_size) are not known")
    full, slow = grouped_query(read, window=read.window()), _lightning(read)
    feed = Feed(
        (router(count, hidden, stored="block_sparse_moe.gate"),),
        experts(inner, hidden, "block_sparse_moe.experts.{e}.{w}.weight", NUMBERED),
        count,
        top_k,
        inner,
    )
    layers = stack(read, lambda index: slow if linear_layers[index] else full, lambda _: feed)
    decays = (".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")
    return whole(read, layers, buffers=decays)


def minimax(read: ConfigReader) -> Architecture:
    """MiniMax-Text-01 as transformers has it."""
    count = read.layers()
    types = read.per_layer("layer_types", ("linear_attention", "full_attention"), count)
    if types is None:
        types = ["linear_attention" if index % 2 else "full_attention" for index in range(count)]
    return _minimax(read, [kind == "linear_attention" for kind in types])


def minimax_m1(read: ConfigReader) -> Architecture:
    """MiniMax-M1: seven layers of lightning attention to one of full attention."""
    types = read.per_layer("attn_type_list", (0, 1), read.layers())
    if types is None:
        raise read.refuse("the configuration has no attn_type_list")
    return _minimax(read, [kind == 0 for kind in types])
