"""OLMoE: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter

__all__ = ["OlmoeAdapter"]


class OlmoeAdapter(Adapter):
    """``olmoe``."""

    family: ClassVar[str] = "olmoe"
    prefix: ClassVar[str] = "Olmoe"
