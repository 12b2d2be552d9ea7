"""Model families, one short file each; the table names them without importing transformers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from executor.adapters.base import Adapter, CacheShape, ExpertWeights, FeedForward
from planner.documents import ModelSpec
from solvers.errors import UnsupportedError

__all__ = [
    "FAMILIES",
    "Adapter",
    "CacheShape",
    "ExpertWeights",
    "FeedForward",
    "make_adapter",
]

FAMILIES: dict[str, tuple[str, str]] = {
    "deepseek_v2": ("executor.adapters.deepseek_v2", "DeepseekV2Adapter"),
    "deepseek_v3": ("executor.adapters.deepseek_v3", "DeepseekV3Adapter"),
    "ernie4_5_moe": ("executor.adapters.ernie4_5_moe", "Ernie45MoeAdapter"),
    "glm4_moe": ("executor.adapters.glm4_moe", "Glm4MoeAdapter"),
    "gpt_oss": ("executor.adapters.gpt_oss", "GptOssAdapter"),
    "granitemoe": ("executor.adapters.granitemoe", "GraniteMoeAdapter"),
    "minimax_m2": ("executor.adapters.minimax_m2", "MiniMaxM2Adapter"),
    "mixtral": ("executor.adapters.mixtral", "MixtralAdapter"),
    "qwen3_moe": ("executor.adapters.qwen3_moe", "Qwen3MoeAdapter"),
    "olmoe": ("executor.adapters.olmoe", "OlmoeAdapter"),
    "phimoe": ("executor.adapters.phimoe", "PhimoeAdapter"),
    "qwen2_moe": ("executor.adapters.qwen2_moe", "Qwen2MoeAdapter"),
}


_MISSING = {
    "deepseek_v32": "its indexer, which chooses what attention sees",
    "jetmoe": "its experts in attention",
    "llama4_text": "attention in chunks and experts that scale their input",
    "minimax": "linear attention",
    "minimax_m1": "linear attention",
    "nllb-moe": "an encoder and cross attention",
    "qwen3_5_moe_text": "linear attention",
    "qwen3_next": "linear attention",
    "switch_transformers": "an encoder and cross attention",
}
"""What the executor lacks for families that transformers has."""


def make_adapter(config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> Adapter:
    """The adapter of a model's family.

    Raises
    ------
    UnsupportedError
        If the family, or something that its configuration asks for, is not supported.
    """
    if model.family not in FAMILIES:
        lacks = _MISSING.get(model.family, "modules of transformers to compute it with")
        raise UnsupportedError(
            f"{model.name}: model type {model.family!r} cannot be run yet: the executor lacks "
            f"{lacks} (supported: {', '.join(FAMILIES)})"
        )
    module, name = FAMILIES[model.family]
    adapter: Adapter = getattr(import_module(module), name)(config, model, dtype)
    return adapter
