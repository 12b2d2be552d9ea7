"""How many threads serve this model: each kind of operation computed by one and by more, in turns.

Passes of some sizes are run on a bench while the channel copies, as it does in a run, with the
threads changing from pass to pass, so that the machine's drift touches all alike; and again where
other programs had the cores, with whom several threads would share them. A thread more has to earn
its keep: it takes a core from the reader, from decoders, and from whoever else is there.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

import numpy as np

from executor.allocator import usable_cores
from executor.threads import ComputeThreads
from planner.documents import Event, ModelSpec, ThreadRatio, ThreadTimes, ThreadUse
from planner.documents.threads import Threaded
from profiler.bench import Bench
from profiler.compute import Cell
from profiler.curves import figure
from profiler.layout import BenchPlan, Layout
from profiler.others import quietly
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = ["candidates", "choose", "given_threads", "measure_threads"]

Size = tuple[Threaded, int]
"""A kind of operation and its rows."""

EARNED = 1.05
"""Twice as many threads are used where they are faster by more than this."""

_KINDS: tuple[Threaded, ...] = get_args(Threaded)
_CELLS = (
    ((1, None, 1), (4, None, 2), (16, None, 8), (64, None, 32)),
    ((8, 32, 128),),
)
"""Passes of decode and prefill: sequences, tokens of each prompt, rows of most experts (of few
experts each has more)."""
_CONTEXT = 128
_HELD_BYTES = 256 << 20
"""Weights that are computed with in turn: more than the processor's caches hold."""
_LEAST, _MOST = 3, 40
"""Passes with each number of threads."""


def candidates(cores: int) -> tuple[int, ...]:
    """Powers of two below so many cores, and all of them."""
    return (*(1 << power for power in range((cores - 1).bit_length())), cores)


def given_threads(count: int) -> ThreadTimes:
    """So many for everything.

    Raises
    ------
    OptionError
        If there are none, or more than this process has cores.
    """
    cores = usable_cores()
    if not 1 <= count <= cores:
        raise OptionError(
            f"{counted(count, 'thread')} cannot compute here: this process may use {cores} of the "
            f"machine's cores, so give 1 to {cores}, or none, and it is measured what is best"
        )
    return ThreadTimes(ThreadUse(count, dict.fromkeys(_KINDS, 1) if count > 1 else {}))


def choose(ratios: Mapping[int, Mapping[Size, float]]) -> ThreadUse:
    """The best number of threads for large operations, and from which size on they are large.

    Parameters
    ----------
    ratios
        By number of threads: how many times as long one takes, by kind and rows.

    Returns
    -------
    ThreadUse
        Of each number and each kind, the larger sizes are those that together gain most: the
        logarithms of their ratios, less those of ``EARNED`` for each doubling. The number whose
        gains are largest in all is taken; of equals, fewer threads and fewer sizes.
    """
    best, most = ThreadUse(1), 0.0
    for threads in sorted(ratios):
        price = math.log2(threads) * math.log(EARNED)
        gains: defaultdict[Threaded, list[tuple[int, float]]] = defaultdict(list)
        for (kind, rows), ratio in sorted(ratios[threads].items()):
            gains[kind].append((rows, math.log(ratio) - price))
        several: dict[Threaded, int] = {}
        total = 0.0
        for kind, own in gains.items():
            least, gain = _cut(own)
            if least is not None:
                several[kind] = least
                total += gain
        if total > most:
            best, most = ThreadUse(threads, several), total
    return best


def _cut(gains: Sequence[tuple[int, float]]) -> tuple[int | None, float]:
    """Of (rows, gain), ascending: the rows from which on the sum is largest, and that sum."""
    best: tuple[int | None, float] = None, 0.0
    total = 0.0
    for rows, gain in reversed(gains):
        total += gain
        if total > best[1]:
            best = rows, total
    return best


def measure_threads(
    model: ModelSpec, memory_bytes: int, make: Callable[[BenchPlan], Bench], cell_ns: int
) -> ThreadTimes | None:
    """Measure and choose.

    Parameters
    ----------
    model, memory_bytes
        The whole model, and the device budget.
    make
        Makes a bench.
    cell_ns
        For each kind of pass, four times so long (three passes of each number at least, if
        they are not too long).

    Returns
    -------
    ThreadTimes or None
        None where the budget holds no bench to measure on.
    """
    counts = candidates(usable_cores())
    if len(counts) == 1:
        return ThreadTimes(ThreadUse(1))
    found: defaultdict[tuple[int, str, int], list[float]] = defaultdict(list)
    for wanted in _CELLS:
        cells = [(_cell(model, *sizes[:2]), sizes[2]) for sizes in wanted]
        fitted, plan = _fitting(model, memory_bytes, cells)
        if plan is None:
            continue
        with make(plan) as bench:
            bench.stream(on=True)
            for cell, rows in fitted:
                run = partial(_measure, bench, cell, rows, counts, 4 * cell_ns)
                for size, values in quietly(run).items():
                    found[size] += values
            bench.stream(on=False)
    if not found:
        return None
    ratios = [
        ThreadRatio(kind, rows, threads, figure(values))  # type: ignore[arg-type]
        for (threads, kind, rows), values in sorted(found.items())
    ]
    by_count: defaultdict[int, dict[Size, float]] = defaultdict(dict)
    for one in ratios:
        if one.kind != "copy":
            by_count[one.threads][one.kind, one.rows] = one.ratio.value
    return ThreadTimes(choose(by_count), tuple(ratios))


def _cell(model: ModelSpec, sequences: int, prompt: int | None) -> Cell:
    length = min(prompt or _CONTEXT, model.max_context - 1)
    return Cell(sequences, None if prompt is None else length, length, bool(model.encoder))


def _fitting(
    model: ModelSpec, memory_bytes: int, cells: Sequence[tuple[Cell, int]]
) -> tuple[Sequence[tuple[Cell, int]], BenchPlan | None]:
    """The cells that fit, the largest of which sets the bench: one that copies, with a head, or
    without, or one that does not copy."""
    layout = Layout(model, memory_bytes)
    for end in range(len(cells), 0, -1):
        workload = cells[end - 1][0].workload
        plan = layout.streaming_computed(workload, _HELD_BYTES)
        if plan is None and end == 1:
            plan = layout.plan(workload)
        if plan is not None:
            return cells[:end], plan
    return (), None


def _measure(
    bench: Bench,
    cell: Cell,
    rows: int,
    counts: Sequence[int],
    budget_ns: int,
) -> dict[tuple[int, str, int], list[float]]:
    """Rounds of one pass with each number of threads; each round's ratios to one thread, by number,
    kind and rows."""
    found: defaultdict[tuple[int, str, int], list[float]] = defaultdict(list)
    passes, past = cell.counts()
    tiles = bench.plan.policy.resident_head_tiles
    uses = {count: ComputeThreads(given_threads(count).use) for count in counts}
    begun = time.perf_counter_ns()
    for turn in range(_MOST + 1):
        times: dict[int, dict[tuple[str, int], float]] = {}
        for count in counts if turn % 2 else reversed(counts):
            bench.device.operations.threads = uses[count]
            events = bench.run(passes, past, rows, head_tiles=tiles, prompt=cell.behind)
            times[count] = _medians(events, cell.tokens)
        if turn == 0:
            # libraries choose their kernels, and the channel fills its slots
            continue
        for count in counts[1:]:
            for size in times[1].keys() & times[count].keys():
                found[count, *size].append(times[1][size] / times[count][size])
        spent = time.perf_counter_ns() - begun
        if spent > budget_ns and (turn >= _LEAST or spent > 3 * budget_ns):
            break
    return found


def _medians(events: Sequence[Event], tokens: int) -> dict[tuple[str, int], float]:
    """Each size's median duration in one pass; of copies, the time of a byte."""
    durations: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    copied = copying = 0
    for event in events:
        took = max(event.end_ns - event.start_ns, 1)
        if event.channel != "compute":
            copied, copying = copied + event.size_bytes, copying + took
        elif event.kind in _KINDS:
            durations[event.kind, event.rows].append(took)
    found = {size: float(np.median(took)) for size, took in durations.items()}
    if copied:
        found["copy", tokens] = copying / copied
    return found
