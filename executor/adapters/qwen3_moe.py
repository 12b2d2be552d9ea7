"""Qwen3-MoE."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.modules import QueryNorm
from executor.adapters.plain import PlainAdapter

__all__ = ["Qwen3MoeAdapter"]


class Qwen3MoeAdapter(PlainAdapter):
    """``qwen3_moe``: norms of each head's queries and keys."""

    family: ClassVar[str] = "qwen3_moe"
    prefix: ClassVar[str] = "Qwen3Moe"
    bias_key: ClassVar[str | None] = "attention_bias"
    output_bias: ClassVar[bool] = True
    query_norm: ClassVar[QueryNorm] = "each"
