"""What a plan promises, as its document holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from planner.documents.base import STRICT, Added, Bytes, Keyed, Nanoseconds
from planner.documents.timeline import EventKind, Timeline

__all__ = ["Predicted", "PredictedTotals", "Range", "Slowdown"]


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted number with its interval."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError("value does not lie between low and high")

    def holds(self, number: float) -> bool:
        """Whether what was measured is as predicted: within the interval, its ends included."""
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class PredictedTotals:
    """The whole workload, as predicted."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    wall_ns: Nanoseconds
    prefill_ns: Nanoseconds
    decode_ns: Nanoseconds
    bytes_read: Bytes
    bubble_inter_layer_ns: Nanoseconds
    bubble_intra_layer_ns: Nanoseconds
    duration_by_kind_ns: Keyed[EventKind, Nanoseconds]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer copies, and computation in prefill and in decode, are priced than they take
    alone, since they overlap; found while solving. ``raw``: copies of experts as they are, where
    the others are compressed."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    copy: Annotated[float, Field(ge=1.0)] = 1.0
    prefill: Annotated[float, Field(ge=1.0)] = 1.0
    decode: Annotated[float, Field(ge=1.0)] = 1.0
    raw: Annotated[float, Field(ge=1.0, exclude_if=lambda value: value == 1.0)] = 1.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the plan promises. ``tokens_per_second`` counts new tokens over the whole run
    ("in all", prefill included); ``decode_tokens_per_second`` over decode passes alone. With
    ``slowdown`` and the profile, all of it can be computed again. ``credit_ns`` of the link counts
    here (None: it has no burst), in the plan's objective and bound it does not; ``objective`` is
    the plan's with it, by which it was chosen."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    tokens_per_second: Range
    decode_tokens_per_second: Range
    time_to_first_token_ns: Nanoseconds
    totals: PredictedTotals
    timeline: Timeline
    slowdown: Slowdown = Slowdown()
    credit_ns: Added[Annotated[int, Field(ge=1, le=1 << 42)]] = None
    objective: Added[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = None
