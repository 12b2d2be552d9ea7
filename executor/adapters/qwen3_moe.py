"""Qwen3-MoE: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter

__all__ = ["Qwen3MoeAdapter"]


class Qwen3MoeAdapter(Adapter):
    """``qwen3_moe``."""

    family: ClassVar[str] = "qwen3_moe"
    prefix: ClassVar[str] = "Qwen3Moe"
