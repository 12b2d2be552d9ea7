"""Mixtral."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.plain import PlainAdapter

__all__ = ["MixtralAdapter"]


class MixtralAdapter(PlainAdapter):
    """``mixtral``."""

    family: ClassVar[str] = "mixtral"
    prefix: ClassVar[str] = "Mixtral"
    theta: ClassVar[float] = 1_000_000.0
    epsilon: ClassVar[float] = 1e-5
    normed_choice: ClassVar[bool] = True
    slides: ClassVar[bool] = True
