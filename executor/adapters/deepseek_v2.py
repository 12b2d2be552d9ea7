"""DeepSeek-V2 and V2-Lite: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

import torch

from executor.adapters.latent import LatentAdapter

__all__ = ["DeepseekV2Adapter"]


class DeepseekV2Adapter(LatentAdapter):
    """``deepseek_v2``: its rotary embedding is one complex tensor."""

    family: ClassVar[str] = "deepseek_v2"
    prefix: ClassVar[str] = "DeepseekV2"

    def check_config(self) -> None:
        """Softmax scores, with or without groups of experts."""
        super().check_config()
        self.require("topk_method", ("greedy", "group_limited_greedy"))
        self.require("scoring_func", (None, "softmax"))

    def rotary(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Angles as complex numbers [sequences, tokens, size / 2]."""
        return (self._rotary(like, positions),)

    def position_embeddings(self, rotary: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The angles alone."""
        (angles,) = rotary
        return angles
