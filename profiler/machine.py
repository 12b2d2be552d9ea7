"""What the machine has: processor, memories, and a reference operation that watches its drift."""

from __future__ import annotations

import os
import platform
import shutil
import time
from pathlib import Path

import torch

from executor.allocator import usable_cores
from planner.documents import Channel, Hardware, Tier

__all__ = ["Reference", "describe_machine", "memory_total_bytes", "processor_name"]


def processor_name() -> str:
    """The processor, as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def memory_total_bytes() -> int:
    """All memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe_machine(folder: Path, memory_bytes: int, channel: Channel) -> Hardware:
    """The hardware document of a machine without an accelerator.

    Parameters
    ----------
    folder
        On the disk that weights are read from.
    memory_bytes
        Device budget: on such a machine the device is a pool of the process's memory.
    channel
        The disk, as measured.
    """
    return Hardware(
        name=platform.node() or "unknown",
        device="cpu",
        processor=processor_name(),
        threads=usable_cores(),
        tiers=(
            Tier("device", memory_bytes, "spec"),
            Tier("host", memory_total_bytes(), "measured"),
            Tier("disk", shutil.disk_usage(folder).total, "measured"),
        ),
        channels=(channel,),
    )


class Reference:
    """A fixed operation, repeated through a profile: its spread is the machine's drift.

    A product of matrices that fit the processor's caches: cores, clock and neighbours show,
    nothing else does.
    """

    _SIZE = 256

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (self._SIZE, self._SIZE)
        self._left = torch.randn(shape, generator=generator)
        self._right = torch.randn(shape, generator=generator)
        self._out = torch.empty(shape)
        self.samples: list[int] = []

    at_once = 3
    """Samples of one moment."""

    def take(self) -> None:
        """Add samples: each of a few products in a row, after one that wakes the threads."""
        for turn in range(self.at_once + 1):
            begin = time.perf_counter_ns()
            for _ in range(8):
                torch.mm(self._left, self._right, out=self._out)
            if turn:
                self.samples.append(time.perf_counter_ns() - begin)
