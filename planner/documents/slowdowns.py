"""What copying costs computation, and computing costs copies, of experts in one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from planner.documents.base import STRICT, Figure

__all__ = ["LEAST_SLOWDOWN", "FormSlowdown"]

LEAST_SLOWDOWN = 0.5
"""No kind of operation is faster than twice its own speed for what is copied beside it."""


@dataclass(frozen=True, slots=True)
class FormSlowdown:
    """Measured ratios of a quantized form, with all experts copied and computed in it.

    Attributes
    ----------
    copy
        As ``copy_slowdown`` of a ``CostProfile``.
    decode, prefill
        As ``slowdown_by_kind`` and ``prefill_slowdown_by_kind``, of experts.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    copy: Figure
    decode: Figure
    prefill: Figure

    def __post_init__(self) -> None:
        if self.copy.value < 1:
            raise ValueError("copy is below 1")
        if min(self.decode.value, self.prefill.value) < LEAST_SLOWDOWN:
            raise ValueError(f"a slowdown is below {LEAST_SLOWDOWN}")
