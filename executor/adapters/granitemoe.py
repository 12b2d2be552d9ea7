"""Granite-MoE and PowerMoE: modules of transformers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from executor.adapters.base import Adapter
from planner.documents import ModelSpec

__all__ = ["GraniteMoeAdapter"]


class GraniteMoeAdapter(Adapter):
    """``granitemoe``: factors of the embedding, of both halves of a layer, and of the logits."""

    family: ClassVar[str] = "granitemoe"
    prefix: ClassVar[str] = "GraniteMoe"
    block: ClassVar[str] = "block_sparse_moe"
    gate: ClassVar[str] = "router"

    def __init__(self, config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__(config, model, dtype)
        self.embedding_scale = float(self.config.embedding_multiplier)
        self.residual_scale = float(self.config.residual_multiplier)
        self.logits_scale = float(self.config.logits_scaling)
