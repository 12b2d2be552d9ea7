"""One anonymous mapping for everything of known size that lives as long as an engine."""

from __future__ import annotations

import contextlib
import mmap

import torch

from executor.ledger import Ledger
from planner.memory import aligned

__all__ = ["Arena"]

_HUGE_PAGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23


class Arena:
    """Memory cut into regions, each at a page boundary; views of it are tensors.

    Parameters
    ----------
    size_bytes
        Sum of the regions, each rounded up to a page.
    ledger
        Each region is loaded there under its purpose.
    """

    def __init__(self, size_bytes: int, ledger: Ledger) -> None:
        self._ledger = ledger
        self._size_bytes = max(aligned(size_bytes), 4096)
        self._map = mmap.mmap(-1, self._size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # huge pages save page faults and table walks; below one huge page the advice does nothing
        if self._size_bytes >= _HUGE_PAGE_BYTES:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        # pages get their memory now, not in the first pass; kernels before 5.14 cannot do it
        with contextlib.suppress(OSError):
            self._map.madvise(_MADV_POPULATE_WRITE)
        self._next = 0
        self._buffer = memoryview(self._map)

    def take(self, purpose: str, name: str, size_bytes: int) -> int:
        """Cut off a region; returns its offset, a multiple of the page size."""
        self._ledger.use(purpose, name, aligned(size_bytes))
        offset = self._next
        self._next += aligned(size_bytes)
        if self._next > self._size_bytes:
            raise RuntimeError(f"the arena of {self._size_bytes} bytes is too small")
        return offset

    def memory(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes of a region, writable."""
        return self._buffer[offset : offset + size_bytes]

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over a region's bytes."""
        count = 1
        for extent in shape:
            count *= extent
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)
