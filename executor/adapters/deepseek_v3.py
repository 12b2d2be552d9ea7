"""DeepSeek-V3 and R1: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.latent import LatentAdapter

__all__ = ["DeepseekV3Adapter"]


class DeepseekV3Adapter(LatentAdapter):
    """``deepseek_v3``: sigmoid scores and a correction bias."""

    family: ClassVar[str] = "deepseek_v3"
    prefix: ClassVar[str] = "DeepseekV3"

    def check_config(self) -> None:
        """Sigmoid scores, chosen with the correction bias."""
        super().check_config()
        self.require("topk_method", (None, "noaux_tc"))
        self.require("scoring_func", (None, "sigmoid"))
