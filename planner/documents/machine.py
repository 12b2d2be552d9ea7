"""The machine document: figures of hardware that need not be at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from planner.documents.base import STRICT, Added, Document, Figure, Keyed, Name, Positive

__all__ = ["HostProcessor", "Machine"]


@dataclass(frozen=True, slots=True)
class HostProcessor:
    """The CPU beside a GPU, which may compute experts in host memory: as ``Machine`` has it."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    processor: Name
    compute_flops_per_second: Keyed[Literal["float32", "bfloat16", "float16"], Figure]
    bandwidth_bytes_per_second: Figure

    def __post_init__(self) -> None:
        figures = (*self.compute_flops_per_second.values(), self.bandwidth_bytes_per_second)
        if any(not 1e6 <= figure.value <= 1e18 for figure in figures):
            raise ValueError(f"{self.processor}: a figure is no speed of a processor")
        if "float32" not in self.compute_flops_per_second:
            raise ValueError(f"{self.processor}: compute_flops_per_second: no float32")


@dataclass(frozen=True)
class Machine(Document):
    """A machine by its data sheet, or by what somebody measured there.

    A figure of source ``spec`` is a limit that nobody reaches: efficiencies are applied to it. Any
    other (``measured``, ``fitted``) is taken as reached.

    Attributes
    ----------
    device
        ``cuda``: weights lie in host memory, or on the drive where they do not fit there.
        ``cpu``: the device is a part of host memory, weights lie on the drive.
    processor
        What computes, for people.
    compute_flops_per_second
        Dense matrix products, by the type computed in.
    device_memory_bytes, device_bandwidth_bytes_per_second
        What the processor computes from.
    host_memory_bytes
        Room for weights beside the device; of a ``cpu`` machine all its memory.
    link_bytes_per_second
        From host memory to the device; None for ``cpu``.
    disk_bytes_per_second
        Large direct reads; None where there is no drive to plan for.
    disk_write_bytes_per_second
        Large direct writes, of keys and values that lie below a ``cpu`` machine's device; None:
        unknown, they are priced as reads.
    assumed
        What was assumed rather than looked up, a sentence each.
    host
        The CPU of a ``cuda`` machine, where experts may be computed there; None: where its CPU only
        feeds the device.
    """

    kind: ClassVar[str] = "machine"

    name: Name
    device: Literal["cpu", "cuda"]
    processor: Name
    compute_flops_per_second: Keyed[Literal["float32", "bfloat16", "float16"], Figure]
    device_memory_bytes: Positive
    device_bandwidth_bytes_per_second: Figure
    host_memory_bytes: Positive
    link_bytes_per_second: Figure | None = None
    disk_bytes_per_second: Figure | None = None
    assumed: tuple[str, ...] = ()
    host: Added[HostProcessor] = None
    disk_write_bytes_per_second: Added[Figure] = None

    def __post_init__(self) -> None:
        if not self.compute_flops_per_second:
            raise ValueError("compute_flops_per_second: there is none")
        if (self.link_bytes_per_second is None) != (self.device == "cpu"):
            raise ValueError("link_bytes_per_second: a cuda machine has one, a cpu machine none")
        if self.host is not None and self.device == "cpu":
            raise ValueError("host: a cpu machine is its own host")
        if self.device == "cpu" and self.disk_bytes_per_second is None:
            raise ValueError("disk_bytes_per_second: weights of a cpu machine lie on its drive")
        figures: dict[str, Figure | None] = {
            "device_bandwidth_bytes_per_second": self.device_bandwidth_bytes_per_second,
            "link_bytes_per_second": self.link_bytes_per_second,
            "disk_bytes_per_second": self.disk_bytes_per_second,
            "disk_write_bytes_per_second": self.disk_write_bytes_per_second,
            **{str(dtype): one for dtype, one in self.compute_flops_per_second.items()},
        }
        for name, figure in figures.items():
            if figure is not None and not 1e6 <= figure.value <= 1e18:
                raise ValueError(f"{name}: {figure.value:g} a second is no speed of a machine")
