"""Mixtral: modules of transformers."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter

__all__ = ["MixtralAdapter"]


class MixtralAdapter(Adapter):
    """``mixtral``."""

    family: ClassVar[str] = "mixtral"
    prefix: ClassVar[str] = "Mixtral"
