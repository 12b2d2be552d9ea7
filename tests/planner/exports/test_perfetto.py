"""Chrome trace events of timelines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.documents import Event, Plan, Timeline, Trace, TraceTotals, document_hash
from planner.exports import Sources, export
from solvers.errors import StaleError

EVENTS = [
    Event("attention", "compute", 0, 0, 1, 0, 1_500, 4, 0),
    Event("wait_expert", "compute", 0, 0, 3, 1_500, 4_001, 0, 0),
    Event("expert", "compute", 0, 0, 3, 4_001, 6_000, 2, 0),
    # a prefetch that is paused for a copy on demand, and goes on
    Event("copy_prefetch", "disk", 0, 1, 5, 0, 5_000, 0, 8192),
    Event("copy_demand", "disk", 0, 0, 3, 1_500, 4_000, 0, 4096),
    Event("copy_dense", "disk", 1, 0, -1, 5_000, 5_500, 0, 64),
]


@pytest.fixture(scope="module")
def plan(sources_of: Callable[..., Sources]) -> Plan:
    plan = sources_of((1, 1)).plan
    return replace(plan, predicted=replace(plan.predicted, timeline=Timeline.of(EVENTS)))


def trace_of(plan: Plan, events: list[Event]) -> Trace:
    totals = TraceTotals(*(0,) * 10, {}, {}, (), 0, 0, 0)  # type: ignore[arg-type]
    return Trace(document_hash(plan), "cpu", None, 2, totals, Timeline.of(events))


def slices(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in body["traceEvents"] if event["ph"] == "X"]


def named(body: dict[str, Any], kind: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in body["traceEvents"]
        if event["ph"] == "M" and event["name"] == kind
    }


def test_by_hand(plan: Plan) -> None:
    body = json.loads(export("perfetto", Sources(plan)).text)
    tracks = named(body, "thread_name")
    seen = {
        (tracks[event["pid"], event["tid"]], event["name"], event["ts"], event["dur"])
        for event in slices(body)
    }
    # times in microseconds
    assert seen == {
        ("compute", "attention", 0.0, 1.5),
        ("compute", "wait expert", 1.5, 2.501),
        ("compute", "expert", 4.001, 1.999),
        ("disk", "copy prefetch", 0.0, 5.0),
        ("disk (2)", "copy demand", 1.5, 2.5),
        ("disk", "copy dense", 5.0, 0.5),
    }
    assert named(body, "process_name") == {(1, 0): "predicted"}
    (prefetch,) = [event for event in slices(body) if event["name"] == "copy prefetch"]
    assert prefetch["args"] == {"pass": 0, "layer": 1, "item": 5, "bytes": 8192}


def test_measured_is_a_second_process(plan: Plan) -> None:
    later = [event._replace(end_ns=event.end_ns + 1) for event in EVENTS[:1]]
    body = export("perfetto", Sources(plan, trace=trace_of(plan, later))).body
    assert named(body, "process_name") == {(1, 0): "predicted", (2, 0): "measured"}
    (event,) = [event for event in slices(body) if event["pid"] == 2]
    assert (event["name"], event["ts"], event["dur"]) == ("attention", 0.0, 1.501)
    assert "2 predicted and 1 measured" in body["cannot_express"][1]


def test_a_trace_of_another_plan_is_refused(plan: Plan) -> None:
    trace = replace(trace_of(plan, EVENTS), plan_hash="0" * 64)
    with pytest.raises(StaleError, match="another plan's run"):
        export("perfetto", Sources(plan, trace=trace))


def drawn_events() -> st.SearchStrategy[list[Event]]:
    one = st.builds(
        lambda kind, channel, start, length: Event(
            kind, channel, 0, 0, -1, start, start + length, 0, 0
        ),
        st.sampled_from(["attention", "copy_demand"]),
        st.sampled_from(["compute", "disk", "h2d", "d2h", "cpu"]),
        st.integers(0, 50),
        st.integers(0, 20),
    )
    return st.lists(one, max_size=25)


@given(events=drawn_events())
@settings(max_examples=60)
def test_nothing_is_lost_and_nothing_overlaps(plan: Plan, events: list[Event]) -> None:
    predicted = replace(plan.predicted, timeline=Timeline.of(events))
    body = export("perfetto", Sources(replace(plan, predicted=predicted))).body
    made = slices(body)
    assert [event["ts"] for event in made] == sorted(event["ts"] for event in made)
    tracks = named(body, "thread_name")
    assert {(event["pid"], event["tid"]) for event in made} == set(tracks)
    by_track: dict[Any, list[Any]] = defaultdict(list)
    for event in made:
        assert tracks[event["pid"], event["tid"]].split(" ")[0] == event["cat"]
        by_track[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-9
    wanted = sorted((event.channel, event.start_ns, event.end_ns) for event in events)
    assert wanted == sorted(
        (event["cat"], round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"])))
        for event in made
    )
