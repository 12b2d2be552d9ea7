"""gpt-oss: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

import torch

from executor.adapters.base import Adapter, ExpertWeights, Shapes

__all__ = ["GptOssAdapter"]


class GptOssAdapter(Adapter):
    """``gpt_oss``: attention sinks, and experts with biases and a clamped activation.

    Both matrices of an expert are stored with their input first; gate and up alternate, column by
    column.
    """

    family: ClassVar[str] = "gpt_oss"
    prefix: ClassVar[str] = "GptOss"
    gate: ClassVar[str] = "router"
    # only this function of transformers knows sinks on a CPU
    attention_kind: ClassVar[str] = "eager"

    def expert_weights(self, unit: torch.Tensor, shapes: Shapes) -> ExpertWeights:
        """Views of both matrices, transposed, and of both biases."""
        parts, start = {}, 0
        for role, shape in shapes.items():
            stop = start + torch.Size(shape).numel()
            parts[role] = unit[start:stop].view(shape)
            start = stop
        return ExpertWeights(
            parts["gate_up_proj"].t(),
            parts["down_proj"].t(),
            parts["gate_up_proj_bias"],
            parts["down_proj_bias"],
        )

    def activate(self, both: torch.Tensor) -> torch.Tensor:
        """(up + 1) gate sigmoid(alpha gate), gate clamped from above and up from both sides."""
        alpha, limit = self.config.swiglu_alpha, self.config.swiglu_limit
        gate, up = both[:, ::2].clamp_(max=limit), both[:, 1::2].clamp_(-limit, limit)
        result = torch.sigmoid(gate * alpha)
        return result.mul_(gate).mul_(up.add_(1))
