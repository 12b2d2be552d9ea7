"""How fast a machine is, without a checkpoint: what a machine document of the catalogue says."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch

from executor.allocator import tune_process
from executor.backends import make_backend
from executor.device import DTYPES
from executor.direct import DirectFile, ReadBuffer
from planner.documents import Machine
from profiler.curves import figure
from profiler.machine import memory_total_bytes, processor_name
from profiler.tasks import Progress, Task, run_tasks
from solvers.errors import OptionError, UnsupportedError

__all__ = ["measure_machine"]

_PRODUCT = {"cpu": 1024, "cuda": 8192}
_COPY_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
_LINK_BYTES = 256 << 20
_FILE_BYTES, _READ_BYTES = 256 << 20, 8 << 20
_ROUNDS = 2
"""Everything is measured so often, one after the other: one moment does not decide."""
_SECONDS = 0.4
_LEAST = 5


def measure_machine(
    folder: Path, *, device: str = "cpu", progress: Progress | None = None
) -> Machine:
    """Measure products of matrices, memory, the link to a GPU and the drive of ``folder``.

    Parameters
    ----------
    folder
        On the drive that weights will lie on; a file of 256 MiB is written there, read past the
        page cache and removed.
    device
        ``cpu`` or ``cuda``.
    progress
        As ``run_tasks``.

    Raises
    ------
    OptionError, UnsupportedError
        If there is no such device, no room in ``folder``, or no direct reading from it.
    """
    backend = make_backend(device)
    free = shutil.disk_usage(folder).free
    if free < 2 * _FILE_BYTES:
        raise OptionError(
            f"{folder}: has {free:,} bytes of room; reading is measured with {_FILE_BYTES:,}: name "
            "a place with more"
        )
    tune_process()
    where = torch.device(device)
    rates: dict[str, list[float]] = {}

    def add(name: str, measure: Callable[[], list[float]]) -> Callable[[], None]:
        return lambda: rates.setdefault(name, []).extend(measure())

    # without a name, so that it is gone whatever happens
    with tempfile.TemporaryFile(dir=folder) as file:
        tasks = [Task("a file to read", 1_000_000_000, lambda: _fill(file))]
        for _ in range(_ROUNDS):
            for name, dtype in DTYPES.items():
                run = add(name, lambda dtype=dtype: _products(where, dtype))  # type: ignore[misc]
                tasks.append(Task(f"products in {name}", 600_000_000, run))
            tasks.append(Task("memory", 600_000_000, add("memory", lambda: _copies(where))))
            if device == "cuda":
                run = add("link", lambda: _copies_up(where))
                tasks.append(Task("copies to the GPU", 600_000_000, run))
            tasks.append(Task("reads", 600_000_000, add("disk", lambda: _reads(file, folder))))
        run_tasks(tasks, progress)
    found = {name: figure(values) for name, values in rates.items()}
    host = memory_total_bytes()
    memory = host
    if device == "cuda":
        memory = torch.cuda.get_device_properties(where).total_memory
    return Machine(
        name=platform.node() or "unknown",
        device="cuda" if device == "cuda" else "cpu",
        processor=backend.processor or processor_name(),
        compute_flops_per_second={name: found[name] for name in DTYPES},  # type: ignore[misc]
        device_memory_bytes=memory,
        device_bandwidth_bytes_per_second=found["memory"],
        host_memory_bytes=host,
        link_bytes_per_second=found.get("link"),
        disk_bytes_per_second=found["disk"],
    )


def _timed(work: Callable[[], object], amount: float, device: torch.device) -> list[float]:
    """Amounts a second: of some turns after one that warms up."""

    def once() -> float:
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    once()
    rates: list[float] = []
    spent = 0.0
    while spent < _SECONDS or len(rates) < _LEAST:
        took = once()
        rates.append(amount / took)
        spent += took
    return rates


def _products(device: torch.device, dtype: torch.dtype) -> list[float]:
    """FLOP/s of products of large square matrices."""
    size = _PRODUCT[device.type]
    left, right = (torch.ones(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return _timed(lambda: torch.mm(left, right, out=out), 2.0 * size**3, device)


def _copies(device: torch.device) -> list[float]:
    """Bytes/s of a copy within the device's memory, those read and those written."""
    size = _COPY_BYTES[device.type]
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return _timed(lambda: target.copy_(source), 2.0 * size, device)


def _copies_up(device: torch.device) -> list[float]:
    """Bytes/s from pinned host memory."""
    source = torch.ones(_LINK_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device=device)
    return _timed(lambda: target.copy_(source, non_blocking=True), float(_LINK_BYTES), device)


def _fill(file: IO[bytes]) -> None:
    for _ in range(_FILE_BYTES // _READ_BYTES):
        # no drive makes less of it
        file.write(os.urandom(_READ_BYTES))
    file.flush()
    os.fsync(file.fileno())


def _reads(file: IO[bytes], folder: Path) -> list[float]:
    """Bytes/s of large reads in a row, as the executor makes them."""
    reading = DirectFile(Path(f"/proc/self/fd/{file.fileno()}"))
    try:
        if not reading.direct:
            raise UnsupportedError(
                f"{folder}: its file system does not read past the page cache, so the "
                "drive cannot be measured: name a place on the drive that weights lie on"
            )
        buffer = ReadBuffer(_READ_BYTES)
        rates = []
        for offset in range(0, _FILE_BYTES, _READ_BYTES):
            begin = time.perf_counter()
            reading.read(buffer.memory, offset, _READ_BYTES)
            rates.append(_READ_BYTES / (time.perf_counter() - begin))
        return rates
    finally:
        reading.close()
