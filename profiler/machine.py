"""What the machine has: processor and memories."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from executor.allocator import usable_cores
from planner.documents import Channel, Hardware, Tier

__all__ = ["describe_machine", "memory_total_bytes", "processor_name"]


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


def describe_machine(
    folder: Path,
    memory_bytes: int,
    channel: Channel,
    gpu: str | None = None,
    threads: int | None = None,
) -> Hardware:
    """The hardware document of this machine.

    Parameters
    ----------
    folder
        On the disk that weights are read from.
    memory_bytes
        Device budget: without a GPU the device is a pool of the process's memory.
    channel
        What streamed weights come over, as measured.
    gpu
        Name of the GPU that computes; None: the processor does.
    threads
        That compute; None: as many as there are cores.
    """
    return Hardware(
        name=platform.node() or "unknown",
        device="cpu" if gpu is None else "cuda",
        processor=gpu or processor_name(),
        threads=threads or usable_cores(),
        tiers=(
            Tier("device", memory_bytes, "spec"),
            Tier("host", memory_total_bytes(), "measured"),
            Tier("disk", shutil.disk_usage(folder).total, "measured"),
        ),
        channels=(channel,),
    )
