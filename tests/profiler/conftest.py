"""Tiny checkpoints of random weights, without a tokenizer: prompts are token ids."""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "vocab_size": 211,
    "max_position_embeddings": 96,
    "num_attention_heads": 4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
QWEN3: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "intermediate_size": 96,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mixtral": (
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {
            "num_hidden_layers": 3,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 48,
            "num_key_value_heads": 2,
        },
    ),
    # a layer without experts before those with
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {**QWEN3, "num_hidden_layers": 3, "mlp_only_layers": [0]},
    ),
    # each other layer has experts
    "interleaved": (
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {**QWEN3, "num_hidden_layers": 4, "decoder_sparse_step": 2},
    ),
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the tiny checkpoint of a family; written once."""
    written: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in written:
            config_class, model_class, shape = SHAPES[family]
            torch.manual_seed(0)
            model = model_class(config_class(**{**COMMON, **shape}))
            written[family] = tmp_path_factory.mktemp(family)
            model.save_pretrained(written[family])
        return written[family]

    return folder


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Token ids of unequal length."""
    generator = random.Random(0)
    return [[generator.randrange(211) for _ in range(generator.randint(3, 20))] for _ in range(6)]
