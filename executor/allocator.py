"""Settings of the C library's allocator and of the compute threads, for one process."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import torch

__all__ = ["peak_resident_bytes", "tune_process", "usable_cores"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 1 << 20
_done = False


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def tune_process() -> None:
    """Give freed temporaries back to the system, and use each core once. Does nothing twice.

    Large temporaries get mappings of their own, which go back when freed; without this the heap
    keeps the largest there ever were. ``GOMP_SPINCOUNT=0`` must be in the environment before torch
    is loaded, so it is left to whoever starts the process.
    """
    global _done
    if _done:
        return
    _done = True
    libc = ctypes.CDLL(None)
    # other C libraries have no mallopt; then nothing is tuned
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, 2)
    torch.set_num_threads(usable_cores())
    # what importing left behind
    gc.collect()
    trim = getattr(libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_resident_bytes() -> int:
    """Most resident memory that this process ever had."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
