"""Families that only code beside their checkpoints describes: LLaMA-MoE, OpenMoE, Yuan 2.0-M32.

arXiv 2406.16554, 2402.01739 and 2405.17976.
"""

from __future__ import annotations

from dataclasses import replace

from planner.architectures.base import Architecture, LayerShape, Weight, linear, norm
from planner.architectures.blocks import Attention, Feed, grouped_query, stack, whole
from planner.architectures.reading import ConfigReader
from solvers.counting import counted

__all__ = ["llama_moe", "openmoe", "yuan"]


def llama_moe(read: ConfigReader) -> Architecture:
    """LLaMA-MoE: a dense model's feed-forward cut into experts of one size; a gate of two layers
    and one for noise, which is stored though inference does not use it."""
    hidden, count = read.positive("hidden_size"), read.layers()
    number, top_k = read.experts("num_experts")
    sizes = read.config.get("size_experts")
    inner, left = divmod(read.positive("intermediate_size"), number)
    if left:
        raise read.refuse(f"intermediate_size does not divide among {counted(number, 'expert')}")
    if sizes is not None and sizes != [[inner] * number] * count:
        raise read.refuse("size_experts gives experts of different sizes")
    if read.word("gate_type", "TopKBalancedNoisyGate") != "TopKBalancedNoisyGate":
        raise read.refuse(f"the gate {read.word('gate_type', '')!r} is not known")
    if read.flag("add_weight_norm", False):
        raise read.refuse("add_weight_norm is not known")
    kind = read.word("gate_network", "mlp")
    if kind not in ("mlp", "linear"):
        raise read.refuse(f"the gate network {kind!r} is not known")
    gate = (
        (
            Weight("mlp.gate.gate_network.0.weight", (number, hidden), "router"),
            Weight("mlp.gate.gate_network.2.weight", (number, number), "router"),
        )
        if kind == "mlp"
        else (Weight("mlp.gate.gate_network.weight", (number, hidden), "router"),)
    )
    noise = (
        (Weight("mlp.gate.weight_noise.weight", (number, hidden), "router"),)
        if read.flag("gate_add_noise", True)
        else ()
    )
    pattern = "mlp.calculator.experts.weight_{w}.{e}"
    expert = tuple(
        Weight(f"{name}_proj.weight", shape, "expert", pattern.replace("{w}", name))
        for name, shape in (
            ("gate", (inner, hidden)),
            ("up", (inner, hidden)),
            ("down", (hidden, inner)),
        )
    )
    attention = grouped_query(read)
    feed = Feed((*gate, *noise), expert, number, top_k, inner)
    return whole(read, stack(read, lambda _: attention, lambda _: feed))


def _double_gated(role: str, inner: int, hidden: int) -> tuple[tuple[str, tuple[int, int]], ...]:
    """OpenMoE's feed-forward: its gate is itself gated, so it is twice as wide."""
    return (
        (f"{role}gate_proj.weight", (2 * inner, hidden)),
        (f"{role}up_proj.weight", (inner, hidden)),
        (f"{role}down_proj.weight", (hidden, inner)),
    )


def openmoe(read: ConfigReader) -> Architecture:
    """OpenMoE: experts in every ``moe_layer_interval``-th layer, a dense feed-forward in each."""
    hidden, inner = read.positive("hidden_size"), read.positive("intermediate_size")
    heads, head_dim = read.positive("num_attention_heads"), read.positive("head_dim")
    if read.word("hidden_act", "swiglu") != "swiglu":
        raise read.refuse(f"the activation {read.word('hidden_act', '')!r} is not known")
    number, top_k = read.experts("num_experts")
    every = read.positive("moe_layer_interval")
    attention = grouped_query(read)
    dense = Feed(tuple(Weight(n, s, "mlp") for n, s in _double_gated("mlp.", inner, hidden)))
    sparse = Feed(
        (
            Weight("mlp.gate.weight", (number, hidden), "router"),
            *norm("pre_extra_mlp_layernorm", hidden),
            *(Weight(n, s, "shared_expert") for n, s in _double_gated("extra_mlp.", inner, hidden)),
        ),
        tuple(
            Weight(name, shape, "expert", f"mlp.experts.{{e}}.{name}")
            for name, shape in _double_gated("", inner, hidden)
        ),
        number,
        top_k,
        inner,
    )
    layers = stack(
        read, lambda _: attention, lambda index: dense if (index + 1) % every else sparse
    )
    model = whole(read, layers, max_context=2048, heads=(heads, read.heads()[1], head_dim))
    return replace(model, default_dtype="float32")


def yuan(read: ConfigReader) -> Architecture:
    """Yuan 2.0-M32: localized filtering before queries and keys, and a router that is itself a
    small attention over the experts."""
    hidden, heads = read.positive("hidden_size"), read.positive("num_attention_heads")
    width = read.positive("attention_projection_size", default=hidden)
    if width % heads:
        raise read.refuse(
            f"attention_projection_size {width} does not divide among {counted(heads, 'head')}"
        )
    if read.flag("use_shareqk", False):
        raise read.refuse("use_shareqk is not known")
    mixture = read.part("moe_config")
    number, top_k = mixture.experts("moe_num_experts")
    inner, gated = mixture.positive("ffn_hidden_size"), mixture.flag("gated_linear_unit", True)
    filters = "self_attn.lf_gate"
    rows = (2 if gated else 1) * inner
    up = "mlp.experts.{e}.w1.weight"
    attention = Attention(
        (
            *linear("self_attn.v_proj", width, hidden, "attention"),
            *linear("self_attn.o_proj", hidden, width, "attention"),
            Weight(f"{filters}.conv1.weight", (hidden // 2, hidden, 2, 1), "attention"),
            Weight(f"{filters}.conv1.bias", (hidden // 2,), "attention"),
            Weight(f"{filters}.conv2.weight", (hidden, hidden // 2, 2, 1), "attention"),
            Weight(f"{filters}.conv2.bias", (hidden,), "attention"),
            *norm(f"{filters}.output_layernorm", hidden, part="attention"),
            *linear("self_attn.q_proj", width, hidden, "attention"),
            *linear("self_attn.k_proj", width, hidden, "attention"),
        ),
        kv_values=2 * width,
        # the last two hidden states of each sequence, which the filter looks back at
        state_values=2 * hidden,
    )
    expert = (
        Weight("w1.weight", (rows, hidden), "expert", up),
        Weight("w2.weight", (hidden, inner), "expert", "mlp.experts.{e}.w2.weight"),
    )
    feed = Feed(
        tuple(
            Weight(f"mlp.gate.{name}.weight", (number, hidden), "router")
            for name in ("query", "key", "value")
        ),
        expert,
        number,
        top_k,
        inner,
    )
    layers: tuple[LayerShape, ...] = stack(read, lambda _: attention, lambda _: feed)
    return whole(read, layers, heads=(heads, heads, width // heads))
