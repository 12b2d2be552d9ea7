"""Qwen3Moe: modules of transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from executor.adapters.base import Adapter

__all__ = ["Qwen3MoeAdapter"]


class Qwen3MoeAdapter(Adapter):
    """``qwen3_moe``."""

    family: ClassVar[str] = "qwen3_moe"

    @classmethod
    def classes(cls) -> dict[str, Any]:
        from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import (
            Qwen3MoeDecoderLayer,
            Qwen3MoeRMSNorm,
            Qwen3MoeRotaryEmbedding,
        )

        return {
            "config": Qwen3MoeConfig,
            "layer": Qwen3MoeDecoderLayer,
            "norm": Qwen3MoeRMSNorm,
            "rotary": Qwen3MoeRotaryEmbedding,
        }
