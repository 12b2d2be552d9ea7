"""Qwen1.5-MoE and Qwen2-MoE: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter, FeedForward

__all__ = ["Qwen2MoeAdapter"]


class Qwen2MoeAdapter(Adapter):
    """``qwen2_moe``: the shared expert has a switch of its own."""

    family: ClassVar[str] = "qwen2_moe"
    prefix: ClassVar[str] = "Qwen2Moe"
    shared: ClassVar[str] = "shared_expert"

    def shared_experts(self, layer: int) -> FeedForward:
        """The shared expert and its switch."""
        return (
            super()
            .shared_experts(layer)
            ._replace(switch=self._layers[layer].mlp.shared_expert_gate.weight)
        )
