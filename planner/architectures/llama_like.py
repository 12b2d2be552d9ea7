"""Pre-norm decoders with grouped-query attention and gated experts: most of today's models.

Mixtral (arXiv 2401.04088), Qwen3-MoE (arXiv 2505.09388), OLMoE (arXiv 2409.02060).
"""

from __future__ import annotations

from planner.architectures.base import (
    Architecture,
    Config,
    ConfigReader,
    LayerShape,
    Weight,
    linear,
)

__all__ = ["decoder", "gated", "grouped_query", "mixtral", "norm", "olmoe", "qwen3_moe"]


def norm(role: str, size: int, stored: str = "") -> Weight:
    """An RMS norm's weight."""
    return Weight(f"{role}.weight", (size,), "norm", stored)


def grouped_query(
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    query_norm: int = 0,
    key_norm: int = 0,
) -> tuple[Weight, ...]:
    """Attention projections, and the norms of queries and keys where their size is not 0."""
    weights = (
        *linear("self_attn.q_proj", heads * head_dim, hidden, "attention", bias=qkv_bias),
        *linear("self_attn.k_proj", kv_heads * head_dim, hidden, "attention", bias=qkv_bias),
        *linear("self_attn.v_proj", kv_heads * head_dim, hidden, "attention", bias=qkv_bias),
        *linear("self_attn.o_proj", hidden, heads * head_dim, "attention", bias=output_bias),
    )
    if query_norm:
        weights += (Weight("self_attn.q_norm.weight", (query_norm,), "attention"),)
    if key_norm:
        weights += (Weight("self_attn.k_norm.weight", (key_norm,), "attention"),)
    return weights


def gated(
    inner: int, hidden: int, pattern: str, names: tuple[str, str, str], roles: str = "{}"
) -> tuple[Weight, ...]:
    """One expert's gate, up and down; ``pattern`` is the stored name with ``{e}`` and ``{w}``."""
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return tuple(
        Weight(
            roles.format(role),
            shape,
            "expert",
            pattern.replace("{w}", name),
            quantized=True,
        )
        for role, name, shape in zip(
            ("gate_proj.weight", "up_proj.weight", "down_proj.weight"), names, shapes, strict=True
        )
    )


def decoder(
    read: ConfigReader,
    layers: tuple[LayerShape, ...],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    tied: bool = False,
    other: tuple[Weight, ...] = (),
    max_context: int | None = None,
) -> Architecture:
    """The whole model around ``layers``, with the usual names outside them."""
    hidden, vocab = read.positive("hidden_size"), read.positive("vocab_size")
    return Architecture(
        family=read.family,
        hidden_size=hidden,
        vocab_size=vocab,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_context=max_context or read.positive("max_position_embeddings"),
        layers=layers,
        embedding=Weight("model.embed_tokens.weight", (vocab, hidden), "outside"),
        final_norm=Weight("model.norm.weight", (hidden,), "outside"),
        head=None
        if read.flag("tie_word_embeddings", tied)
        else Weight("lm_head.weight", (vocab, hidden), "outside"),
        other=other,
    )


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _heads(read: ConfigReader) -> tuple[int, int, int]:
    """Query heads, key and value heads, and a head's size."""
    hidden, heads = read.positive("hidden_size"), read.positive("num_attention_heads")
    kv_heads = read.positive("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise read.refuse(f"{heads} attention heads do not divide among {kv_heads} key heads")
    head_dim = read.natural("head_dim", default=0)
    if not head_dim:
        if hidden % heads:
            raise read.refuse(f"hidden_size {hidden} does not divide among {heads} heads")
        head_dim = hidden // heads
    return heads, kv_heads, head_dim


def mixtral(config: Config) -> Architecture:
    """Mixtral-8x7B and 8x22B: eight wide experts, two chosen, in every layer."""
    read = ConfigReader(config)
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    heads, kv_heads, head_dim = _heads(read)
    experts = read.positive("num_local_experts")
    layer = [
        LayerShape(
            dense=(
                norm("input_layernorm", hidden),
                *grouped_query(heads, kv_heads, head_dim, hidden),
                norm("post_attention_layernorm", hidden),
                *linear(
                    "mlp.gate",
                    experts,
                    hidden,
                    "router",
                    stored="block_sparse_moe.gate",
                    quantized=False,
                ),
            ),
            prefix=f"model.layers.{index}.",
            kv_values=2 * kv_heads * head_dim,
            expert=gated(
                inner, hidden, "block_sparse_moe.experts.{e}.{w}.weight", ("w1", "w3", "w2")
            ),
            experts=experts,
            top_k=read.positive("num_experts_per_tok"),
            expert_intermediate=inner,
            window=read.natural("sliding_window", default=0) or None,
        )
        for index in range(read.positive("num_hidden_layers"))
    ]
    return decoder(read, tuple(layer), heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def olmoe(config: Config) -> Architecture:
    """OLMoE-1B-7B: 64 small experts, eight chosen; norms over all queries and all keys."""
    read = ConfigReader(config)
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    heads, kv_heads, head_dim = _heads(read)
    experts, bias = read.positive("num_experts"), read.flag("attention_bias", False)
    layers = tuple(
        LayerShape(
            dense=(
                norm("input_layernorm", hidden),
                *grouped_query(
                    heads,
                    kv_heads,
                    head_dim,
                    hidden,
                    qkv_bias=bias,
                    output_bias=bias,
                    query_norm=heads * head_dim,
                    key_norm=kv_heads * head_dim,
                ),
                norm("post_attention_layernorm", hidden),
                *linear("mlp.gate", experts, hidden, "router", quantized=False),
            ),
            prefix=f"model.layers.{index}.",
            kv_values=2 * kv_heads * head_dim,
            expert=gated(inner, hidden, "mlp.experts.{e}.{w}.weight", _PROJECTIONS),
            experts=experts,
            top_k=read.positive("num_experts_per_tok"),
            expert_intermediate=inner,
        )
        for index in range(read.positive("num_hidden_layers"))
    )
    return decoder(read, layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def qwen3_moe(config: Config) -> Architecture:
    """Qwen3-MoE: 128 small experts, eight chosen; norms of each head's queries and keys."""
    read = ConfigReader(config)
    hidden, inner = read.positive("hidden_size"), read.positive("moe_intermediate_size")
    heads, kv_heads, head_dim = _heads(read)
    experts, bias = (
        read.positive("num_experts", "num_local_experts"),
        read.flag("attention_bias", False),
    )
    step = read.positive("decoder_sparse_step", default=1)
    dense_layers = config.get("mlp_only_layers") or []
    window = read.natural("sliding_window", default=0) if config.get("use_sliding_window") else 0
    layers = []
    for index in range(read.positive("num_hidden_layers")):
        sparse = index not in dense_layers and (index + 1) % step == 0
        wide = 0 if sparse else read.positive("intermediate_size")
        layers.append(
            LayerShape(
                dense=(
                    norm("input_layernorm", hidden),
                    *grouped_query(
                        heads,
                        kv_heads,
                        head_dim,
                        hidden,
                        qkv_bias=bias,
                        output_bias=bias,
                        query_norm=head_dim,
                        key_norm=head_dim,
                    ),
                    norm("post_attention_layernorm", hidden),
                    *(
                        linear("mlp.gate", experts, hidden, "router", quantized=False)
                        if sparse
                        else (
                            *linear("mlp.gate_proj", wide, hidden, "mlp"),
                            *linear("mlp.up_proj", wide, hidden, "mlp"),
                            *linear("mlp.down_proj", hidden, wide, "mlp"),
                        )
                    ),
                ),
                prefix=f"model.layers.{index}.",
                kv_values=2 * kv_heads * head_dim,
                expert=gated(inner, hidden, "mlp.experts.{e}.{w}.weight", _PROJECTIONS)
                if sparse
                else (),
                experts=experts if sparse else 0,
                top_k=read.positive("num_experts_per_tok") if sparse else 0,
                expert_intermediate=inner if sparse else 0,
                window=window or None,
            )
        )
    return decoder(read, tuple(layers), heads=heads, kv_heads=kv_heads, head_dim=head_dim)
