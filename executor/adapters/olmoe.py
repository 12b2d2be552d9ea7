"""Olmoe: modules of transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from executor.adapters.base import Adapter

__all__ = ["OlmoeAdapter"]


class OlmoeAdapter(Adapter):
    """``olmoe``."""

    family: ClassVar[str] = "olmoe"

    @classmethod
    def classes(cls) -> dict[str, Any]:
        from transformers.models.olmoe.configuration_olmoe import OlmoeConfig
        from transformers.models.olmoe.modeling_olmoe import (
            OlmoeDecoderLayer,
            OlmoeRMSNorm,
            OlmoeRotaryEmbedding,
        )

        return {
            "config": OlmoeConfig,
            "layer": OlmoeDecoderLayer,
            "norm": OlmoeRMSNorm,
            "rotary": OlmoeRotaryEmbedding,
        }
