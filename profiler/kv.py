"""Measuring writes of keys and values to the tier below, alone and beside what the channel reads.

They go through the executor's own file (``executor.spill``), by the sizes that runs write: a few
blocks for a token, chunks of copies where sequences begin. Beside them, in half of the samples,
experts are read as the channel reads them: a write waits for the read that is under way, which for
small ones is most of what they take.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import mean

from executor.direct import Pacer, Piece, ReadBuffer
from executor.source import WeightSource
from executor.spill import SpillFile
from executor.units import Unit
from planner.documents import KvWrites
from planner.groups import CHUNK_BYTES
from planner.kv import kv_stays
from planner.memory import ALIGNMENT_BYTES
from profiler.curves import fit_curve
from solvers.errors import RunError

__all__ = ["WriteSamples", "measure_writes", "write_sizes"]

_SMALL = (ALIGNMENT_BYTES, 4 * ALIGNMENT_BYTES, 16 * ALIGNMENT_BYTES)
"""Of a token of one sequence: blocks, not chunks."""
_FEWEST, _MOST = 4, 64
"""Samples of one size; fewer hold none out."""
_AT_ONCE = 16
"""Writes that are one moment of the drive."""
_PLACES = 4
"""The file is so many of the largest writes long."""


@dataclass(slots=True)
class WriteSamples:
    """Durations in ns by bytes, in the order in which they were taken."""

    alone: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    beside: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def fit(self) -> KvWrites | None:
        """As curves; None where nothing was measured."""
        if not self.alone:
            return None
        return KvWrites(fit_curve(self.alone), fit_curve(self.beside))


def write_sizes(memory_bytes: int) -> tuple[int, ...]:
    """What is measured, ascending: no more than a third of the budget at once."""
    every = sorted({*_SMALL, *CHUNK_BYTES})
    return tuple(size for size in every if 3 * size <= memory_bytes) or (ALIGNMENT_BYTES,)


def measure_writes(
    source: WeightSource,
    device: str,
    memory_bytes: int,
    samples: WriteSamples,
    size_ns: int,
    order: Random,
) -> None:
    """Add samples of every size; none where keys and values cannot lie below.

    Nothing is paced: what a paced link adds, planning knows.

    Parameters
    ----------
    source
        Weights; the file lies beside them.
    device
        Kind of device.
    memory_bytes
        Budget that bounds the sizes.
    samples
        Where they go.
    size_ns
        About so long for each size, alone and beside.
    order
        Of sizes, and of what is read beside.
    """
    if kv_stays(source.model, device) is not None:
        return
    sizes = write_sizes(memory_bytes)
    largest = sizes[-1]
    pacer = Pacer(None)
    try:
        folder = source.store or source.checkpoint.folder
        file = SpillFile(folder, _PLACES * largest, pacer, source.read_into)
    except RunError:
        return  # as it would refuse a run that has them there
    memory = memoryview(mmap.mmap(-1, largest))
    memory[:] = order.randbytes(largest)
    try:
        for place in range(_PLACES):
            file.write(place * largest, memory)
        for own in (samples.alone, samples.beside):
            with _reading(source, largest, pacer, order, wanted=own is samples.beside):
                for size in order.sample(sizes, len(sizes)):
                    own[size] += _written(file, memory[:size], _PLACES * largest, size_ns)
    finally:
        file.close()


def _written(file: SpillFile, memory: memoryview, room: int, most_ns: int) -> list[int]:
    """Durations of writes all over the file."""
    found: list[int] = []
    size = len(memory)
    begin = time.perf_counter_ns()
    while len(found) < _FEWEST or (len(found) < _MOST and time.perf_counter_ns() - begin < most_ns):
        # one after the other as sequences lie: some blocks apart
        at = len(found) * max(size, 16 * ALIGNMENT_BYTES) % room
        started = time.perf_counter_ns()
        file.write(at, memory)
        found.append(time.perf_counter_ns() - started)
    return _moments(found)


def _moments(durations: list[int]) -> list[int]:
    """Each with the mean of those right beside it.

    As for copies: most small writes pass at once, and some wait for a read; a run adds up many.
    """
    parts = [durations[at : at + _AT_ONCE] for at in range(0, len(durations), _AT_ONCE)]
    return [round(mean(part)) for part in parts for _ in part]


@contextmanager
def _reading(
    source: WeightSource, piece: int, pacer: Pacer, order: Random, *, wanted: bool
) -> Iterator[None]:
    """A thread that reads experts in large pieces meanwhile, if wanted.

    Raises
    ------
    RunError
        If it could not.
    """
    if not wanted:
        yield
        return
    chosen = [_expert(source, order, piece) for _ in range(_MOST)]
    reader = source.reader(ReadBuffer(piece + 2 * ALIGNMENT_BYTES), pacer)
    target = memoryview(mmap.mmap(-1, piece))
    stop, began = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        at = 0
        try:
            while not stop.is_set():
                pieces, size = chosen[at % len(chosen)]
                reader.read(pieces, target, 0, size)
                began.set()
                at += 1
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)
            began.set()

    thread = threading.Thread(target=read, name="moeplan-profile-reads", daemon=True)
    thread.start()
    try:
        began.wait()
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def _expert(source: WeightSource, order: Random, most: int) -> tuple[tuple[Piece, ...], int]:
    """Where one lies, and how much of it is read at once."""
    layers = [layer for layer in source.model.layers if layer.experts]
    layer = order.choice(layers)
    unit = Unit(layer.index, "expert", order.randrange(layer.experts))
    return source.pieces(unit), min(layer.expert_bytes, most)
