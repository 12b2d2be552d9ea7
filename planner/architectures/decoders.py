"""Pre-norm decoders with grouped-query attention and gated experts: most of today's models.

Mixtral (arXiv 2401.04088), OLMoE (2409.02060), Qwen-MoE (2407.10671, 2505.09388), Phi-3.5-MoE
(2404.14219), GRIN (2409.12136), DeepSeekMoE (2401.06066), GLM-4.5 (2508.06471), and others. What
each has of its own is in its function.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.architectures.base import Architecture, Weight, linear, mlp, norm
from planner.architectures.blocks import (
    NUMBERED,
    Attention,
    Feed,
    dense_feed,
    experts,
    grouped_query,
    prediction_layer,
    router,
    small_experts,
    stack,
    whole,
)
from planner.architectures.reading import ConfigReader

__all__ = [
    "deepseek_feed",
    "deepseek_moe",
    "ernie",
    "glm4_moe",
    "minicpm",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "qwen_feed",
    "xverse",
]


def _block_sparse(read: ConfigReader, role: str = "mlp.gate") -> Feed:
    """Mixtral's feed-forward, and its names."""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    count, top_k = read.experts("num_local_experts")
    return Feed(
        (router(count, hidden, role=role, stored="block_sparse_moe.gate"),),
        experts(inner, hidden, "block_sparse_moe.experts.{e}.{w}.weight", NUMBERED),
        count,
        top_k,
        inner,
    )


def mixtral(read: ConfigReader) -> Architecture:
    """Mixtral: eight wide experts, two chosen, in every layer."""
    attention, feed = grouped_query(read, window=read.window()), _block_sparse(read)
    return whole(read, stack(read, lambda _: attention, lambda _: feed))


def phimoe(read: ConfigReader) -> Architecture:
    """Phi-3.5-MoE and GRIN-MoE: Mixtral with layer norms and biases, that of the head included."""
    bias = read.flag("attention_bias", False)
    attention = grouped_query(read, qkv_bias=bias, output_bias=bias, window=read.window())
    feed = _block_sparse(read, "mlp.router")
    extra = norm("model.norm", read.positive("hidden_size"), bias=True, part="outside")[1:]
    if read.flag("lm_head_bias", False):
        extra += (Weight("lm_head.bias", (read.positive("vocab_size"),), "outside"),)
    layers = stack(read, lambda _: attention, lambda _: feed, norm_bias=True)
    return whole(read, layers, extra=extra)


def minimax_m2(read: ConfigReader) -> Architecture:
    """MiniMax-M2: 256 experts chosen with a correction bias; norms over all queries and keys.

    The prediction modules that its configuration counts are not in its checkpoints.
    """
    heads, kv_heads, head_dim = read.heads()
    normed = read.flag("use_qk_norm", True)
    attention = grouped_query(
        read,
        query_norm=heads * head_dim if normed else 0,
        key_norm=kv_heads * head_dim if normed else 0,
    )
    feed = _block_sparse(read)
    if read.flag("use_routing_bias", True):
        bias = Weight(
            "mlp.e_score_correction_bias",
            (feed.experts,),
            "router",
            "block_sparse_moe.e_score_correction_bias",
            dtype="F32",
            # a buffer that routes, no trained parameter
            parameters=0,
        )
        feed = Feed((*feed.dense, bias), feed.expert, feed.experts, feed.top_k, feed.inner)
    return whole(read, stack(read, lambda _: attention, lambda _: feed))


def olmoe(read: ConfigReader) -> Architecture:
    """OLMoE: 64 small experts, eight chosen; norms over all queries and over all keys."""
    heads, kv_heads, head_dim = read.heads()
    bias = read.flag("attention_bias", False)
    attention = grouped_query(
        read,
        qkv_bias=bias,
        output_bias=bias,
        query_norm=heads * head_dim,
        key_norm=kv_heads * head_dim,
    )
    feed = small_experts(read, "num_experts")
    return whole(read, stack(read, lambda _: attention, lambda _: feed))


def qwen_feed(read: ConfigReader, *, shared: bool) -> Callable[[int], Feed]:
    """Qwen's layers: experts in every ``decoder_sparse_step``-th, a dense MLP in the others."""
    step, dense = read.positive("decoder_sparse_step", default=1), read.numbers("mlp_only_layers")
    hidden, width = read.positive("hidden_size"), 0
    if shared:
        width = read.natural("shared_expert_intermediate_size", default=0)
    beside = (
        (
            *mlp("mlp.shared_expert", width, hidden, "shared_expert"),
            *linear("mlp.shared_expert_gate", 1, hidden, "shared_expert", quantized=False),
        )
        if width
        else ()
    )
    sparse = small_experts(read, "num_experts", "num_local_experts", shared=beside)

    def feed(index: int) -> Feed:
        return sparse if index not in dense and (index + 1) % step == 0 else dense_feed(read)

    return feed


def qwen2_moe(read: ConfigReader) -> Architecture:
    """Qwen1.5-MoE and Qwen2-MoE: a shared expert with a gate of its own; biases of q, k and v."""
    bias = read.flag("qkv_bias", True)
    sliding = read.flag("use_sliding_window", False)
    window = read.window() if sliding else None
    until = read.natural("max_window_layers", default=28)
    kinds = ("sliding_attention", "full_attention")
    types = read.per_layer("layer_types", kinds, read.layers())

    def attention(index: int) -> Attention:
        # unless it names them: every other layer of the first max_window_layers, as in transformers
        inside = index % 2 == 0 and index < until
        if types:
            inside = types[index] == "sliding_attention"
        return grouped_query(read, qkv_bias=bias, window=window if inside else None)

    return whole(read, stack(read, attention, qwen_feed(read, shared=True)))


def qwen3_moe(read: ConfigReader) -> Architecture:
    """Qwen3-MoE: 128 small experts, eight chosen; norms of each head's queries and keys."""
    bias, head_dim = read.flag("attention_bias", False), read.heads()[2]
    window = read.window() if read.flag("use_sliding_window", False) else None
    attention = grouped_query(
        read,
        qkv_bias=bias,
        output_bias=bias,
        query_norm=head_dim,
        key_norm=head_dim,
        window=window,
    )
    return whole(read, stack(read, lambda _: attention, qwen_feed(read, shared=False)))


def deepseek_feed(read: ConfigReader, *, correction: bool) -> Callable[[int], Feed]:
    """DeepSeek's layers: a few dense ones first, then shared and routed experts; a correction
    bias of the router's scores where the family has one."""
    hidden, inner = read.positive("hidden_size"), read.positive("moe_intermediate_size")
    shared = read.natural("n_shared_experts", default=0) * inner
    beside = mlp("mlp.shared_experts", shared, hidden, "shared_expert") if shared else ()
    if correction:
        beside = (
            Weight(
                "mlp.gate.e_score_correction_bias",
                (read.positive("n_routed_experts"),),
                "router",
                dtype="F32",
                # a buffer that routes, no trained parameter
                parameters=0,
            ),
            *beside,
        )
    sparse = small_experts(read, "n_routed_experts", shared=beside)
    first = read.natural("first_k_dense_replace", default=0)
    step = read.positive("moe_layer_freq", default=1)

    def feed(index: int) -> Feed:
        return sparse if index >= first and index % step == 0 else dense_feed(read)

    return feed


def deepseek_moe(read: ConfigReader) -> Architecture:
    """DeepSeekMoE 16B: plain attention, shared experts and many small routed ones."""
    bias = read.flag("attention_bias", False)
    attention = grouped_query(read, qkv_bias=bias, output_bias=bias)
    return whole(read, stack(read, lambda _: attention, deepseek_feed(read, correction=False)))


def glm4_moe(read: ConfigReader) -> Architecture:
    """GLM-4.5: DeepSeek-V3's experts with grouped-query attention and a prediction layer."""
    head_dim = read.heads()[2] if read.flag("use_qk_norm", False) else 0
    bias = read.flag("attention_bias", False)
    attention = grouped_query(read, qkv_bias=bias, query_norm=head_dim, key_norm=head_dim)
    feed = deepseek_feed(read, correction=True)
    count, more = read.layers(), read.layers("num_nextn_predict_layers", default=0)
    spare = stack(read, lambda _: attention, feed, first=count, count=more)
    return whole(
        read,
        stack(read, lambda _: attention, feed),
        spare=tuple(prediction_layer(read, layer, 2) for layer in spare),
    )


def ernie(read: ConfigReader) -> Architecture:
    """ERNIE-4.5: a dense first layer, shared experts, a correction bias that is trained."""
    hidden, inner = read.positive("hidden_size"), read.positive("moe_intermediate_size")
    bias = read.flag("use_bias", False)
    attention = grouped_query(read, qkv_bias=bias, output_bias=bias)
    count, top_k = read.experts("moe_num_experts")
    shared = read.natural("moe_num_shared_experts", default=0) * inner
    # transformers keeps the router in float32, and so do the checkpoints
    gate = Weight("mlp.gate.weight", (count, hidden), "router", dtype="F32")
    correction = Weight(
        "mlp.gate.moe_statics.e_score_correction_bias",
        (1, count),
        "router",
        "mlp.moe_statics.e_score_correction_bias",
        dtype="F32",
    )
    beside = mlp("mlp.shared_experts", shared, hidden, "shared_expert") if shared else ()
    sparse = Feed(
        (gate, correction, *beside),
        experts(inner, hidden, "mlp.experts.{e}.{w}.weight"),
        count,
        top_k,
        inner,
    )
    if read.config.get("moe_layer_end_index") == -1:
        last = read.layers() - 1
    else:
        last = read.natural("moe_layer_end_index", default=read.layers() - 1)
    start = read.natural("moe_layer_start_index", default=1)
    step = read.positive("moe_layer_interval", default=1)

    def feed(index: int) -> Feed:
        inside = start <= index <= last and (index + 1) % step == 0
        return sparse if inside else dense_feed(read)

    layers = stack(read, lambda _: attention, feed)
    return whole(read, layers, tied=True, max_context=131072)


def minicpm(read: ConfigReader) -> Architecture:
    """MiniCPM-MoE: Mixtral's experts under other names; the head is tied unless it says not."""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    bias = read.flag("attention_bias", False)
    attention = grouped_query(read, qkv_bias=bias, output_bias=bias)
    count, top_k = read.experts("num_experts")
    feed = Feed(
        (router(count, hidden),),
        experts(inner, hidden, "mlp.experts.{e}.{w}.weight", NUMBERED),
        count,
        top_k,
        inner,
    )
    return whole(read, stack(read, lambda _: attention, lambda _: feed), tied=True)


def xverse(read: ConfigReader) -> Architecture:
    """XVERSE-MoE: fine-grained experts, shared experts, a router in float32."""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    bias = read.flag("attention_bias", False)
    attention = grouped_query(read, qkv_bias=bias, output_bias=bias)
    count, top_k = read.experts("num_experts")
    shared = read.natural("num_shared_experts", default=0) * inner
    feed = Feed(
        (
            Weight("mlp.router.weight", (count, hidden), "router", dtype="F32"),
            *(mlp("mlp.shared_experts", shared, hidden, "shared_expert") if shared else ()),
        ),
        experts(inner, hidden, "mlp.experts.{e}.{w}.weight"),
        count,
        top_k,
        inner,
    )
    return whole(read, stack(read, lambda _: attention, lambda _: feed))
