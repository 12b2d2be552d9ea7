"""OLMoE."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.modules import QueryNorm
from executor.adapters.plain import PlainAdapter

__all__ = ["OlmoeAdapter"]


class OlmoeAdapter(PlainAdapter):
    """``olmoe``: norms over all queries and over all keys."""

    family: ClassVar[str] = "olmoe"
    prefix: ClassVar[str] = "Olmoe"
    epsilon: ClassVar[float] = 1e-5
    bias_key: ClassVar[str | None] = "attention_bias"
    output_bias: ClassVar[bool] = True
    query_norm: ClassVar[QueryNorm] = "all"
    clips: ClassVar[bool] = True
