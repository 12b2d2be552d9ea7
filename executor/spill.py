"""Keys and values that lie below the device: a file without a name beside the weights.

A layer's are laid token by token, each sequence in whole blocks, as they lie in the slot that they
are copied to: a token's are written alone, from where attention put them.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
import weakref
from pathlib import Path

import torch

from executor.adapters.base import CacheShape
from executor.direct import DirectFile, Pacer, ReadInto
from planner.documents import ModelSpec, Policy, Workload
from planner.memory import ALIGNMENT_BYTES, group_sequences, kept_tokens, kv_sequence_bytes
from solvers.errors import RunError

__all__ = ["Spill"]


class Spill:
    """Keys and values of all layers whose dense part streams.

    Parameters
    ----------
    folder
        Where the weights lie, on the link that was measured.
    model, policy, workload, dtype, cache
        Sizes.
    pacer
        Shared with whatever else reads from the same disk.
    read_into
        As for weights.

    Attributes
    ----------
    layer_bytes
        Of one layer, for the largest group.
    bytes_read
        So far.

    Raises
    ------
    RunError
        If there is no room for the file, or it cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelSpec,
        policy: Policy,
        workload: Workload,
        dtype: torch.dtype,
        cache: CacheShape,
        pacer: Pacer,
        read_into: ReadInto,
    ) -> None:
        self._cache, self._dtype, self._pacer = cache, dtype, pacer
        self._columns = kept_tokens(workload)
        self._sequences = group_sequences(policy, workload)
        self._places = {
            layer: at
            for at, layer in enumerate(
                index for index, one in enumerate(policy.layers) if not one.dense_resident
            )
        }
        self._sequence_bytes = kv_sequence_bytes(model, 0, workload, dtype.itemsize)
        self._chunk_bytes = policy.chunk_bytes
        values = cache.key_heads * cache.key_size + cache.value_heads * cache.value_size
        self._token_values = values
        self.layer_bytes = self._sequences * self._sequence_bytes
        self.bytes_read = 0
        name = folder / "(keys and values)"
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, len(self._places) * self.layer_bytes)
                again = Path(f"/proc/self/fd/{file.fileno()}")
                self._file = DirectFile(again, read_into)
                direct = os.O_DIRECT if self._file.direct else 0
                self._descriptor = os.open(again, os.O_WRONLY | os.O_CLOEXEC | direct)
        except OSError as error:
            size = len(self._places) * self.layer_bytes
            raise RunError(
                f"{folder}: {size:,} bytes of keys and values cannot be kept there: "
                f"{error.strerror}; plan again with --kv device"
            ) from error
        self._file.path = name
        self.close = weakref.finalize(self, _close, self._file, self._descriptor)

    def __contains__(self, layer: int) -> bool:
        return layer in self._places

    def read(self, layer: int, target: memoryview, start: int, size_bytes: int) -> None:
        """Bytes [start, start + size) of a layer into the same place of ``target``."""
        started = time.perf_counter_ns()
        at = self._places[layer] * self.layer_bytes + start
        self._file.read(target[start : start + size_bytes], at, size_bytes)
        self.bytes_read += size_bytes
        self._pacer.wait(started, size_bytes)

    def write(self, layer: int, memory: memoryview) -> None:
        """All of a layer, from ``memory``."""
        for start in range(0, self.layer_bytes, self._chunk_bytes):
            self._write(layer, memory, start, min(self._chunk_bytes, self.layer_bytes - start))

    def write_token(self, layer: int, memory: memoryview, sequence: int, column: int) -> None:
        """The blocks that hold one token of a sequence."""
        token = self._token_values * self._dtype.itemsize
        start = sequence * self._sequence_bytes + column * token
        first = start - start % ALIGNMENT_BYTES
        stop = -(-(start + token) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._write(layer, memory, first, stop - first)

    def _write(self, layer: int, memory: memoryview, start: int, size_bytes: int) -> None:
        started = time.perf_counter_ns()
        at, done = self._places[layer] * self.layer_bytes + start, 0
        while done < size_bytes:
            try:
                count = os.pwrite(
                    self._descriptor, memory[start + done : start + size_bytes], at + done
                )
                if count <= 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            except OSError as error:
                raise RunError(
                    f"{self._file.path}: writing {size_bytes} bytes failed: {error.strerror}"
                ) from error
            # direct writes are of whole blocks
            done += count if done + count == size_bytes else count - count % ALIGNMENT_BYTES
        self._pacer.wait(started, size_bytes)

    def views(self, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [sequences, heads, columns, size] in a slot's bytes (of ``dtype``)."""
        cache = self._cache
        rows = slot.view(self._sequences, -1)[:, : self._columns * self._token_values]
        tokens = rows.view(self._sequences, self._columns, self._token_values)
        split = cache.key_heads * cache.key_size
        keys, values = tokens[..., :split], tokens[..., split:]
        shape = self._sequences, self._columns
        return (
            keys.view(*shape, cache.key_heads, cache.key_size).transpose(1, 2),
            values.view(*shape, cache.value_heads, cache.value_size).transpose(1, 2),
        )


def _close(file: DirectFile, descriptor: int) -> None:
    file.close()
    os.close(descriptor)
