"""The kinds of device by name."""

from __future__ import annotations

import torch

from executor.cuda import CudaBackend
from executor.memory import Backend, CpuBackend, Link
from solvers.errors import OptionError, UnsupportedError

__all__ = ["make_backend"]


def make_backend(device: str, *, link: Link = "disk", index: int = 0) -> Backend:
    """The kind of device that a plan or an option names.

    Parameters
    ----------
    device
        ``cpu`` or ``cuda``.
    link
        Where streamed units come from: ``disk``, or ``h2d`` (pinned host memory, read once;
        ``cuda`` only).
    index
        Which GPU, where it is one.

    Raises
    ------
    OptionError
        If there is no such device.
    UnsupportedError
        If torch finds no CUDA GPU on this machine.
    """
    if device == "cpu":
        return CpuBackend()
    if device != "cuda":
        raise OptionError(f"device {device!r} is unknown; choose cpu or cuda")
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "device 'cuda': torch finds no CUDA GPU on this machine; use cpu, or a machine with one"
        )
    return CudaBackend(link, index)
