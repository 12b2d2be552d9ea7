"""Phi-3.5-MoE: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from executor.adapters.base import Adapter

__all__ = ["PhimoeAdapter"]


class PhimoeAdapter(Adapter):
    """``phimoe``: layer norms with biases, a bias of the head, and SparseMixer's choice of two."""

    family: ClassVar[str] = "phimoe"
    prefix: ClassVar[str] = "Phimoe"
    gate: ClassVar[str] = "router"
    norm: ClassVar[type[nn.Module] | None] = nn.LayerNorm

    def check_config(self) -> None:
        """SparseMixer is written for two experts a token."""
        self.require("num_experts_per_tok", (2,))
