"""Parts of a page about plans and runs: what ``page.js`` draws, tables, bars.

All of it is HTML without style attributes, so that it holds under a strict content policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from moeplan.output import human_bytes, human_time
from moeplan.words import PURPOSE_WORDS
from planner.documents import ModelSpec, Plan, Timeline, Trace
from planner.documents.timeline import EventKind

__all__ = [
    "KIND_GROUPS",
    "MOST_EVENTS",
    "KindColumn",
    "card",
    "expert_cells",
    "expert_section",
    "kind_table",
    "memory_stacks",
    "page_data",
    "timeline_section",
    "timeline_track",
]

MOST_EVENTS = 60_000
"""Most events of one timeline that go into a page; of a longer one its first passes."""

_GROUPS = (
    "attention",
    "experts",
    "router, shared parts, combine",
    "head, embedding, sampling",
    "bubble: compute waits",
    "copy: dense parts, KV",
    "copy: ahead of the router",
    "copy: on demand",
    "copy: head tiles",
)
KIND_GROUPS: dict[EventKind, int] = {
    "attention": 0,
    "cross_attention": 0,
    "write_kv": 0,
    "expert": 1,
    "host_expert": 1,
    "router": 2,
    "dense_mlp": 2,
    "shared_expert": 2,
    "combine": 2,
    "embed": 3,
    "head": 3,
    "sample": 3,
    "wait_dense": 4,
    "wait_kv": 4,
    "wait_expert": 4,
    "wait_head": 4,
    "copy_dense": 5,
    "copy_kv": 5,
    "copy_prefetch": 6,
    "copy_demand": 7,
    "copy_head": 8,
}
"""Colour group of each event kind, an index into the page's legend."""

_KINDS: list[str] = list(KIND_GROUPS)
_LANES = ("compute", "cpu", "disk", "h2d", "d2h")


@dataclass(frozen=True, slots=True)
class KindColumn:
    """One column of ``kind_table``: its name, its bars' class, the time of each kind."""

    name: str
    look: str
    duration_ns: Mapping[EventKind, int]


def timeline_track(
    name: str, timeline: Timeline, head_layer: int | None
) -> tuple[dict[str, Any], bool]:
    """Columns of a timeline for the script, of as many whole passes as fit.

    Parameters
    ----------
    name
        Above the track.
    timeline
        With at least one event.
    head_layer
        What the head's events call their layer; None: it is found by their kind.

    Returns
    -------
    dict, bool
        The columns, and whether passes were left out.
    """
    events = sorted(timeline.events(), key=lambda event: event.start_ns)
    cut = len(events) > MOST_EVENTS
    if cut:
        last = events[MOST_EVENTS].pass_index
        events = [event for event in events if event.pass_index < last] or events[:MOST_EVENTS]
    lanes = [lane for lane in _LANES if lane == "compute" or any(e.channel == lane for e in events)]
    spans: dict[int, tuple[int, int]] = {}
    for event in events:
        if event.channel == "compute":
            start, end = spans.get(event.pass_index, (event.start_ns, event.end_ns))
            spans[event.pass_index] = (min(start, event.start_ns), max(end, event.end_ns))
    if head_layer is None:
        head_layer = max((e.layer for e in events if e.kind == "head"), default=-2)
    track = {
        "name": name,
        "lanes": lanes,
        "head": head_layer,
        "end": max(event.end_ns for event in events),
        "passes": [[index, *span] for index, span in sorted(spans.items())],
        "events": {
            "kind": [_KINDS.index(event.kind) for event in events],
            "lane": [lanes.index(event.channel) for event in events],
            "pass": [event.pass_index for event in events],
            "layer": [event.layer for event in events],
            "item": [event.item for event in events],
            "start": [event.start_ns for event in events],
            "span": [event.end_ns - event.start_ns for event in events],
            "rows": [event.rows for event in events],
            "bytes": [event.size_bytes for event in events],
        },
    }
    return track, cut


def timeline_section(kept: str) -> str:
    """Where the script draws the tracks, with its buttons; ``kept`` says what is left out."""
    template = (files("moeplan") / "page_timeline.html").read_text(encoding="utf-8")
    return template.replace("{{kept}}", escape(kept))


def page_data(tracks: Sequence[dict[str, Any]], experts: dict[str, Any] | None) -> str:
    """What the script reads, as text for a script element."""
    data = {
        "tracks": tracks,
        "groups": _GROUPS,
        "kinds": [[kind, group] for kind, group in KIND_GROUPS.items()],
        "experts": experts,
    }
    # "<" is escaped, so that no text in the data can end the script element
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def card(value: str, label: str) -> str:
    """A figure and what it is."""
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def kind_table(columns: Sequence[KindColumn], *, judged: bool) -> str:
    """Time of each kind of operation, one column beside the other.

    Parameters
    ----------
    columns
        One or two.
    judged
        Whether the second one's ratio to the first says something.
    """
    kinds = [kind for kind in KIND_GROUPS if any(one.duration_ns.get(kind) for one in columns)]
    most = max([value for one in columns for value in one.duration_ns.values()], default=0) or 1
    ratios = judged and len(columns) == 2
    ratio = " / ".join(escape(one.name) for one in reversed(columns))
    head = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in columns)
    if ratios:
        head += f'<th scope="col" title="{ratio}">ratio</th>'
    rows = []
    for kind in kinds:
        times = [one.duration_ns.get(kind, 0) for one in columns]
        cells = "".join(f"<td>{human_time(value)}</td>" for value in times)
        if ratios:
            cells += f"<td>{times[1] / times[0]:.2f}</td>" if times[0] else "<td>–</td>"
        meters = "".join(
            f'<svg class="meter" aria-hidden="true"><rect class="{one.look}" height="6" rx="3" '
            f'width="{100 * value / most:.2f}%"/></svg>'
            for one, value in zip(columns, times, strict=True)
        )
        name = escape(kind.replace("_", " "))
        rows.append(f'<tr><td>{name}</td>{cells}<td class="bars">{meters}</td></tr>')
    legend = "".join(f'<li><i class="{one.look}"></i>{escape(one.name)}</li>' for one in columns)
    if ratios:
        legend += f"<li>ratio: {ratio}</li>"
    return (
        "<section><h2>Where the time goes</h2>"
        '<div class="wide" role="region" aria-label="Where the time goes" tabindex="0">'
        '<table class="kinds"><thead><tr><th scope="col">operation</th>'
        f"{head}<td></td></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<ul class="legend">{legend}</ul></section>'
    )


_PURPOSE_COLOURS = (0, 1, 6, 3, 2, 8, 5, 7, 4)


def memory_stacks(plan: Plan, title: str = "Memory") -> str:
    """A stacked bar and its legend for each tier: what takes how much at the peak."""
    parts = []
    for tier, account in plan.memory.items():
        sizes = [(name, size) for name, size in account.by_purpose.items() if size]
        sizes.sort(key=lambda item: -item[1])
        whole = max(account.capacity_bytes, account.peak_bytes, 1)
        bar, legend, at = [], [], 0.0
        for index, (name, size) in enumerate(sizes):
            look = f"c{_PURPOSE_COLOURS[index % len(_PURPOSE_COLOURS)]}"
            label = escape(f"{PURPOSE_WORDS.get(name, name)}: {human_bytes(size)}")
            share = 100 * size / whole
            bar.append(
                f'<rect class="{look}" x="{at:.3f}%" width="{share:.3f}%" height="100%">'
                f"<title>{label}</title></rect>"
            )
            legend.append(f'<li><i class="{look}"></i>{label}</li>')
            at += share
        free = account.capacity_bytes - account.peak_bytes
        legend.append(f'<li><i class="free"></i>free: {human_bytes(free)}</li>')
        said = escape(
            f"{title}: {tier}, {human_bytes(account.peak_bytes)} of "
            f"{human_bytes(account.capacity_bytes)} at its peak"
        )
        parts.append(
            f'<h2>{said}</h2><svg class="stack" role="img" aria-label="{said}">{"".join(bar)}</svg>'
            f'<ul class="legend">{"".join(legend)}</ul>'
        )
    return "".join(parts)


def expert_cells(plan: Plan, trace: Trace | None, model: ModelSpec | None) -> dict[str, Any] | None:
    """Tokens of each expert in the timeline, and how the plan serves it; None without experts."""
    timeline = trace.timeline if trace is not None else plan.predicted.timeline
    tokens: dict[int, dict[int, int]] = {}
    for event in timeline.events():
        if event.kind == "expert":
            layer = tokens.setdefault(event.layer, {})
            layer[event.item] = layer.get(event.item, 0) + event.rows
    rows = []
    for index, policy in enumerate(plan.policy.layers):
        counted = tokens.get(index, {})
        known = max([-1, *policy.resident, *policy.prefetch, *counted]) + 1
        number = model.layers[index].experts if model is not None else known
        if number:
            resident, ahead = set(policy.resident), set(policy.prefetch)
            marks: Sequence[str] = [
                "r" if e in resident else "p" if e in ahead else "-" for e in range(number)
            ]
            rows.append((index, [counted.get(e, 0) for e in range(number)], "".join(marks)))
    if not rows:
        return None
    most = max(max(counts) for _, counts, _ in rows) or 1
    return {
        "columns": max(len(counts) for _, counts, _ in rows),
        "unit": f"token rows {'measured' if trace is not None else 'predicted'}",
        "rows": [
            {
                "layer": index,
                "tokens": counts,
                "share": [round(count / most, 3) for count in counts],
                "mark": marks,
            }
            for index, counts, marks in rows
        ],
    }


def expert_section(experts: dict[str, Any] | None) -> str:
    """Where the script draws ``expert_cells``, with words on how to read it."""
    if experts is None:
        return ""
    return (
        "<section><h2>Experts</h2>"
        '<p class="soft">A row a layer, a cell an expert: the warmer, the more tokens it served '
        "in the passes shown. Framed (small ones: a bar below): stays in memory. Corner (a bar "
        "above): a candidate to be copied before the router has spoken. The others are copied on "
        "demand.</p>"
        '<div class="stage"><canvas id="heat" role="img" aria-label="Experts by layer"></canvas>'
        '<div class="tip" id="heattip"></div></div></section>'
    )
