"""Contention: what copying costs computation, and computing costs copies.

Both channels share cores, memory bandwidth and the interpreter. The same passes are run in turn
with the channel at rest and with it busy, so that the machine's drift touches both alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.documents import Event, Figure
from planner.documents.base import Source
from profiler.bench import Bench
from profiler.compute import Cell
from profiler.curves import figure

__all__ = ["Contention", "Turn", "contend", "slowdowns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Some passes of one cell, with the channel busy or at rest.

    Attributes
    ----------
    compute_ns
        Median time of each operation kind in one pass, summed over the pass.
    busy_share
        Share of the passes' time in which the channel copied.
    rate
        Bytes/s of the copies; None at rest.
    """

    compute_ns: dict[str, float]
    busy_share: float
    rate: float | None


@dataclass(frozen=True, slots=True)
class Contention:
    """Ratios of at least 1, over all cells."""

    copy_slowdown: Figure
    compute_slowdown: Figure


def contend(
    bench: Bench, cell: Cell, rows: int, passes: int, turns: int
) -> list[tuple[Turn, Turn]]:
    """Pairs of (at rest, busy) of one cell."""
    return [
        (_turn(bench, cell, rows, passes, on=False), _turn(bench, cell, rows, passes, on=True))
        for _ in range(turns)
    ]


def _turn(bench: Bench, cell: Cell, rows: int, passes: int, *, on: bool) -> Turn:
    bench.stream(on=on)
    counts, past = cell.counts()
    totals: defaultdict[str, list[int]] = defaultdict(list)
    copies: list[Event] = []
    begin, end = 0, 0
    for turn in range(passes + 1):
        events = bench.run(counts, past, rows)
        if turn == 0:
            # the channel fills its slots at first, whatever compute does
            continue
        compute = [event for event in events if event.channel == "compute"]
        for kind in {event.kind for event in compute}:
            totals[kind].append(
                sum(event.end_ns - event.start_ns for event in compute if event.kind == kind)
            )
        copies += [event for event in events if event.channel == "disk"]
        begin = begin or compute[0].start_ns
        end = compute[-1].end_ns
    busy = sum(max(min(event.end_ns, end) - max(event.start_ns, begin), 0) for event in copies)
    whole = sum(event.end_ns - event.start_ns for event in copies)
    moved = sum(event.size_bytes for event in copies)
    return Turn(
        {kind: float(np.median(values)) for kind, values in totals.items()},
        busy / max(end - begin, 1),
        moved * 1e9 / whole if whole else None,
    )


def slowdowns(
    pairs: Sequence[tuple[Turn, Turn]], alone_rate: float, source: Source = "measured"
) -> Contention:
    """Both ratios as they would be with the other channel busy all the time.

    Parameters
    ----------
    pairs
        (At rest, busy).
    alone_rate
        Bytes/s of copies of the same size with nothing beside them.
    source
        What the figures are tagged with.
    """
    copy, compute = [], []
    for rest, busy in pairs:
        if busy.rate:
            copy.append(max(alone_rate / busy.rate, 1.0))
        kinds = [kind for kind in rest.compute_ns if not kind.startswith("wait_")]
        before = sum(rest.compute_ns[kind] for kind in kinds)
        after = sum(busy.compute_ns.get(kind, 0.0) for kind in kinds)
        if before and busy.busy_share > 0.05:
            compute.append(max(1 + (after / before - 1) / min(busy.busy_share, 1.0), 1.0))
    none = Figure(1.0, source, None, 0)
    return Contention(
        figure(copy, source) if copy else none, figure(compute, source) if compute else none
    )
