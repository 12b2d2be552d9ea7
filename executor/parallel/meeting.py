"""How a rank gets its device, and meets the others of its group.

What is small and steers (sizes, statistics) is exchanged by gloo between CPUs, whatever the device;
rows go as tensors lie: by gloo between CPUs, by nccl between GPUs.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from executor.backends import make_backend
from executor.memory import Backend
from executor.parallel.group import DeviceName
from solvers.counting import counted
from solvers.errors import UnsupportedError

__all__ = ["GROUP_BACKENDS", "Meeting", "rank_backend", "wait_for_all"]

GROUP_BACKENDS: dict[DeviceName, str] = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""What torch.distributed moves tensors by, for each kind of device."""


def rank_backend(device: DeviceName, place: int, places: int) -> Backend:
    """The device of a rank.

    Parameters
    ----------
    device
        Which kind.
    place, places
        The rank is the ``place``-th of ``places`` on this machine, from 0.

    Raises
    ------
    UnsupportedError
        If there are fewer GPUs than ranks, or torch has no nccl.
    """
    if device == "cpu":
        return make_backend("cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < places:
        have = f"only {found}" if found else "none"
        raise UnsupportedError(
            f"device 'cuda': {counted(places, 'device')} of the placement on this machine, each of "
            f"which needs a CUDA GPU of its own, and torch finds {have}; place for fewer, or use "
            "cpu"
        )
    if not torch.distributed.is_nccl_available():
        raise UnsupportedError("device 'cuda': this torch is built without nccl; use cpu")
    # what names no GPU is on this one
    torch.cuda.set_device(place)
    return make_backend("cuda", index=place)


class Meeting:
    """Joins torch.distributed's group.

    Parameters
    ----------
    rank, devices
        This rank, of how many.
    device
        What rows are exchanged between.
    """

    def __init__(self, rank: int, devices: int, device: DeviceName) -> None:
        self._rank, self._devices, self._device = rank, devices, device
        self._store: Store | None = None

    def listen(self, host: str) -> int:
        """Keep the store in which ranks of several machines meet; its port at ``host``."""
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=kind, backlog=self._devices)
        port: int = listener.getsockname()[1]
        self._store = TCPStore(
            host,
            port,
            self._devices,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return port

    def join(self, order: dict[str, Any]) -> None:
        """Meet all others: in a ``file`` of this machine, or at a ``host`` and ``port``."""
        timeout = timedelta(seconds=order["timeout_seconds"])
        if self._store is None:
            if "file" in order:
                self._store = FileStore(order["file"], self._devices)
            else:
                self._store = TCPStore(order["host"], order["port"], self._devices, timeout=timeout)
        torch.distributed.init_process_group(
            GROUP_BACKENDS[self._device],
            store=self._store,
            rank=self._rank,
            world_size=self._devices,
            timeout=timeout,
        )


def wait_for_all() -> None:
    """Until every rank is here; by gloo, so that it needs no GPU's turn."""
    torch.distributed.all_reduce(torch.zeros(1))
