"""A CPU in a GPU's place, which holds what streams beside its own memory: so the paths of experts
in host memory run everywhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from executor.direct import Piece, UnitReader
from executor.memory import CpuBackend, Link
from planner.memory import aligned

__all__ = ["StandIn"]


@dataclass
class Holding:
    """A CPU's memory, with the units that stream kept beside it, as a GPU's host memory is."""

    inner: Any
    pause_s: float = 0.0
    units: dict[tuple[Piece, ...], torch.Tensor] = field(default_factory=dict)
    holds: bool = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fetch(self, *how: Any) -> None:
        """Into a slot it takes longer by a pause, as over a slow link."""
        if how[-1] is not None:
            time.sleep(self.pause_s)
        self.inner.fetch(*how)

    def held(self, pieces: tuple[Piece, ...]) -> torch.Tensor | None:
        return self.units.get(pieces)

    def prepare(self, reader: UnitReader, streamed: list[tuple[Piece, ...]]) -> None:
        for pieces in streamed:
            size = max(piece.unit_offset_bytes + piece.size_bytes for piece in pieces)
            room = torch.zeros(aligned(size), dtype=torch.uint8)
            reader.read(pieces, memoryview(room.numpy()), 0, size)  # type: ignore[arg-type]
            self.units[pieces] = room


class StandIn(CpuBackend):
    """See the module. It says of itself what a GPU would: a processor, and a link to the host."""

    link: Link = "h2d"
    processor = "a CPU in a GPU's place"

    pause_s = 0.0

    def memory(self, *sizes: Any) -> Any:
        return Holding(super().memory(*sizes), self.pause_s)
