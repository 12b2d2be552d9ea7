"""Measuring writes of keys and values to the tier below, alone and beside what the channel reads.

They go through the executor's own file (``executor.spill``), by the sizes that runs write: a few
blocks for a token, chunks of copies where sequences begin. Beside them, in half of the samples,
experts are read as the channel reads them: a write waits for the read that is under way, which for
small ones is most of what they take. What the reads lose is measured by how many of them end while
so many writes are made, against reads right before and after.
"""

from __future__ import annotations

import mmap
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import mean

from executor.direct import Pacer, ReadBuffer
from executor.source import WeightSource
from executor.spill import SpillFile
from executor.units import Unit
from planner.documents import KvWrites
from planner.kv import kv_stays
from planner.memory import ALIGNMENT_BYTES, DECODE_STEP_BYTES, decode_bytes
from planner.smallest import CHUNK_BYTES
from profiler.curves import fit_curve
from solvers.errors import RunError

__all__ = ["WriteSamples", "lost_ns", "measure_writes", "write_sizes"]

_SMALL = (ALIGNMENT_BYTES, 4 * ALIGNMENT_BYTES, 16 * ALIGNMENT_BYTES)
"""Of a token of one sequence: blocks, not chunks."""
_FEWEST, _MOST = 4, 64
"""Samples of one size; fewer hold none out."""
_AT_ONCE = 16
"""Writes that are one moment of the drive."""
_READS = 6
"""So many that end are a stretch of reading."""
_MOST_BESIDE = 16 * _MOST
"""Writes that such a stretch is waited for."""
_REST_SECONDS = 5.0
"""So long at most is waited for reads alone."""
_PLACES = 4
"""The file is so many of the largest writes long."""


@dataclass(slots=True)
class WriteSamples:
    """Durations in ns by bytes, in the order in which they were taken; ``lost``: by how much the
    channel is later for one write."""

    alone: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    beside: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    lost: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def fit(self) -> KvWrites | None:
        """As curves; None where nothing was measured."""
        if not self.alone:
            return None
        lost = fit_curve(self.lost) if self.lost else None
        return KvWrites(fit_curve(self.alone), fit_curve(self.beside), lost)


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
    # what is read beside them may have to be decoded
    sizes = write_sizes(memory_bytes - decode_bytes(source.model))
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
        for size in order.sample(sizes, len(sizes)):
            spent, _ = _written(file, memory[:size], _PLACES * largest, size_ns, [], 0)
            samples.alone[size] += _moments(spent)
        with _reading(source, largest, pacer, order) as reads:
            before, made = _at_rest(reads), {}
            for size in order.sample(sizes, len(sizes)):
                first = len(reads)
                spent, ends = _written(
                    file, memory[:size], _PLACES * largest, size_ns, reads, first + _READS
                )
                samples.beside[size] += _moments(spent[:_MOST])
                made[size] = reads[first:], ends
            rests = [one for one in (before, _at_rest(reads)) if one is not None]
        for size, (read, ends) in made.items():
            lost = lost_ns(read, ends, mean(rests)) if rests else None
            if lost is not None:
                samples.lost[size].append(lost)
    finally:
        file.close()


def lost_ns(reads: Sequence[int], writes: Sequence[int], rest_ns: float) -> int | None:
    """By how much reading is later for one write.

    Parameters
    ----------
    reads, writes
        When each ended, in ns, ascending; reads of one size without a pause.
    rest_ns
        What a read takes where nothing is written.

    Returns
    -------
    int or None
        From the first read's end to the last one's; None where that holds no read or no write.
    """
    if len(reads) < 2:
        return None
    many = bisect_right(writes, reads[-1]) - bisect_right(writes, reads[0])
    late = reads[-1] - reads[0] - (len(reads) - 1) * rest_ns
    return round(max(late, 0) / many) if many else None


def _at_rest(reads: Sequence[int]) -> float | None:
    """What one read takes while nothing is written; None where they do not go on."""
    first = len(reads)
    until = time.monotonic() + _REST_SECONDS
    while len(reads) < first + _READS + 1:
        if time.monotonic() > until:
            return None
        time.sleep(0.001)
    return (reads[first + _READS] - reads[first]) / _READS


def _written(
    file: SpillFile,
    memory: memoryview,
    room: int,
    most_ns: int,
    reads: Sequence[int],
    until: int,
) -> tuple[list[int], list[int]]:
    """Durations and ends of writes all over the file, until so many reads have ended, too."""
    found: list[int] = []
    ends: list[int] = []
    size = len(memory)
    begin = now = time.perf_counter_ns()
    while (
        len(found) < _FEWEST
        or (len(found) < _MOST and now - begin < most_ns)
        or (len(found) < _MOST_BESIDE and len(reads) < until)
    ):
        # one after the other as sequences lie: some blocks apart
        at = len(found) * max(size, 16 * ALIGNMENT_BYTES) % room
        started = time.perf_counter_ns()
        file.write(at, memory)
        now = time.perf_counter_ns()
        found.append(now - started)
        ends.append(now)
    return found, ends


def _moments(durations: list[int]) -> list[int]:
    """Each with the mean of those right beside it.

    As for copies: most small writes pass at once, and some wait for a read; a run adds up many.
    """
    parts = [durations[at : at + _AT_ONCE] for at in range(0, len(durations), _AT_ONCE)]
    return [round(mean(part)) for part in parts for _ in part]


def _buffer_bytes(source: WeightSource, piece: int) -> int:
    """Through which a piece of an expert is read: as a run would, of a compressed store."""
    if source.model.stored is not None:
        return 2 * (DECODE_STEP_BYTES + 2 * ALIGNMENT_BYTES)
    return piece + 2 * ALIGNMENT_BYTES


@contextmanager
def _reading(
    source: WeightSource, piece: int, pacer: Pacer, order: Random
) -> Iterator[Sequence[int]]:
    """A thread that reads experts in large pieces meanwhile, and when each read ended.

    Raises
    ------
    RunError
        If it could not.
    """
    ends: list[int] = []
    # all of one size
    layer = order.choice([layer for layer in source.model.layers if layer.experts])
    size = min(layer.expert_bytes, piece)
    places = [order.randrange(layer.experts) for _ in range(_MOST)]
    chosen = [source.pieces(Unit(layer.index, "expert", expert)) for expert in places]
    reader = source.reader(ReadBuffer(_buffer_bytes(source, piece)), pacer)
    target = memoryview(mmap.mmap(-1, piece))
    stop, began = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        at = 0
        try:
            while not stop.is_set():
                reader.read(chosen[at % len(chosen)], target, 0, size)
                ends.append(time.perf_counter_ns())
                began.set()
                at += 1
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)
            began.set()

    thread = threading.Thread(target=read, name="moeplan-profile-reads", daemon=True)
    thread.start()
    try:
        began.wait()
        yield ends
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
