"""Keys and values that lie below the device: a file without a name beside the weights.

A layer's are laid column by column, in each those of all sequences, as they lie in the slot that
they are copied to: as many columns as a pass needs are read at once, and new tokens in a column are
written alone, from where attention put them.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

import torch

from executor.adapters.base import CacheShape
from executor.direct import DirectFile, Pacer, ReadInto
from executor.state import GroupState
from planner.documents import ModelSpec, Policy, Workload
from planner.documents.writing import is_too_large
from planner.kv import APART_BYTES, token_blocks
from planner.memory import (
    ALIGNMENT_BYTES,
    aligned,
    batch_sequences,
    group_sequences,
    kept_tokens,
    kv_layer_bytes,
)
from solvers.errors import OptionError, RunError

__all__ = ["ALL", "Spill", "SpillFile"]


class SpillFile:
    """A file without a name that is read and written in whole blocks, past the page cache.

    Parameters
    ----------
    folder
        Where it lies.
    size_bytes
        All of it, reserved at once.
    pacer
        Shared with whatever else uses the same disk.
    read_into
        As for weights.

    Attributes
    ----------
    bytes_read
        So far.

    Raises
    ------
    RunError
        If there is no room for the file, or it cannot be made.
    OptionError
        If it would be larger than a file may be.
    """

    def __init__(self, folder: Path, size_bytes: int, pacer: Pacer, read_into: ReadInto) -> None:
        self._pacer = pacer
        self.bytes_read = 0
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                self._size_bytes = size_bytes
                again = Path(f"/proc/self/fd/{file.fileno()}")
                self._file = DirectFile(again, read_into)
                direct = os.O_DIRECT if self._file.direct else 0
                self._descriptor = os.open(again, os.O_WRONLY | os.O_CLOEXEC | direct)
        except OSError as error:
            kind = OptionError if is_too_large(error) else RunError
            raise kind(
                f"{folder}: {size_bytes:,} bytes of keys and values cannot be kept there: "
                f"{error.strerror}; plan again with --kv device"
            ) from error
        self._file.path = folder / "(keys and values)"
        self.close = weakref.finalize(self, _close, self._file, self._descriptor)

    def read(self, at: int, target: memoryview) -> None:
        """Bytes from ``at`` on into ``target``."""
        started = time.perf_counter_ns()
        self._file.read(target, at, len(target))
        self.bytes_read += len(target)
        self._pacer.wait(started, len(target))

    def clear(self) -> None:
        """All of it is zeros again.

        Raises
        ------
        RunError
            If its room was taken meanwhile.
        """
        try:
            os.ftruncate(self._descriptor, 0)
            os.posix_fallocate(self._descriptor, 0, self._size_bytes)
        except OSError as error:
            raise RunError(f"{self._file.path}: clearing it failed: {error.strerror}") from error

    def write(self, at: int, source: memoryview) -> None:
        """``source``, whole blocks, to the bytes from ``at`` on."""
        started = time.perf_counter_ns()
        done, size_bytes = 0, len(source)
        while done < size_bytes:
            try:
                count = os.pwrite(self._descriptor, source[done:], at + done)
                if count <= 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            except OSError as error:
                raise RunError(
                    f"{self._file.path}: writing {size_bytes} bytes failed: {error.strerror}"
                ) from error
            # direct writes are of whole blocks
            done += count if done + count == size_bytes else count - count % ALIGNMENT_BYTES
        self._pacer.wait(started, size_bytes)


ALL = -1
"""Where a layer's keys and values of all batches lie together."""


class Spill:
    """Keys and values of all layers whose dense part streams, or of the batches of all layers that
    are copied by themselves.

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
    columns
        Of each sequence at its longest.
    column_bytes
        Of a column: a token of each sequence.
    layer_bytes
        Room for one layer's, of the largest group, or of a full batch, at its longest.
    places
        Which (layer, batch) lie there; ``ALL`` for all batches together.

    Raises
    ------
    RunError
        As ``SpillFile``.
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
        self._cache = cache
        self.columns = kept_tokens(workload)
        self._sequences = group_sequences(policy, workload)
        layers = enumerate(policy.layers)
        if policy.kv == "batches":
            self._sequences = batch_sequences(policy, workload)
            batches = range(policy.n_batches)
            places = [(at, k) for at, one in layers for k in batches if k not in one.kv_resident]
        else:
            places = [(at, ALL) for at, one in layers if not one.dense_resident]
        self.places = {place: at for at, place in enumerate(places)}
        self._chunk_bytes = policy.chunk_bytes
        values = cache.key_heads * cache.key_size + cache.value_heads * cache.value_size
        self._token_values = values
        self._token_bytes = values * dtype.itemsize
        self.column_bytes = self._sequences * self._token_bytes
        self.layer_bytes = kv_layer_bytes(model, 0, self._sequences, workload, dtype.itemsize)
        size = len(self.places) * self.layer_bytes
        self._file = SpillFile(folder, size, pacer, read_into)
        self.close = self._file.close

    @property
    def bytes_read(self) -> int:
        """So far."""
        return self._file.bytes_read

    def columns_bytes(self, columns: int) -> int:
        """Whole blocks that hold the first columns of a layer."""
        return aligned(columns * self.column_bytes)

    def clear(self) -> None:
        """Forget what was written: a failed run may have left what are no numbers."""
        self._file.clear()

    def read(
        self, layer: int, target: memoryview, start: int, size_bytes: int, batch: int = ALL
    ) -> None:
        """Bytes [start, start + size) of a layer into the same place of ``target``."""
        at = self._at(layer, batch) + start
        self._file.read(at, target[start : start + size_bytes])

    def write(
        self,
        layer: int,
        memory: memoryview,
        columns: int,
        tokens: Iterable[tuple[int, int]] = (),
        batch: int = ALL,
    ) -> int:
        """The first columns of a layer from ``memory``, and the blocks that hold other new tokens,
        (column, sequence), joined as ``planner.kv.token_blocks`` does; how many bytes."""
        blocks = token_blocks(tokens, self.column_bytes, self._token_bytes, APART_BYTES, columns)
        at = self._at(layer, batch)
        return sum(self._write(at, memory, begin, end) for begin, end in blocks)

    def _write(self, at: int, memory: memoryview, begin: int, end: int) -> int:
        for start in range(begin, end, self._chunk_bytes):
            stop = min(start + self._chunk_bytes, end)
            self._file.write(at + start, memory[start:stop])
        return end - begin

    def _at(self, layer: int, batch: int) -> int:
        return self.places[layer, batch] * self.layer_bytes

    def clear_beyond(
        self, slot: torch.Tensor, came_bytes: int, state: GroupState, members: range, reach: int
    ) -> None:
        """Zero what a pass may look at, or write back, and what neither came nor is made by it.

        Of a slot others have had before: weights are no numbers that a masked column may hold.

        Parameters
        ----------
        slot
            Values of the computing type, from the first column on.
        came_bytes
            What was read of them.
        state, members
            The pass, and the sequences whose these are. Where all sequences begin, attention makes
            their columns before any is looked at: left are those that the shorter ones do not have,
            and places without a sequence.
        reach
            Columns that the pass looks at or writes.
        """
        first = came_bytes
        if state.begins and not state.mixed:
            counts = state.counts[members.start : members.stop]
            tokens, shortest = self.tokens(slot)[:reach], min(counts)
            tokens[shortest:, : len(members)].zero_()
            tokens[:, len(members) :].zero_()
            first = reach * self.column_bytes
        width = slot.element_size()
        slot[first // width : self.columns_bytes(reach) // width].zero_()

    def tokens(self, slot: torch.Tensor) -> torch.Tensor:
        """[columns, sequences, values of a token] in a slot's bytes (of ``dtype``)."""
        used = self.columns * self._sequences * self._token_values
        return slot[:used].view(self.columns, self._sequences, -1)

    def views(self, slot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [sequences, heads, columns, size] in a slot's bytes (of ``dtype``)."""
        cache, tokens = self._cache, self.tokens(slot).transpose(0, 1)
        split = cache.key_heads * cache.key_size
        keys, values = tokens[..., :split], tokens[..., split:]
        shape = self._sequences, self.columns
        return (
            keys.view(*shape, cache.key_heads, cache.key_size).transpose(1, 2),
            values.view(*shape, cache.value_heads, cache.value_size).transpose(1, 2),
        )


def _close(file: DirectFile, descriptor: int) -> None:
    file.close()
    os.close(descriptor)
