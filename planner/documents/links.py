"""Memories of a machine and the links between them, in the hardware document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import ConfigDict

from planner.documents.base import STRICT, Added, Bytes, Figure, Positive, Source

__all__ = ["Burst", "Channel", "Tier"]


@dataclass(frozen=True, slots=True)
class Tier:
    """One memory: ``device``, ``host`` or ``disk``."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: Literal["device", "host", "disk"]
    capacity_bytes: Bytes
    source: Source


@dataclass(frozen=True, slots=True)
class Burst:
    """What a link that has rested lets through before its bandwidth holds (a token bucket): in time
    t no more than peak t, and no more than depth + bandwidth t."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    peak_bytes_per_second: Figure
    depth_bytes: Figure

    def __post_init__(self) -> None:
        if self.peak_bytes_per_second.value <= 0 or self.depth_bytes.value <= 0:
            raise ValueError("a burst has a peak and a depth above 0")


@dataclass(frozen=True, slots=True)
class Channel:
    """One link: ``disk`` (disk to host), ``h2d`` or ``d2h``.

    A copy of s bytes takes ``latency_ns + s / bandwidth`` alone on the channel, once a ``burst`` is
    spent; None where the link has none.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: Literal["disk", "h2d", "d2h"]
    bandwidth_bytes_per_second: Figure
    latency_ns: Figure
    paced_bytes_per_second: Positive | None = None
    burst: Added[Burst] = None

    def alone_ns(self, size_bytes: float, chunks: int = 1) -> float:
        """So many bytes, as they are read, in so many copies one after the other."""
        bandwidth = self.bandwidth_bytes_per_second.value
        return chunks * self.latency_ns.value + size_bytes * 1e9 / bandwidth

    def faster(self, factor: float) -> Channel:
        """The same with so much more bandwidth, also of a burst, which is no deeper."""
        paced, burst = self.paced_bytes_per_second, self.burst
        if burst is not None:
            peak = burst.peak_bytes_per_second
            burst = replace(burst, peak_bytes_per_second=_times(peak, factor))
        return replace(
            self,
            bandwidth_bytes_per_second=_times(self.bandwidth_bytes_per_second, factor),
            paced_bytes_per_second=None if paced is None else int(paced * factor),
            burst=burst,
        )


def _times(figure: Figure, factor: float) -> Figure:
    return replace(figure, value=figure.value * factor)
