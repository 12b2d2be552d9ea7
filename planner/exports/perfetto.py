"""Timelines as Chrome trace events, which Perfetto and ``chrome://tracing`` show.

A process is the prediction or the measurement, a track one of its channels. Events of one track
must not overlap there, but copies are paused for others: what overlaps goes to a further track.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from typing import Any

from planner.documents import Event, Plan, Timeline, document_hash
from planner.exports.base import MADE, Export, Sources
from solvers.errors import StaleError

__all__ = ["export"]

_CHANNELS = ("compute", "cpu", "h2d", "d2h", "disk")


def export(sources: Sources) -> Export:
    """A trace; see ``planner.exports.export``.

    Raises
    ------
    StaleError
        If the trace is of another plan's run.
    """
    plan, trace = sources.plan, sources.trace
    if trace is not None and trace.plan_hash != document_hash(plan):
        raise StaleError("plan", "the trace is of another plan's run; give the plan that was run")
    sides = [(1, "predicted", plan.predicted.timeline)]
    if trace is not None:
        sides.append((2, "measured", trace.timeline))
    lost = [
        "the policy (residents, prefetch order, slots), memory and the proof: a trace is times only"
    ]
    passes = [sum(1 for _ in set(timeline.pass_index)) for _, _, timeline in sides]
    lost.append(
        "passes that the documents do not hold event by event: here are "
        + " and ".join(f"{count} {name}" for count, (_, name, _) in zip(passes, sides, strict=True))
    )
    named: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    for process, name, timeline in sides:
        made, tracks = _slices(process, timeline)
        slices += made
        named += _names(process, name, tracks)
    slices.sort(key=lambda one: (one["ts"], one["pid"], one["tid"]))
    body = {
        "kind": MADE,
        "target": "perfetto",
        "plan": document_hash(plan),
        "cannot_express": lost,
        "displayTimeUnit": "ms",
        "otherData": _facts(plan),
        "traceEvents": [*named, *slices],
    }
    return Export("perfetto", json.dumps(body, allow_nan=False) + "\n", body, tuple(lost))


def _facts(plan: Plan) -> dict[str, str]:
    policy, speed = plan.policy, plan.predicted.tokens_per_second
    return {
        "n_batches": str(policy.n_batches),
        "batch_size": str(policy.batch_size),
        "solver": plan.solver,
        "predicted_tokens_per_second": f"{speed.value:.4g} ({speed.low:.4g} to {speed.high:.4g})",
    }


def _slices(process: int, timeline: Timeline) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Events, and the names of the tracks that they lie on."""
    made: list[dict[str, Any]] = []
    tracks: dict[int, str] = {}
    for channel in _CHANNELS:
        first = len(tracks) + 1
        events = sorted(
            (event for event in timeline.events() if event.channel == channel),
            key=lambda event: (event.start_ns, event.end_ns),
        )
        for event, lane in zip(events, _lanes(events), strict=True):
            track = first + lane
            tracks[track] = channel if lane == 0 else f"{channel} ({lane + 1})"
            made.append(_slice(process, track, event))
    return made, tracks


def _lanes(events: list[Event]) -> Iterator[int]:
    """The first of as few lanes as there can be in which nothing overlaps."""
    ends: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = 0
    for event in events:
        while ends and ends[0][0] <= event.start_ns:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if not free:
            heapq.heappush(free, lanes)
            lanes += 1
        lane = heapq.heappop(free)
        heapq.heappush(ends, (event.end_ns, lane))
        yield lane


def _slice(process: int, track: int, event: Event) -> dict[str, Any]:
    """A complete event; times in microseconds, exact to the nanosecond."""
    arguments: dict[str, int] = {"pass": event.pass_index, "layer": event.layer}
    for name, value, nothing in (
        ("item", event.item, -1),
        ("rows", event.rows, 0),
        ("bytes", event.size_bytes, 0),
    ):
        if value != nothing:
            arguments[name] = value
    return {
        "ph": "X",
        "name": event.kind.replace("_", " "),
        "cat": event.channel,
        "pid": process,
        "tid": track,
        "ts": event.start_ns / 1000,
        "dur": (event.end_ns - event.start_ns) / 1000,
        "args": arguments,
    }


def _names(process: int, name: str, tracks: dict[int, str]) -> list[dict[str, Any]]:
    made = [_metadata(process, 0, "process_name", name=name)]
    made.append(_metadata(process, 0, "process_sort_index", sort_index=process))
    for track, channel in sorted(tracks.items()):
        made.append(_metadata(process, track, "thread_name", name=channel))
        made.append(_metadata(process, track, "thread_sort_index", sort_index=track))
    return made


def _metadata(process: int, track: int, kind: str, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": arguments}
