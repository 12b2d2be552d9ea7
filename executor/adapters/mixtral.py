"""Mixtral: modules of transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from executor.adapters.base import Adapter

__all__ = ["MixtralAdapter"]


class MixtralAdapter(Adapter):
    """``mixtral``."""

    family: ClassVar[str] = "mixtral"

    @classmethod
    def classes(cls) -> dict[str, Any]:
        from transformers.models.mixtral.configuration_mixtral import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import (
            MixtralDecoderLayer,
            MixtralRMSNorm,
            MixtralRotaryEmbedding,
        )

        return {
            "config": MixtralConfig,
            "layer": MixtralDecoderLayer,
            "norm": MixtralRMSNorm,
            "rotary": MixtralRotaryEmbedding,
        }
