"""DeepSeek-V2, V3, R1 and V3.2: multi-head latent attention (arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from typing import Any

from planner.architectures.base import Architecture, Config, Weight, linear, norm
from planner.architectures.blocks import Attention, prediction_layer, stack, whole
from planner.architectures.decoders import deepseek_feed
from planner.architectures.reading import ConfigReader

__all__ = ["NATIVE_KEYS", "deepseek_v2", "deepseek_v3", "deepseek_v32", "from_native"]


def _heads(read: ConfigReader) -> tuple[int, int, int]:
    heads = read.positive("num_attention_heads")
    return heads, heads, read.positive("qk_nope_head_dim") + read.positive("qk_rope_head_dim")


def _latent(read: ConfigReader, more: tuple[Weight, ...] = (), more_values: int = 0) -> Attention:
    """Latent attention: keys and values of all heads come out of one small vector, and that
    vector and one rotary key are all that a token leaves behind."""
    hidden, (heads, _, head_dim) = read.positive("hidden_size"), _heads(read)
    latent, rope = read.positive("kv_lora_rank"), read.positive("qk_rope_head_dim")
    nope, value = read.positive("qk_nope_head_dim"), read.positive("v_head_dim")
    rank, bias = read.natural("q_lora_rank", default=0), read.flag("attention_bias", False)
    query = (
        (
            *linear("self_attn.q_a_proj", rank, hidden, "attention", bias=bias),
            *norm("self_attn.q_a_layernorm", rank, part="attention"),
            *linear("self_attn.q_b_proj", heads * head_dim, rank, "attention"),
        )
        if rank
        else linear("self_attn.q_proj", heads * head_dim, hidden, "attention")
    )
    weights = (
        *query,
        *linear("self_attn.kv_a_proj_with_mqa", latent + rope, hidden, "attention", bias=bias),
        *norm("self_attn.kv_a_layernorm", latent, part="attention"),
        *linear("self_attn.kv_b_proj", heads * (nope + value), latent, "attention"),
        *linear("self_attn.o_proj", hidden, heads * value, "attention", bias=bias),
    )
    return Attention((*weights, *more), latent + rope + more_values)


def _indexer(read: ConfigReader) -> tuple[tuple[Weight, ...], int]:
    """DeepSeek-V3.2's lightning indexer: its weights, and the key that it caches for a token."""
    heads, size = read.positive("index_n_heads"), read.positive("index_head_dim")
    hidden, rank = read.positive("hidden_size"), read.positive("q_lora_rank")
    return (
        *linear("self_attn.indexer.wq_b", heads * size, rank, "attention"),
        *linear("self_attn.indexer.wk", size, hidden, "attention"),
        *norm("self_attn.indexer.k_norm", size, bias=True, part="attention"),
        *linear("self_attn.indexer.weights_proj", heads, hidden, "attention", quantized=False),
    ), size


def _deepseek(read: ConfigReader, attention: Attention, *, correction: bool) -> Architecture:
    feed, count = deepseek_feed(read, correction=correction), read.layers()
    more = read.layers("num_nextn_predict_layers", default=0)
    spare = stack(read, lambda _: attention, feed, first=count, count=more)
    return whole(
        read,
        stack(read, lambda _: attention, feed),
        spare=tuple(prediction_layer(read, layer, 2) for layer in spare),
        heads=_heads(read),
    )


def deepseek_v2(read: ConfigReader) -> Architecture:
    """DeepSeek-V2 and V2-Lite."""
    return _deepseek(read, _latent(read), correction=False)


def deepseek_v3(read: ConfigReader) -> Architecture:
    """DeepSeek-V3 and R1 (arXiv 2412.19437): a correction bias, and a prediction layer."""
    return _deepseek(read, _latent(read), correction=True)


def deepseek_v32(read: ConfigReader) -> Architecture:
    """DeepSeek-V3.2: V3 with an indexer that chooses which tokens attention sees."""
    return _deepseek(read, _latent(read, *_indexer(read)), correction=True)


NATIVE_KEYS = frozenset({"dim", "inter_dim", "moe_inter_dim", "n_layers", "n_dense_layers"})
"""Keys by which a configuration of DeepSeek's own inference code is known."""


def from_native(config: Config) -> dict[str, Any]:
    """Translate a configuration of DeepSeek's own inference code into Hugging Face's keys.

    That code has no prediction layer. Its context is its ``ModelArgs`` default, four times the
    4,096 tokens of the first training stage.
    """
    names = {
        "dim": "hidden_size",
        "inter_dim": "intermediate_size",
        "moe_inter_dim": "moe_intermediate_size",
        "n_layers": "num_hidden_layers",
        "n_dense_layers": "first_k_dense_replace",
        "n_heads": "num_attention_heads",
        "n_activated_experts": "num_experts_per_tok",
        "max_seq_len": "max_position_embeddings",
    }
    body = {names.get(key, key): value for key, value in config.items()}
    body.setdefault("max_position_embeddings", 16384)
    # sigmoid scores came with V3 and its correction bias
    body["model_type"] = "deepseek_v3" if config.get("score_func") == "sigmoid" else "deepseek_v2"
    if body.pop("dtype", "bf16") == "fp8":
        body["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    body["torch_dtype"] = "bfloat16"
    return body
