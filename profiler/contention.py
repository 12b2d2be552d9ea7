"""Contention: what copying costs computation, and computing costs copies.

Both channels share cores, memory bandwidth and the interpreter. The same passes are run in turn
with the channel at rest and with it busy, so that the machine's drift touches both alike.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.documents import Event, Figure
from planner.documents.base import Source
from profiler.bench import Bench
from profiler.compute import Cell
from profiler.correct import weight
from profiler.curves import figure

__all__ = [
    "LEAST_SHARE",
    "Contention",
    "Turn",
    "beside",
    "contend",
    "kind_slowdowns",
    "overlap",
    "slowdowns",
]

LEAST_SHARE = 0.2
"""Where less of computation lies beside copies, a ratio would be noise blown up."""
_LEAST_COMMON = 1.001
"""The planner has the slowdowns of single kinds as parts of the common one, which so is above 1."""


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
    """Ratios of at least 1, over all cells."""

    copy_slowdown: Figure
    compute_slowdown: Figure


def contend(
    bench: Bench, cell: Cell, rows: int, passes: int, turns: int, least_ns: int = 0
) -> list[tuple[Turn, Turn]]:
    """Pairs of (at rest, busy) of one cell: so many turns, and more until the time is up."""
    pairs: list[tuple[Turn, Turn]] = []
    begun = time.perf_counter_ns()
    while len(pairs) < turns or time.perf_counter_ns() - begun < least_ns:
        rest = _turn(bench, cell, rows, passes, on=False)
        pairs.append((rest, _turn(bench, cell, rows, passes, on=True)))
    return pairs


def _turn(bench: Bench, cell: Cell, rows: int, passes: int, *, on: bool) -> Turn:
    bench.stream(on=on)
    counts, past = cell.counts()
    tiles = bench.plan.policy.resident_head_tiles
    totals: defaultdict[str, list[int]] = defaultdict(list)
    compute: list[Event] = []
    copies: list[Event] = []
    for turn in range(passes + 1):
        events = bench.run(counts, past, rows, head_tiles=tiles, prompt=cell.behind)
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
        common = np.minimum(ends, event.end_ns) - np.maximum(starts, event.start_ns)
        shared[event.kind] += int(np.maximum(common, 0).sum())
    return {kind: shared[kind] / max(whole[kind], 1) for kind in whole}


def overlap(events: Iterable[Event], others: Sequence[Event]) -> float:
    """Share of the events' time, of all kinds alike, in which one of the others runs."""
    return beside([event._replace(kind="") for event in events], others).get("", 0.0)


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
    copy = [alone_rate / busy.rate for _, busy in pairs if busy.rate]
    return Contention(_at_least(1.0, copy, source), _common(pairs, source))


def _common(pairs: Iterable[tuple[Turn, Turn]], source: Source) -> Figure:
    ratios = [
        _alone_ratio(rest.total_ns, busy.total_ns, busy.beside_share)
        for rest, busy in pairs
        if rest.total_ns and busy.beside_share > LEAST_SHARE
    ]
    return _at_least(_LEAST_COMMON, ratios, source)


def kind_slowdowns(
    pairs: Sequence[tuple[Turn, Turn]], source: Source = "measured"
) -> dict[str, Figure]:
    """Each kind's ratio, of at least 1, with the channel busy beside all computation.

    The planner knows one share of computation that lies beside copies and takes it for that of
    each kind. So do these: a kind's own share is another, and divided by a small one its ratio
    would be noise blown up, and applied by a larger one too much. What few pairs say of a kind is
    drawn to what they say of all, as in ``profiler.correct``.
    """
    common = _common(pairs, source).value
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for rest, busy in pairs:
        share = busy.beside_share
        if share > LEAST_SHARE:
            for kind, before in rest.compute_ns.items():
                if before:
                    kinds[kind].append(_alone_ratio(before, busy.compute_ns[kind], share))
    found = {kind: _at_least(1.0, ratios, source) for kind, ratios in kinds.items()}
    return {
        kind: replace(one, value=common * (one.value / common) ** weight(one.samples))
        for kind, one in found.items()
    }


def _at_least(least: float, ratios: Sequence[float], source: Source) -> Figure:
    """Their median, or ``least``. Single ones may lie below: cut off one by one they would leave
    only what noise lengthens."""
    if not ratios:
        return Figure(1.0, source, None, 0)
    found = figure(ratios, source)
    return replace(found, value=max(found.value, least))


def _alone_ratio(before: float, after: float, share: float) -> float:
    """How much longer it would take beside a channel that never rests."""
    return 1.0 + (after / before - 1.0) / share
