"""Qwen1.5-MoE and Qwen2-MoE."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import FeedForward
from executor.adapters.plain import PlainAdapter

__all__ = ["Qwen2MoeAdapter"]


class Qwen2MoeAdapter(PlainAdapter):
    """``qwen2_moe``: the shared expert has a switch of its own."""

    family: ClassVar[str] = "qwen2_moe"
    prefix: ClassVar[str] = "Qwen2Moe"
    shared: ClassVar[str] = "shared_expert"
    bias_key: ClassVar[str | None] = "qkv_bias"
    bias: ClassVar[bool] = True
    shared_expert: ClassVar[bool] = True

    def shared_experts(self, layer: int) -> FeedForward:
        """The shared expert and its switch."""
        return (
            super()
            .shared_experts(layer)
            ._replace(switch=self._layers[layer].mlp.shared_expert_gate.weight)
        )
