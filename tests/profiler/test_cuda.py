"""Profiling on a GPU; runs where torch finds one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from planner.profiles import load_profile
from profiler import profile_checkpoint
from profiler.effort import Effort
from solvers.errors import BudgetError, OptionError

PROMPTS = [[3, 5, 7, 11] * 4, [4, 6, 8] * 5]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")


def test_host_memory_without_a_gpu_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="cuda only"):
        profile_checkpoint(
            checkpoint("mixtral"), tmp_path / "p", memory_bytes=1 << 26, host_memory_bytes=1 << 30
        )


@needs_gpu
def test_profile_on_a_gpu(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = checkpoint("mixtral")
    quick = Effort(cell_ns=1_000_000, rounds=1, fills=1, turns=1, passes=1, stream_ns=0)
    for host, channel in ((None, "disk"), (1 << 30, "h2d")):
        out = tmp_path / channel
        profile_checkpoint(
            folder,
            out,
            memory_bytes=64 << 20,
            device="cuda",
            host_memory_bytes=host,
            prompts=PROMPTS,
            effort=quick,
        )
        profile = load_profile(out)
        hardware = profile.hardware
        # what streams from host memory may be computed there
        assert (profile.costs.hosting is not None) == (channel == "h2d")
        assert hardware.device == "cuda"
        assert [one.name for one in hardware.channels] == [channel]
        assert hardware.processor == torch.cuda.get_device_name()
    with pytest.raises(BudgetError, match="do not hold the weights"):
        profile_checkpoint(
            folder, tmp_path / "x", memory_bytes=64 << 20, device="cuda", host_memory_bytes=1000
        )
