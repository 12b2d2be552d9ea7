"""Where a device's bytes lie and how they get there: one protocol for the CPU and for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch

from executor.arena import Arena
from executor.direct import Part, Piece, UnitReader
from executor.ledger import Ledger
from executor.recorder import KEPT_PASSES, Recorder
from executor.schedule import Schedule
from executor.transfers import Copy, Transfers
from planner.memory import aligned

__all__ = ["Backend", "CpuBackend", "Lane", "Link", "Memory", "Region", "Regions"]

Link = Literal["disk", "h2d"]


class Lane(NamedTuple):
    """A streaming slot: dense parts have slots of their own."""

    dense: bool
    slot: int


class Region(NamedTuple):
    """A unit's place: its offset in the device's memory and its bytes."""

    offset: int
    size_bytes: int


class Regions(Protocol):
    """Memory that is cut into regions, each loaded in the ledger under its purpose."""

    def take(self, purpose: str, name: str, size_bytes: int) -> int:
        """Cut off a region; returns its offset."""

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over a region's bytes."""


class Memory(Protocol):
    """The memory of one ``Device``."""

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""

    @property
    def regions(self) -> Regions:
        """Units, slots, keys and values, hidden states."""

    @property
    def rows(self) -> Arena:
        """Host memory for embedding rows (on a CPU the same as ``regions``)."""

    def prepare(self, reader: UnitReader, streamed: list[tuple[Piece, ...]]) -> None:
        """Before the first copy: what will be copied again and again."""

    @property
    def holds(self) -> bool:
        """Whether what streams lies in host memory."""

    def held(self, pieces: tuple[Piece, ...]) -> torch.Tensor | None:
        """A unit's bytes in host memory; None where it does not lie there."""

    def fetch(
        self,
        reader: UnitReader,
        pieces: tuple[Piece, ...],
        region: Region,
        start: int,
        size_bytes: int,
        lane: Lane | None,
        following: Callable[[], Part | None] | None = None,
    ) -> None:
        """Bring bytes [start, start + size) of a unit into its region (lane: a streaming slot);
        ``following`` as in ``UnitReader.read``."""

    def view(self, region: Region) -> memoryview:
        """A region's bytes, for checking them; may be a copy."""

    def recorder(self, kept_passes: int = KEPT_PASSES) -> Recorder:
        """A clock for this device's operations."""

    def transfers(self, schedule: Schedule, copy: Copy, recorder: Recorder) -> Transfers:
        """A copy channel into this memory."""


class Backend(Protocol):
    """A kind of device; what it holds is shared by all devices made with it."""

    name: Literal["cpu", "cuda"]
    link: Link
    processor: str | None

    def memory(self, arena_bytes: int, rows_bytes: int, chunk_bytes: int, ledger: Ledger) -> Memory:
        """Memory for one device.

        Parameters
        ----------
        arena_bytes
            All regions together.
        rows_bytes
            Of these, what holds embedding rows.
        chunk_bytes
            Most bytes of one copy.
        ledger
            Where regions are loaded.
        """


@dataclass(slots=True)
class _CpuMemory:
    regions: Arena
    rows: Arena
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def holds(self) -> bool:
        return False

    def held(self, pieces: tuple[Piece, ...]) -> torch.Tensor | None:
        return None

    def prepare(self, reader: UnitReader, streamed: list[tuple[Piece, ...]]) -> None:
        pass

    def fetch(
        self,
        reader: UnitReader,
        pieces: tuple[Piece, ...],
        region: Region,
        start: int,
        size_bytes: int,
        lane: Lane | None,
        following: Callable[[], Part | None] | None = None,
    ) -> None:
        reader.read(pieces, self.view(region), start, size_bytes, following)

    def view(self, region: Region) -> memoryview:
        return self.regions.memory(region.offset, aligned(region.size_bytes))

    def recorder(self, kept_passes: int = KEPT_PASSES) -> Recorder:
        return Recorder(kept_passes)

    def transfers(self, schedule: Schedule, copy: Copy, recorder: Recorder) -> Transfers:
        return Transfers(schedule, copy, recorder)


class CpuBackend:
    """Regions lie in one mapping; direct reads bring units to their places."""

    name: Literal["cpu", "cuda"] = "cpu"
    link: Link = "disk"
    processor: str | None = None

    def memory(self, arena_bytes: int, rows_bytes: int, chunk_bytes: int, ledger: Ledger) -> Memory:
        """Memory for one device: embedding rows lie with the rest."""
        arena = Arena(arena_bytes, ledger)
        return _CpuMemory(arena, arena)
