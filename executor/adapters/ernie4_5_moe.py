"""ERNIE-4.5: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter

__all__ = ["Ernie45MoeAdapter"]


class Ernie45MoeAdapter(Adapter):
    """``ernie4_5_moe``: softmax scores, chosen with a correction bias that is trained."""

    family: ClassVar[str] = "ernie4_5_moe"
    prefix: ClassVar[str] = "Ernie4_5_Moe"
    float32_router: ClassVar[bool] = True
