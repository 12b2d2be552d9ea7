"""MiniMax-M2: modules of transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from executor.adapters.base import Adapter

__all__ = ["MiniMaxM2Adapter"]


class MiniMaxM2Adapter(Adapter):
    """``minimax_m2``: the correction bias lies beside the router, which takes it as an argument."""

    family: ClassVar[str] = "minimax_m2"
    prefix: ClassVar[str] = "MiniMaxM2"
    float32_router: ClassVar[bool] = True

    def router(self, layer: int) -> Any:
        """The router with its correction bias."""
        block = self._layers[layer].mlp
        return lambda rows: block.gate(rows, block.e_score_correction_bias)
