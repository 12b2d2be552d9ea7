"""What a real run says of the curves: the same operations, as a run meets them.

On a bench weights are resident. In a run most experts and head tiles have just been copied when
they are used, and the next copy is under way: what lies behind the caches is another thing, and so
are the neighbours. Routing is recorded in a real run, so its events are there to be asked.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from planner.documents import OWN, CostProfile, Curve, Event, FormName, Surface
from planner.form_costs import copies_slowdown, expert_curve, slowdown_of
from planner.interval import TILED
from planner.kv import Written, written_layer
from planner.memory import EXPERT_TILE_ROWS, Forms
from profiler.contention import beside, overlap

__all__ = [
    "SURFACES",
    "Observed",
    "SurfaceName",
    "alone_ns",
    "between_passes_ns",
    "copy_factor",
    "slowed",
    "surface_of",
    "written",
]

SurfaceName = Literal["attention_decode", "attention_prefill", "cross_decode", "cross_prefill"]
SURFACES: tuple[SurfaceName, ...] = get_args(SurfaceName)
"""Costs of attention."""


@dataclass(frozen=True)
class Observed:
    """The first passes of a run: the events of its first group.

    Attributes
    ----------
    events
        Of compute and copies.
    passes
        Passes of a group; the first of each is prefill.
    prompt_tokens
        Of the longest prompt.
    head_tiles
        Tiles of the whole head.
    uniform
        Whether all prompts are about as long: only then prefill's attention can be compared.
    encoder
        Layers that are an encoder's, the first ones.
    chunk_bytes
        Piece of a copy, and of a write of all keys and values of a layer.
    forms
        Of each layer's experts, of a store that has several; empty: all are as in the checkpoint.
    lengths
        How many lengths the prompts have: with one, one write brings back in decode what is new of
        a layer's keys and values; else (0: nobody knows) nothing tells how many do.
    ahead
        Whether experts were copied ahead, and so beside most of the computation, in decode.
    """

    events: tuple[Event, ...]
    passes: int
    prompt_tokens: int
    head_tiles: int
    uniform: bool = False
    encoder: int = 0
    chunk_bytes: int = 1 << 20
    forms: Forms = ()
    lengths: int = 0
    ahead: bool = False

    def form(self, event: Event) -> FormName:
        """In which form an operation computes an expert; the checkpoint's own for all others."""
        own = self.forms[event.layer] if self.forms and event.kind == "expert" else ()
        return own[event.item] if own else OWN

    def phase(self, event: Event) -> str:
        """Which phase an event belongs to."""
        return "decode" if event.pass_index % self.passes else "prefill"

    @property
    def working(self) -> list[Event]:
        """Computation, waits left out."""
        return [
            event
            for event in self.events
            if event.channel == "compute" and not event.kind.startswith("wait_")
        ]

    @property
    def copies(self) -> list[Event]:
        """What the copy channel did; a host's computation is none."""
        return [
            event
            for event in self.events
            if event.kind.startswith("copy_") and event.end_ns > event.start_ns
        ]


def surface_of(run: Observed, event: Event) -> tuple[SurfaceName, int, int] | None:
    """Which of the costs' surfaces speaks of an attention, and at which point; None: none does."""
    step = event.pass_index % run.passes
    if event.kind == "cross_attention":
        if step:
            return "cross_decode", event.rows, run.prompt_tokens
        return ("cross_prefill", event.rows, run.prompt_tokens) if run.uniform else None
    if event.kind != "attention":
        return None
    if run.encoder and event.layer >= run.encoder:
        return "attention_decode", event.rows, step + 1
    if step:
        return "attention_decode", event.rows, run.prompt_tokens + step
    sequences = -(-event.rows // run.prompt_tokens)
    return ("attention_prefill", sequences, run.prompt_tokens) if run.uniform else None


def written(run: Observed, event: Event) -> Written:
    """The writes of a ``write_kv``, in chunks, where sequences begin or all are equally long; else
    nothing tells how many they are, and none are given."""
    if run.phase(event) == "prefill" or run.lengths == 1:
        return written_layer(event.size_bytes, run.chunk_bytes)
    return Written(())


def _writing_ns(costs: CostProfile, run: Observed, event: Event, share: float) -> int | None:
    writes = costs.kv_writes
    if writes is None or not event.size_bytes:
        return None
    return written(run, event).total_ns(lambda size: round(writes(size, share)))


def alone_ns(costs: CostProfile, run: Observed, event: Event) -> int | None:
    """What the curves say of an operation with nothing beside it; None where they say nothing."""
    if event.kind in ("attention", "cross_attention"):
        named = surface_of(run, event)
        surface: Surface | None = None if named is None else getattr(costs, named[0])
        return None if named is None or surface is None else surface(*named[1:])
    if event.kind == "write_kv":
        return _writing_ns(costs, run, event, 0.0)
    form = run.form(event)
    curve: Curve | None = (
        costs.curves.get(event.kind)  # type: ignore[call-overload]
        if form == OWN
        else expert_curve(costs, form)
    )
    if curve is None:
        return None
    if event.kind == "head":
        return math.ceil(curve(event.rows) / run.head_tiles)
    if event.kind in TILED:
        return curve.tiled(event.rows, EXPERT_TILE_ROWS)
    return curve(event.rows)


def slowed(costs: CostProfile, run: Observed) -> Iterator[tuple[Event, float]]:
    """Computation, phase by phase, and how much longer copies beside it make each.

    As the planner has it, all computation of a phase lies beside copies by one share.
    """
    copies, working = run.copies, run.working
    for phase in ("prefill", "decode"):
        own = [event for event in working if run.phase(event) == phase]
        share = overlap(own, copies)
        for event in own:
            if event.kind == "write_kv":
                alone, beside = (_writing_ns(costs, run, event, one) for one in (0.0, share))
                yield event, beside / alone if alone and beside else 1.0
                continue
            slowest = slowdown_of(costs, event.kind, phase, run.form(event))
            yield event, 1 + share * (slowest - 1)


def between_passes_ns(costs: CostProfile, runs: Iterable[Observed]) -> int:
    """What a run does between two passes: the median over decode passes, at least 0.

    Sequences grow, end and give their places away. Compute is recorded without gaps, so that it
    counts with the embedding, which comes next; a bench has none of it.
    """
    curve = costs.curves["embed"]
    beyond = [
        event.end_ns - event.start_ns - curve(event.rows)
        for run in runs
        for event in run.events
        if event.kind == "embed" and run.phase(event) == "decode"
    ]
    return max(round(statistics.median(beyond)), 0) if beyond else 0


def copy_factor(costs: CostProfile, run: Observed) -> float:
    """How many times as long as alone copies take: beside computation, and beside writes of keys
    and values by what each of them makes the channel later, at most as long as it lasts."""
    writes, copies = costs.kv_writes, run.copies
    factor = 1 + overlap(copies, run.working) * (copies_slowdown(costs, run.forms) - 1)
    lost = None if writes is None else writes.lost
    took = sum(event.end_ns - event.start_ns for event in copies)
    if lost is None or not took:
        return factor
    wrote = [event for event in run.working if event.kind == "write_kv"]
    shares = beside([event._replace(kind=str(at)) for at, event in enumerate(wrote)], copies)
    later = sum(
        shares.get(str(at), 0.0)
        * min(written(run, event).total_ns(lost), event.end_ns - event.start_ns)
        for at, event in enumerate(wrote)
    )
    return factor * took / max(took - later, 1)
