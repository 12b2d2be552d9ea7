"""Contention: what copying costs computation, and computing costs copies.

Both channels share cores, memory bandwidth and the interpreter. The same passes are run in turn
with the channel at rest and with it busy, so that the machine's drift touches both alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.documents import Event, Figure
from planner.documents.base import Source
from profiler.bench import Bench
from profiler.compute import Cell
from profiler.curves import figure

__all__ = ["Contention", "Turn", "beside", "contend", "kind_ratios", "slowdowns"]

_LEAST_SHARE = 0.2
"""Where less of a kind's time lies beside copies, its ratio would be noise blown up."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Some passes of one cell, with the channel busy or at rest.

    Attributes
    ----------
    compute_ns
        Median time of each operation kind in one pass, summed over the pass.
    beside
        Share of each kind's time in which the channel copied.
    rate
        Bytes/s of the copies; None at rest.
    """

    compute_ns: dict[str, float]
    beside: dict[str, float]
    rate: float | None

    @property
    def total_ns(self) -> float:
        """Computation of one pass."""
        return sum(self.compute_ns.values())

    @property
    def beside_share(self) -> float:
        """Share of all computation in which the channel copied."""
        shared = sum(time * self.beside[kind] for kind, time in self.compute_ns.items())
        return shared / max(self.total_ns, 1.0)


@dataclass(frozen=True, slots=True)
class Contention:
    """Ratios of at least 1, over all cells, and computation's kind by kind."""

    copy_slowdown: Figure
    compute_slowdown: Figure
    by_kind: dict[str, Figure]


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
    compute: list[Event] = []
    copies: list[Event] = []
    for turn in range(passes + 1):
        events = bench.run(counts, past, rows, prompt=cell.behind)
        if turn == 0:
            # the channel fills its slots at first, whatever compute does
            continue
        computed = [event for event in events if event.channel == "compute"]
        working = [event for event in computed if not event.kind.startswith("wait_")]
        for kind in {event.kind for event in working}:
            totals[kind].append(
                sum(event.end_ns - event.start_ns for event in working if event.kind == kind)
            )
        compute += working
        copies += [event for event in events if event.channel != "compute"]
    busy = sum(event.end_ns - event.start_ns for event in copies)
    return Turn(
        {kind: float(np.median(values)) for kind, values in totals.items()},
        beside(compute, copies),
        sum(event.size_bytes for event in copies) * 1e9 / busy if busy else None,
    )


def beside(compute: Sequence[Event], copies: Sequence[Event]) -> dict[str, float]:
    """Share of each kind's time that lies beside copies; copies do not overlap each other."""
    starts = np.array(sorted(event.start_ns for event in copies), dtype=np.int64)
    ends = np.array(sorted(event.end_ns for event in copies), dtype=np.int64)
    whole: defaultdict[str, int] = defaultdict(int)
    shared: defaultdict[str, int] = defaultdict(int)
    for event in compute:
        whole[event.kind] += event.end_ns - event.start_ns
        overlap = np.minimum(ends, event.end_ns) - np.maximum(starts, event.start_ns)
        shared[event.kind] += int(np.maximum(overlap, 0).sum())
    return {kind: shared[kind] / max(whole[kind], 1) for kind in whole}


def slowdowns(
    pairs: Sequence[tuple[Turn, Turn]], alone_rate: float, source: Source = "measured"
) -> Contention:
    """All ratios as they would be with the other channel busy all the time.

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
        if rest.total_ns and busy.beside_share > _LEAST_SHARE:
            compute.append(_alone_ratio(rest.total_ns, busy.total_ns, busy.beside_share))
    kinds = kind_ratios(pairs)
    none = Figure(1.0, source, None, 0)
    return Contention(
        figure(copy, source) if copy else none,
        figure(compute, source) if compute else none,
        {kind: figure(ratios, source) for kind, ratios in kinds.items()},
    )


def kind_ratios(pairs: Iterable[tuple[Turn, Turn]], least: float = 1.0) -> dict[str, list[float]]:
    """Ratios of each kind of operation, a pair each where much of its time lies beside copies."""
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for rest, busy in pairs:
        for kind, before in rest.compute_ns.items():
            share = busy.beside.get(kind, 0.0)
            if before and share > _LEAST_SHARE:
                kinds[kind].append(_alone_ratio(before, busy.compute_ns[kind], share, least))
    return kinds


def _alone_ratio(before: float, after: float, share: float, least: float = 1.0) -> float:
    """How much longer it would take beside a channel that never rests."""
    return max(1.0 + (after / before - 1.0) / share, least)
