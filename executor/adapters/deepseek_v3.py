"""DeepSeek-V3 and R1: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter

__all__ = ["DeepseekV3Adapter"]


class DeepseekV3Adapter(Adapter):
    """``deepseek_v3``."""

    family: ClassVar[str] = "deepseek_v3"
    prefix: ClassVar[str] = "DeepseekV3"
    float32_router: ClassVar[bool] = True
