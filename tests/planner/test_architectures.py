"""Every family that transformers knows: its own modules against our descriptions.

The models are shrunk, built and saved by transformers, and read back here; so names, shapes and
bytes are held against an independent source, parameter by parameter.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import pytest

from planner.architectures import describe
from planner.checkpoint import Checkpoint, TensorEntry, read_checkpoint
from planner.model_spec import read_model

os.environ.setdefault("GOMP_SPINCOUNT", "0")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 48,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 12,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_group": 1,
    "topk_group": 1,
}
LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
}
MIXED_LAYERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "deepseek_v32": {**LATENT, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
    "ernie4_5_moe": {
        "moe_intermediate_size": 12,
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "glm4_moe": {
        "moe_intermediate_size": 12,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "head_dim": 10,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    "gpt_oss": {
        "num_local_experts": 6,
        "head_dim": 8,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "granitemoe": {"num_local_experts": 6, "attention_bias": True, "tie_word_embeddings": True},
    "jetmoe": {"num_local_experts": 6, "kv_channels": 8, "num_key_value_heads": 2},
    "llama4_text": {
        "num_local_experts": 6,
        "intermediate_size_mlp": 28,
        "interleave_moe_layer_step": 2,
        "head_dim": 8,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 16,
    },
    "minimax": {"num_local_experts": 6, "head_dim": 8, "layer_types": MIXED_LAYERS},
    "minimax_m2": {"num_local_experts": 6, "head_dim": 10},
    "mixtral": {"num_local_experts": 6, "sliding_window": 16},
    "nllb-moe": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 4,
        "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 24,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 2,
        "num_experts": 4,
        "pad_token_id": 1,
    },
    "olmoe": {"num_experts": 6, "attention_bias": True},
    "phimoe": {"num_local_experts": 6, "attention_bias": True, "lm_head_bias": True},
    "qwen2_moe": {
        "num_experts": 6,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "qwen3_moe": {
        "num_experts": 6,
        "moe_intermediate_size": 12,
        "head_dim": 10,
        "mlp_only_layers": [2],
        "tie_word_embeddings": True,
    },
    "qwen3_5_moe_text": {**LINEAR, "layer_types": MIXED_LAYERS},
    "qwen3_next": {**LINEAR, "layer_types": MIXED_LAYERS},
    "switch_transformers": {
        "d_model": 32,
        "d_ff": 24,
        "d_kv": 6,
        "num_heads": 4,
        "num_layers": 4,
        "num_decoder_layers": 4,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 1,
        "num_experts": 4,
        "pad_token_id": 0,
    },
}
TRANSLATORS = ("nllb-moe", "switch_transformers")


def build(family: str, device: str) -> Any:
    """A shrunk model of ``family``."""
    own = FAMILIES[family]
    keep = {"vocab_size", "pad_token_id", "max_position_embeddings"}
    base = {k: v for k, v in BASE.items() if family not in TRANSLATORS or k in keep}
    config = transformers.AutoConfig.for_model(family, **{**base, **own})
    kind = "AutoModelForSeq2SeqLM" if family in TRANSLATORS else "AutoModelForCausalLM"
    with torch.device(device):
        return getattr(transformers, kind).from_config(config, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Saves each family once; returns the model and the folder."""
    done: dict[str, tuple[Any, Path]] = {}

    def make(family: str) -> tuple[Any, Path]:
        if family not in done:
            torch.manual_seed(0)
            # some routers are float32 when built, and bfloat16 in the published checkpoints
            network = build(family, "cpu").to(torch.bfloat16)
            folder = tmp_path_factory.mktemp("saved") / family
            network.save_pretrained(folder)
            done[family] = network, folder
        return done[family]

    return make


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_parameters_one_by_one(family: str) -> None:
    network = build(family, "meta")
    parameters = {name: tuple(value.shape) for name, value in network.named_parameters()}
    buffers = {name: tuple(value.shape) for name, value in network.named_buffers()}
    architecture = describe(network.config.to_dict())
    count = sum(value.numel() for value in network.parameters())
    assert architecture.parameters == count
    outside = (*architecture.outside, *architecture.encoder_other)
    for layer in (*architecture.layers, *architecture.encoder_layers):
        prefix = layer.prefix
        for weight in layer.dense:
            known = buffers if weight.parameters == 0 else parameters
            assert known[prefix + weight.role] == weight.shape
        dense = {prefix + weight.role for weight in layer.dense}
        rest = [
            value.numel()
            for name, value in network.named_parameters()
            if name.startswith(prefix) and name not in dense
        ]
        assert sum(rest) == layer.experts * sum(weight.values for weight in layer.expert)
        assert bool(rest) == (layer.experts > 0)
    for weight in outside:
        assert parameters[weight.role] == weight.shape


def content(entry: TensorEntry) -> bytes:
    with entry.file.open("rb") as file:
        file.seek(entry.offset_bytes)
        return file.read(entry.size_bytes)


def raw(tensor: Any) -> bytes:
    data: bytes = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return data


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_saved_checkpoint_is_read_where_it_lies(family: str, saved: Any) -> None:
    network, folder = saved(family)
    checkpoint: Checkpoint = read_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    architecture = describe(config)
    state = network.state_dict()
    for layer, dense, experts in zip(
        architecture.stack, checkpoint.dense, checkpoint.experts, strict=True
    ):
        for entry in dense:
            tensor = state[layer.prefix + entry.role]
            assert entry.shape == tuple(tensor.shape)
            assert content(entry) == raw(tensor)
        for index, expert in enumerate(experts):
            assert b"".join(content(e) for e in expert) == fused(state, layer.prefix, index)
    assert content(checkpoint.embedding) == raw(network.get_input_embeddings().weight)
    assert content(checkpoint.head) == raw(network.get_output_embeddings().weight)
    assert checkpoint.model.bytes_source == "headers"
    assert not checkpoint.model.synthetic


def fused(state: dict[str, Any], prefix: str, index: int) -> bytes:
    """An expert's weights as transformers holds them in memory, gate and up in one."""
    found = []
    for part in ("gate_up_proj", "input_linear.weight"):
        found += [k for k in state if k.startswith(prefix) and k.endswith(f"experts.{part}")]
        found += [k for k in state if k == f"{prefix}mlp.{part}"]
    if not found:  # one module an expert
        named = [k for k in state if k.startswith(prefix) and f"expert_{index}." in k]
        assert named
        return b"".join(raw(state[name]) for name in named)
    root = found[-1].removesuffix("gate_up_proj").removesuffix("input_linear.weight")
    names = [
        root + name
        for name in (
            "gate_up_proj",
            "input_linear.weight",
            "down_proj",
            "output_linear.weight",
            "gate_up_proj_bias",
            "down_proj_bias",
        )
        if root + name in state
    ]
    return b"".join(raw(state[name][index]) for name in names)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_headers_and_configuration_agree(family: str, saved: Any, tmp_path: Path) -> None:
    """Bytes from headers equal those computed."""
    _, folder = saved(family)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    headers, computed = read_model(folder), read_model(tmp_path)
    assert (headers.bytes_source, computed.bytes_source) == ("headers", "config")
    # everything was saved in bfloat16 here: what checkpoints keep in float32 is half as wide
    architecture = describe(json.loads((folder / "config.json").read_text()))
    wide = sum(
        prod(weight.shape)
        for layer in architecture.layers
        for weight in layer.dense
        if weight.dtype == "F32"
    )
    own = [spec.total_bytes - spec.other_bytes for spec in (computed, headers)]
    assert own[0] - own[1] == 2 * wide
    assert [layer.kv_bytes_per_token for layer in headers.layers] == [
        layer.kv_bytes_per_token for layer in computed.layers
    ]
    assert [layer.expert_bytes for layer in headers.layers] == [
        layer.expert_bytes for layer in computed.layers
    ]
    assert headers.parameters == computed.parameters
