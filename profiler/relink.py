"""Links corrected by the copies that a run made over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.documents import Channel, CostProfile, Event, Hardware, ModelSpec
from planner.memory import aligned
from planner.profiles import Profile
from profiler.correct import scaled_channel, weight
from profiler.observed import Observed, copy_factor
from profiler.seen import Seen, Step, every_other, ratio, took

__all__ = ["COPY", "RAW_COPY", "Link", "links_of", "relinked"]

COPY = "copy"
RAW_COPY = "copy as it is"


@dataclass(frozen=True)
class Link:
    """A link as the profile has it, and a run's copies over it.

    Attributes
    ----------
    kind
        As ``Step.kind``.
    channel, copies
        Of one link; it is not paced.
    chunk_bytes
        Piece of a copy.
    model
        Says how much of a copy is read; of a raw one all is.
    """

    kind: str
    channel: Channel
    copies: tuple[Seen, ...]
    chunk_bytes: int
    model: ModelSpec

    def _alone(self, channel: Channel, event: Event) -> float:
        chunks = -(-event.size_bytes // self.chunk_bytes)
        share = 1.0 if self.kind == RAW_COPY else self._share(event)
        return channel.alone_ns(event.size_bytes * share, chunks)

    def _share(self, event: Event) -> float:
        """Bytes that were read for each that a copy brought: of a dense part those in the store,
        of keys and values behind it all."""
        share = _share(self.model, event)
        if share == 1.0 or event.kind != "copy_dense":
            return share
        whole = self._starts[event.pass_index, event.layer]
        dense = self.model.layers[event.layer].dense_bytes
        return share if whole <= dense else (dense * share + whole - aligned(dense)) / whole

    @cached_property
    def _starts(self) -> Counter[tuple[int, int]]:
        """Bytes of each pass's and layer's copy of a dense part, which may be paused."""
        found: Counter[tuple[int, int]] = Counter()
        for one in self.copies:
            if one.event.kind == "copy_dense":
                found[one.event.pass_index, one.event.layer] += one.event.size_bytes
        return found

    def _takes(self, channel: Channel, copies: Sequence[Seen]) -> int:
        return round(sum(self._alone(channel, one.event) * one.factor for one in copies))

    def _moved(self, copies: Sequence[Seen]) -> Channel:
        if not copies:
            return self.channel
        said = sum(self._alone(self.channel, one.event) for one in copies)
        moved = (sum(one.alone_ns for one in copies) / said) ** weight(len(copies))
        return scaled_channel(self.channel, moved, len(copies))

    def corrected(self) -> Channel:
        """The link faster or slower as a whole: latency and time a byte by one ratio."""
        return self._moved(self.copies)

    def step(self) -> Step:
        """What that does."""
        rest, half = every_other(self.copies, 1), self._moved(every_other(self.copies, 0))
        return Step(
            self.kind,
            len(self.copies),
            took(self.copies),
            self._takes(self.channel, self.copies),
            self._takes(self.corrected(), self.copies),
            ratio(rest, self._takes(half, rest)),
        )


def links_of(
    profile: Profile, run: Observed, chunk_bytes: int, raw: tuple[tuple[int, ...], ...] | None
) -> list[Link]:
    """The links that a run's copies went over, unless they were paced: then they tell of their pace
    only; or have bursts: then they tell as much of those. ``raw``: of a store with both formats,
    which experts were copied as they are, by layer; None where the trace does not say: it then
    tells of no link."""
    costs, model = profile.costs, profile.model
    channel = next((one for one in profile.hardware.channels if one.name != "d2h"), None)
    if channel is None or channel.paced_bytes_per_second is not None or channel.burst is not None:
        return []
    if costs.raw is None:
        return _link(COPY, channel, costs, run, run.copies, chunk_bytes, model)
    if raw is None:
        return []
    plain = [one for one in run.copies if _is_raw(model, raw, one)]
    packed = [one for one in run.copies if not _is_raw(model, raw, one)]
    beside = replace(costs, copy_slowdown=costs.raw.copy_slowdown)
    return [
        *_link(COPY, channel, costs, run, packed, chunk_bytes, model),
        *_link(RAW_COPY, costs.raw.link, beside, run, plain, chunk_bytes, model),
    ]


def _link(
    kind: str,
    channel: Channel,
    costs: CostProfile,
    run: Observed,
    copies: Sequence[Event],
    chunk_bytes: int,
    model: ModelSpec,
) -> list[Link]:
    """All copies lie beside computation, and writes, by one share; nothing where there are none."""
    if not copies:
        return []
    factor = copy_factor(costs, run)
    seen = tuple(Seen(event, kind, factor) for event in copies)
    return [Link(kind, channel, seen, chunk_bytes, model)]


def _share(model: ModelSpec, event: Event) -> float:
    if event.kind == "copy_kv":
        return 1.0  # never compressed
    kinds = {"copy_head": "head", "copy_dense": "dense"}
    return model.stored_share(kinds.get(event.kind, "expert"))  # type: ignore[arg-type]


def _is_raw(model: ModelSpec, raw: tuple[tuple[int, ...], ...], event: Event) -> bool:
    """Whether a copy brought what lies in the store as it is."""
    if event.kind in ("copy_dense", "copy_kv", "copy_head"):
        return _share(model, event) == 1.0
    return event.item in raw[event.layer]


def relinked(
    hardware: Hardware, costs: CostProfile, links: Sequence[Link]
) -> tuple[Hardware, CostProfile]:
    """Both with the links corrected."""
    for link in links:
        moved = link.corrected()
        if link.kind == COPY:
            channels = tuple(moved if one is link.channel else one for one in hardware.channels)
            hardware = replace(hardware, channels=channels)
        elif costs.raw is not None:
            costs = replace(costs, raw=replace(costs.raw, link=moved))
    return hardware, costs
