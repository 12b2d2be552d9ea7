"""One timeline format for predicted and measured, and the trace document of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from planner.documents.base import (
    STRICT,
    Added,
    Bytes,
    Count,
    Document,
    Hash,
    Keyed,
    Nanoseconds,
    Positive,
)
from planner.documents.inputs import Inputs
from planner.documents.model import FormName

__all__ = ["Event", "EventKind", "ServedAs", "Timeline", "Trace", "TraceTotals", "on_compute"]

EventKind = Literal[
    "embed",
    "attention",
    "cross_attention",
    "write_kv",
    "router",
    "dense_mlp",
    "shared_expert",
    "expert",
    "combine",
    "head",
    "sample",
    "copy_dense",
    "copy_kv",
    "copy_prefetch",
    "copy_demand",
    "copy_head",
    "wait_dense",
    "wait_kv",
    "wait_expert",
    "wait_head",
    "host_expert",
]
ChannelName = Literal["compute", "disk", "h2d", "d2h", "cpu"]
ServedAs = Literal["resident", "cached", "prefetched", "on_demand", "on_host"]


def on_compute(kind: str) -> bool:
    """Whether a kind of event takes the device's time: work and waits, no copy and no host."""
    return not kind.startswith(("copy_", "host_"))


class Event(NamedTuple):
    """One row of a timeline.

    ``layer`` is the number of layers for the head, and -1 for the embedding; ``item`` is the
    expert, the head tile or the batch, -1 for none; ``size_bytes`` is 0 for compute, but for what
    ``write_kv`` writes; ``rows`` is 0 for copies.
    ``cross_attention`` is a decoder's to its prompt, with what it makes to keep of a new one.
    ``write_kv`` takes what a layer's attention added to KV to the tier below, ``copy_kv`` brings
    those of one batch by themselves, and compute waits for that in ``wait_kv``.
    ``wait_*`` rows are the bubbles: compute idle inside a pass.
    ``host_expert`` is an expert's computation in host memory, on the channel ``cpu``.
    """

    kind: str
    channel: str
    pass_index: int
    layer: int
    item: int
    start_ns: int
    end_ns: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events, column by column (all of one length), times from the start of the run."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    kind: tuple[EventKind, ...]
    channel: tuple[ChannelName, ...]
    pass_index: tuple[Count, ...]
    layer: tuple[Annotated[int, Field(ge=-1, le=1 << 20)], ...]
    item: tuple[Annotated[int, Field(ge=-1, le=1 << 20)], ...]
    start_ns: tuple[Nanoseconds, ...]
    end_ns: tuple[Nanoseconds, ...]
    rows: tuple[Count, ...]
    size_bytes: tuple[Bytes, ...]

    def __post_init__(self) -> None:
        if len({len(getattr(self, field)) for field in Event._fields}) != 1:
            raise ValueError("the columns differ in length")
        if any(end < start for start, end in zip(self.start_ns, self.end_ns, strict=True)):
            raise ValueError("an event ends before it starts")

    @classmethod
    def of(cls, events: list[Event]) -> Timeline:
        """From rows."""
        columns = list(zip(*events, strict=True)) if events else [()] * len(Event._fields)
        return cls(*columns)

    def events(self) -> Iterator[Event]:
        """As rows."""
        columns = (getattr(self, field) for field in Event._fields)
        return (Event(*row) for row in zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class TraceTotals:
    """Sums over a whole run, whether or not each of its events was kept.

    ``requests`` is how many prompts were run; None in traces of an older moeplan. ``served`` counts
    active experts by how they were met, over all stages of all passes. ``embedding_bytes`` of
    ``bytes_read`` were rows of the embedding; None in traces of an older moeplan.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    wall_ns: Nanoseconds
    prefill_ns: Nanoseconds
    decode_ns: Nanoseconds
    prompt_tokens: Count
    new_tokens: Count
    passes: Count
    bytes_read: Bytes
    wasted_prefetch_bytes: Bytes
    bubble_inter_layer_ns: Nanoseconds
    bubble_intra_layer_ns: Nanoseconds
    duration_by_kind_ns: Keyed[EventKind, Nanoseconds]
    count_by_kind: Keyed[EventKind, Count]
    pass_ns: tuple[Nanoseconds, ...]
    device_peak_bytes: Bytes
    device_budget_bytes: Bytes
    process_peak_bytes: Bytes
    requests: Count | None = None
    served: Keyed[ServedAs, Count] = field(default_factory=dict)
    embedding_bytes: Added[Bytes] = None


@dataclass(frozen=True)
class Trace(Document):
    """What a run did. ``timeline`` holds the first passes (``kept_passes``) event by event.

    ``reference_ns`` are durations of a fixed operation just before and after the run, the same that
    a profile repeats; empty in traces of an older moeplan. ``inputs`` are those of its plan, and
    copies were made in pieces of ``chunk_bytes``; None in such traces. ``forms`` are those of the
    plan's experts, layer by layer (nothing where all are as in the checkpoint), of a store that has
    several; None with any other store, and in such traces. ``raw`` are the experts that were copied
    as they are, layer by layer, of a store that has both; None likewise.
    """

    kind: ClassVar[str] = "trace"
    sealed: ClassVar[bool] = True

    plan_hash: Hash
    device: str
    paced_bytes_per_second: int | None
    kept_passes: Count
    totals: TraceTotals
    timeline: Timeline
    reference_ns: tuple[Nanoseconds, ...] = ()
    inputs: Inputs | None = None
    chunk_bytes: Positive | None = None
    forms: Added[tuple[tuple[FormName, ...], ...]] = None
    raw: Added[tuple[tuple[Count, ...], ...]] = None
