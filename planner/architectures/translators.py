"""Encoder-decoder models: Switch Transformers (arXiv 2101.03961) and NLLB-MoE (arXiv 2207.04672).

The decoder's layers are the model's layers; the encoder is described beside them. What the decoder
keeps of the encoder's output (keys and values of cross attention, once for each input token) is no
part of ``kv_values``, which counts decoded tokens.
"""

from __future__ import annotations

from dataclasses import replace

from planner.architectures.base import Architecture, LayerShape, Weight, linear, norm
from planner.architectures.reading import ConfigReader

__all__ = ["nllb_moe", "switch"]


def switch(read: ConfigReader) -> Architecture:
    """Switch Transformers: T5 with experts in every other layer, one chosen."""
    hidden, heads, size = (
        read.positive("d_model"),
        read.positive("num_heads"),
        read.positive("d_kv"),
    )
    if read.flag("is_gated_act", False):
        raise read.refuse("gated activations are not known")
    vocab = read.positive("vocab_size", default=32128)  # transformers' default, T5's vocabulary
    depth = read.layers("num_layers")
    encoder = tuple(
        _switch_layer(read, index, "encoder.", read.positive("num_sparse_encoder_layers"), depth)
        for index in range(depth)
    )
    depth = read.layers("num_decoder_layers", default=depth)
    decoder = tuple(
        _switch_layer(read, index, "decoder.", read.positive("num_sparse_decoder_layers"), depth)
        for index in range(depth)
    )
    tied = read.flag("tie_word_embeddings", True)
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return Architecture(
        family=read.family,
        hidden_size=hidden,
        vocab_size=vocab,
        attention_heads=heads,
        kv_heads=heads,
        head_dim=size,
        # relative positions have no limit of their own: the length of training
        max_context=read.positive("n_positions", default=512),
        layers=decoder,
        embedding=Weight("shared.weight", (vocab, hidden), "outside"),
        final_norm=Weight("decoder.final_layer_norm.weight", (hidden,), "outside"),
        head=None if tied else Weight("lm_head.weight", (vocab, hidden), "outside"),
        encoder_layers=encoder,
        encoder_other=norm("encoder.final_layer_norm", hidden, part="outside"),
        skipped=lambda name: name in copies or (tied and name == "lm_head.weight"),
        default_dtype="float32",
    )


def _switch_layer(
    read: ConfigReader, index: int, side: str, sparse_layers: int, depth: int
) -> LayerShape:
    hidden, inner = read.positive("d_model"), read.positive("d_ff")
    heads, size = read.positive("num_heads"), read.positive("d_kv")
    decoder = side == "decoder."
    last = 2 if decoder else 1
    step = depth // sparse_layers
    sparse = step > 0 and (index % step == 1 or step == 1)

    def attention(role: str) -> tuple[Weight, ...]:
        return (
            *linear(f"{role}.q", heads * size, hidden, "attention"),
            *linear(f"{role}.k", heads * size, hidden, "attention"),
            *linear(f"{role}.v", heads * size, hidden, "attention"),
            *linear(f"{role}.o", hidden, heads * size, "attention"),
        )

    dense = (*attention("layer.0.SelfAttention"), *norm("layer.0.layer_norm", hidden))
    if index == 0:
        buckets = read.positive("relative_attention_num_buckets", default=32)
        name = "layer.0.SelfAttention.relative_attention_bias.weight"
        dense += (Weight(name, (buckets, heads), "attention"),)
    if decoder:
        dense += (*attention("layer.1.EncDecAttention"), *norm("layer.1.layer_norm", hidden))
    dense += norm(f"layer.{last}.layer_norm", hidden)
    prefix = f"{side}block.{index}."
    kv_values = 2 * heads * size if decoder else 0
    feed = f"layer.{last}.mlp"
    if not sparse:
        dense += (
            *linear(f"{feed}.wi", inner, hidden, "mlp"),
            *linear(f"{feed}.wo", hidden, inner, "mlp"),
        )
        return LayerShape(dense, prefix, kv_values)
    number, top_k = read.chosen(read.positive("num_experts"), 1)
    bias = read.flag("router_bias", False)
    expert = f"{feed}.experts.expert_{{e}}"
    return LayerShape(
        dense=(
            *dense,
            *linear(f"{feed}.router.classifier", number, hidden, "router", bias=bias),
        ),
        prefix=prefix,
        kv_values=kv_values,
        expert=(
            *linear("wi", inner, hidden, "expert", stored=f"{expert}.wi"),
            *linear("wo", hidden, inner, "expert", stored=f"{expert}.wo"),
        ),
        experts=number,
        top_k=top_k,
        expert_intermediate=inner,
    )


def nllb_moe(read: ConfigReader) -> Architecture:
    """NLLB-MoE: experts in every fourth layer of encoder and decoder, two chosen.

    Saved without its head, as the published one, its names have no ``model.`` before them.
    """
    root = "" if read.config.get("architectures") == ["NllbMoeModel"] else "model."
    hidden, vocab = read.positive("d_model"), read.positive("vocab_size")
    heads = read.positive("decoder_attention_heads")
    tied = read.flag("tie_word_embeddings", True)
    copies = tuple(f"{root}{side}.embed_tokens.weight" for side in ("encoder", "decoder"))

    def outside(role: str) -> tuple[Weight, ...]:
        found = norm(f"model.{role}", hidden, bias=True, part="outside")
        return tuple(replace(one, stored=root + one.role.removeprefix("model.")) for one in found)

    final_norm, final_bias = outside("decoder.layer_norm")
    return Architecture(
        family=read.family,
        hidden_size=hidden,
        vocab_size=vocab,
        attention_heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        max_context=read.positive("max_position_embeddings"),
        layers=_nllb_layers(read, "decoder", root),
        embedding=Weight("model.shared.weight", (vocab, hidden), "outside", f"{root}shared.weight"),
        final_norm=final_norm,
        head=None if tied else Weight("lm_head.weight", (vocab, hidden), "outside"),
        extra=(final_bias,),
        encoder_layers=_nllb_layers(read, "encoder", root),
        encoder_other=outside("encoder.layer_norm"),
        skipped=lambda name: name in copies or (tied and name == "lm_head.weight"),
        default_dtype="float32",
    )


def _nllb_layers(read: ConfigReader, side: str, base: str) -> tuple[LayerShape, ...]:
    hidden, inner = read.positive("d_model"), read.positive(f"{side}_ffn_dim")
    step = read.natural(f"{side}_sparse_step", default=4)
    number, top_k = read.chosen(read.positive("num_experts"), 2)
    bias = read.flag("router_bias", False)
    decoder = side == "decoder"

    def attention(role: str) -> tuple[Weight, ...]:
        return tuple(
            weight
            for name in ("k_proj", "v_proj", "q_proj", "out_proj")
            for weight in linear(f"{role}.{name}", hidden, hidden, "attention", bias=True)
        )

    shared = (*attention("self_attn"), *norm("self_attn_layer_norm", hidden, bias=True))
    if decoder:
        shared += attention("cross_attention")
        shared += norm("cross_attention_layer_norm", hidden, bias=True)
    shared += norm("ff_layer_norm", hidden, bias=True)
    kv_values = 2 * hidden if decoder else 0
    dense = (
        *linear("ffn.fc1", inner, hidden, "mlp", bias=True),
        *linear("ffn.fc2", hidden, inner, "mlp", bias=True),
    )
    root = "ffn.experts.expert_{e}"
    expert = (
        *linear("fc1", inner, hidden, "expert", bias=True, stored=f"{root}.fc1"),
        *linear("fc2", hidden, inner, "expert", bias=True, stored=f"{root}.fc2"),
    )
    layers = []
    for index in range(read.layers(f"{side}_layers")):
        prefix = f"{base}{side}.layers.{index}."
        if step == 0 or (index + 1) % step:
            layers.append(LayerShape((*shared, *dense), prefix, kv_values))
            continue
        router = linear("ffn.router.classifier", number, hidden, "router", bias=bias)
        layers.append(
            LayerShape(
                (*shared, *router),
                prefix,
                kv_values,
                expert=expert,
                experts=number,
                top_k=top_k,
                expert_intermediate=inner,
            )
        )
    return tuple(layers)
