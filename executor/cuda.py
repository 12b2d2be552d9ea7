"""The CUDA device: pinned staging, a copy stream, and events that order it with computation.

A chunk is read past the page cache into a pinned, page-aligned buffer and goes on from there over
a copy stream, while the next one is read. Compute waits for a unit's event on the device, not in
Python; a slot is written to again only behind the event of the last computation from it. With
``h2d`` all streamed units lie in pinned host memory, read once, and only the second half remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from executor.arena import Arena
from executor.cuda_events import CudaRecorder, timed_event
from executor.direct import Part, Piece, UnitReader
from executor.ledger import Ledger
from executor.memory import Lane, Link, Memory, Region
from executor.recorder import KEPT_PASSES, Recorder
from executor.schedule import Named, Routed, Schedule
from executor.transfers import Copy, Transfers
from executor.units import Unit
from planner.memory import ALIGNMENT_BYTES, aligned
from solvers.errors import BudgetError

__all__ = ["LIBRARY_BYTES", "CudaBackend"]

LIBRARY_BYTES = 96 << 20
"""What cuBLAS and torch's allocator keep on a GPU beside the plan's account."""

STAGING_BYTES = 8 << 20
"""Most bytes of one staging buffer; longer chunks pass through in parts."""

_BUFFERS = 3
"""Staging buffers, and so copies that are queued on the device at once: a demanded copy waits
behind no more than these."""

_SLAB_BYTES = 1 << 30


class CudaBackend:
    """A GPU. Pinned copies of streamed units are shared by all devices made with it.

    Parameters
    ----------
    link
        ``disk``: units are read from the disk for each copy. ``h2d``: they are read once.
    index
        Which GPU; it must be the process's current one.
    """

    name: Literal["cpu", "cuda"] = "cuda"

    def __init__(self, link: Link = "disk", index: int = 0) -> None:
        self.link: Link = link
        self.device = torch.device("cuda", index)
        self.processor: str | None = torch.cuda.get_device_name(self.device)
        self._held: dict[tuple[Piece, ...], torch.Tensor] = {}
        self._slab = torch.empty(0, dtype=torch.uint8)
        # float32 means float32: tokens equal those of a CPU
        torch.set_float32_matmul_precision("highest")

    def memory(self, arena_bytes: int, rows_bytes: int, chunk_bytes: int, ledger: Ledger) -> Memory:
        """Memory for one device.

        Raises
        ------
        BudgetError
            If the GPU has less free.
        """
        # what an engine before this one no longer needs
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        need = ledger.reserved_bytes + LIBRARY_BYTES
        if need > free:
            raise BudgetError(
                f"the plan and the GPU's libraries need {need} bytes; {self.processor} has {free} "
                f"of {total} free: plan for at most {max(free - LIBRARY_BYTES, 0)} bytes",
                need,
            )
        return _CudaMemory(self, arena_bytes - rows_bytes, rows_bytes, chunk_bytes, ledger)

    def held(self, pieces: tuple[Piece, ...]) -> torch.Tensor | None:
        """A unit's bytes in pinned host memory, where it is kept there."""
        return self._held.get(pieces)

    def hold(self, reader: UnitReader, pieces: tuple[Piece, ...]) -> None:
        """Read a unit into pinned host memory, unless it is there."""
        if pieces in self._held:
            return
        size = max((piece.unit_offset_bytes + piece.size_bytes for piece in pieces), default=0)
        room = aligned(size)
        if len(self._slab) < room:
            # torch rounds pinned memory up to a power of two, so units share large ones
            self._slab = _pinned(max(room, _SLAB_BYTES))
        unit, self._slab = self._slab[:room], self._slab[room:]
        reader.read(pieces, _bytes_of(unit), 0, size)
        self._held[pieces] = unit


def _pinned(size_bytes: int) -> torch.Tensor:
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise BudgetError(
            f"the machine cannot pin {size_bytes} bytes of host memory for the GPU; "
            "stream from the disk, or free memory",
            size_bytes,
        ) from error


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """A host tensor of bytes as writable memory."""
    array: npt.NDArray[np.uint8] = tensor.numpy()
    return memoryview(array)  # type: ignore[arg-type]


class _Regions:
    """One allocation on the device, cut as ``Arena`` cuts a mapping."""

    def __init__(self, size_bytes: int, ledger: Ledger, device: torch.device) -> None:
        self._ledger, self._next = ledger, 0
        size = max(aligned(size_bytes), ALIGNMENT_BYTES)
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)

    def take(self, purpose: str, name: str, size_bytes: int) -> int:
        """Cut off a region; returns its offset."""
        self._ledger.use(purpose, name, aligned(size_bytes))
        offset = self._next
        self._next += aligned(size_bytes)
        if self._next > len(self.bytes):
            raise RuntimeError(f"the device's memory of {len(self.bytes)} bytes is too small")
        return offset

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over a region's bytes."""
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        return self.bytes[offset : offset + size].view(dtype).view(shape)


class _CudaMemory:
    def __init__(
        self,
        backend: CudaBackend,
        arena_bytes: int,
        rows_bytes: int,
        chunk_bytes: int,
        ledger: Ledger,
    ) -> None:
        self._backend = backend
        self.device = backend.device
        self.regions = _Regions(arena_bytes, ledger, self.device)
        self.rows = Arena(rows_bytes, ledger)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        size = min(aligned(chunk_bytes), STAGING_BYTES)
        self._buffers = _pinned(_BUFFERS * size).view(_BUFFERS, size)
        # copies that are queued on the device, by buffer; None: never used
        self._sent: list[torch.cuda.Event | None] = [None] * _BUFFERS
        self._turn = 0
        self._arrived: dict[Lane, torch.cuda.Event] = {}
        self._used: dict[Lane, torch.cuda.Event] = {}
        self._recorder: CudaRecorder | None = None

    @property
    def holds(self) -> bool:
        return self._backend.link == "h2d"

    def held(self, pieces: tuple[Piece, ...]) -> torch.Tensor | None:
        return self._backend.held(pieces)

    def prepare(self, reader: UnitReader, streamed: list[tuple[Piece, ...]]) -> None:
        if self._backend.link == "h2d":
            for pieces in streamed:
                self._backend.hold(reader, pieces)

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
        held = self._backend.held(pieces)
        if held is None:
            # from ``start`` on, at the beginning of a buffer
            pieces = tuple(_shifted(piece, start) for piece in pieces)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            if lane is not None and start == 0 and lane in self._used:
                self._stream.wait_event(self._used[lane])
            step = self._buffers.shape[1]
            for first in range(0, size_bytes, step):
                part = min(step, size_bytes - first)
                turn = self._turn
                self._turn = (turn + 1) % _BUFFERS
                before = self._sent[turn]
                if before is not None:
                    before.synchronize()
                if held is None:
                    source = self._buffers[turn]
                    shifted = tuple(_shifted(piece, first) for piece in pieces)
                    then = following if first + part == size_bytes else None
                    reader.read(shifted, _bytes_of(source), 0, part, then)
                    source = source[:part]
                else:
                    source = held[start + first : start + first + part]
                at = region.offset + start + first
                self.regions.bytes[at : at + part].copy_(source, non_blocking=True)
                event = self._sent[turn] = timed_event()
                event.record(self._stream)
            if lane is None:
                self._stream.synchronize()
                return
            if self._recorder is not None:
                self._recorder.copied(event, size_bytes)
            if start + size_bytes >= region.size_bytes:
                self._arrived.setdefault(lane, _event()).record(self._stream)

    def view(self, region: Region) -> memoryview:
        self._stream.synchronize()
        part = self.regions.bytes[region.offset : region.offset + aligned(region.size_bytes)]
        return _bytes_of(part.cpu())

    def recorder(self, kept_passes: int = KEPT_PASSES) -> Recorder:
        return CudaRecorder(kept_passes, self._backend.link)

    def transfers(self, schedule: Schedule, copy: Copy, recorder: Recorder) -> Transfers:
        self._recorder = recorder if isinstance(recorder, CudaRecorder) else None
        return _CudaTransfers(schedule, copy, recorder, self)

    def await_arrival(self, lane: Lane) -> bool:
        """Let the device wait for a slot's copy; whether there was anything to wait for."""
        arrived = self._arrived[lane]
        if arrived.query():  # type: ignore[no-untyped-call]
            return False
        torch.cuda.current_stream().wait_event(arrived)
        return True

    def use_ends(self, lane: Lane) -> None:
        """All computation from a slot is queued: the next copy into it comes behind."""
        self._used.setdefault(lane, _event()).record()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _shifted(piece: Piece, by: int) -> Piece:
    return replace(piece, unit_offset_bytes=piece.unit_offset_bytes - by)


class _CudaTransfers(Transfers):
    """The channel's slots ordered by events: a unit is ready once its copy is queued."""

    def __init__(
        self,
        schedule: Schedule,
        copy: Copy,
        recorder: Recorder,
        memory: _CudaMemory,
    ) -> None:
        super().__init__(schedule, copy, recorder)
        self._memory = memory
        self._lanes: dict[Unit, Lane] = {}

    def wait(self, unit: Unit) -> tuple[int | None, bool]:
        """Wait until ``unit`` is on its way, and let the device wait until it is there."""
        slot, waited = super().wait(unit)
        if slot is None:
            return slot, waited
        lane = self._lanes[unit] = Lane(unit.kind == "dense", slot)
        return slot, self._memory.await_arrival(lane) or waited

    def route(
        self,
        active: list[Unit],
        dense_stage: int | None,
        named: Named | None = None,
        rows: Mapping[Unit, int] | None = None,
    ) -> Routed:
        """The router has spoken."""
        if dense_stage is not None:
            self._end(Unit(dense_stage, "dense", -1))
        return super().route(active, dense_stage, named, rows)

    def release_dense(self, stage: int) -> None:
        """A layer without experts is done with its dense part."""
        self._end(Unit(stage, "dense", -1))
        super().release_dense(stage)

    def computed(self, unit: Unit) -> None:
        """A computation from ``unit`` is queued."""
        self._end(unit)
        super().computed(unit)

    def _end(self, unit: Unit) -> None:
        lane = self._lanes.pop(unit, None)
        if lane is not None:
            self._memory.use_ends(lane)
