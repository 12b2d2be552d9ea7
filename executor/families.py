"""Which model families run, and what is missing for others; loads no torch, no transformers."""

from __future__ import annotations

from planner.documents import ModelSpec
from solvers.errors import UnsupportedError

__all__ = ["FAMILIES", "check_family"]

FAMILIES: dict[str, tuple[str, str]] = {
    "deepseek_v2": ("executor.adapters.deepseek_v2", "DeepseekV2Adapter"),
    "deepseek_v3": ("executor.adapters.deepseek_v3", "DeepseekV3Adapter"),
    "ernie4_5_moe": ("executor.adapters.ernie4_5_moe", "Ernie45MoeAdapter"),
    "glm4_moe": ("executor.adapters.glm4_moe", "Glm4MoeAdapter"),
    "gpt_oss": ("executor.adapters.gpt_oss", "GptOssAdapter"),
    "granitemoe": ("executor.adapters.granitemoe", "GraniteMoeAdapter"),
    "minimax_m2": ("executor.adapters.minimax_m2", "MiniMaxM2Adapter"),
    "mixtral": ("executor.adapters.mixtral", "MixtralAdapter"),
    "nllb-moe": ("executor.adapters.nllb_moe", "NllbMoeAdapter"),
    "olmoe": ("executor.adapters.olmoe", "OlmoeAdapter"),
    "phimoe": ("executor.adapters.phimoe", "PhimoeAdapter"),
    "qwen2_moe": ("executor.adapters.qwen2_moe", "Qwen2MoeAdapter"),
    "qwen3_moe": ("executor.adapters.qwen3_moe", "Qwen3MoeAdapter"),
    "switch_transformers": ("executor.adapters.switch_transformers", "SwitchTransformersAdapter"),
}


_MISSING = {
    "deepseek_v32": "its indexer, which chooses what attention sees",
    "jetmoe": "its experts in attention",
    "llama4_text": "attention in chunks and experts that scale their input",
    "minimax": "linear attention",
    "minimax_m1": "linear attention",
    "qwen3_5_moe_text": "linear attention",
    "qwen3_next": "linear attention",
}
"""What the executor lacks for families that transformers has."""


def check_family(model: ModelSpec) -> None:
    """Refuse a model whose family cannot be run.

    Raises
    ------
    UnsupportedError
        Naming the family and what the executor lacks for it.
    """
    if model.family in FAMILIES:
        return
    lacks = _MISSING.get(model.family, "modules of transformers to compute it with")
    raise UnsupportedError(
        f"{model.name}: model type {model.family!r} cannot be run yet: the executor lacks "
        f"{lacks} (supported: {', '.join(FAMILIES)})"
    )
