"""GLM-4.5: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter

__all__ = ["Glm4MoeAdapter"]


class Glm4MoeAdapter(Adapter):
    """``glm4_moe``: sigmoid scores with a correction bias, partial rotary embedding."""

    family: ClassVar[str] = "glm4_moe"
    prefix: ClassVar[str] = "Glm4Moe"
    float32_router: ClassVar[bool] = True
