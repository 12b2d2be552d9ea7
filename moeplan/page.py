"""A plan and its run as one HTML page that needs nothing else: no network, no library.

The page is ``page.html`` with ``page.js``; this module fills in the words, the tables and the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from moeplan.output import human_bytes, human_number, human_time
from moeplan.words import PURPOSE_WORDS, explain_plan, explain_trace, tokens_per_second
from planner.comparable import not_comparable
from planner.documents import Hardware, ModelSpec, Plan, Timeline, Trace

__all__ = ["KIND_GROUPS", "MOST_EVENTS", "build_page"]

MOST_EVENTS = 60_000
"""Most events of one timeline that go into a page; of a longer one its first passes."""

_GROUPS = (
    "attention",
    "experts",
    "router, shared parts, combine",
    "head, embedding, sampling",
    "bubble: compute waits",
    "copy: dense parts",
    "copy: ahead of the router",
    "copy: on demand",
    "copy: head tiles",
)
KIND_GROUPS = {
    "attention": 0,
    "expert": 1,
    "router": 2,
    "dense_mlp": 2,
    "shared_expert": 2,
    "combine": 2,
    "embed": 3,
    "head": 3,
    "sample": 3,
    "wait_dense": 4,
    "wait_expert": 4,
    "wait_head": 4,
    "copy_dense": 5,
    "copy_prefetch": 6,
    "copy_demand": 7,
    "copy_head": 8,
}
"""Colour group of each event kind, an index into the page's legend."""

_KINDS = list(KIND_GROUPS)
_LANES = ("compute", "cpu", "disk", "h2d", "d2h")


def build_page(
    plan: Plan | None,
    trace: Trace | None,
    model: ModelSpec | None = None,
    hardware: Hardware | None = None,
) -> str:
    """The page for a plan, a trace, or both.

    Parameters
    ----------
    plan, trace
        At least one of them.
    model
        The plan's model, where it is at hand: with it the expert map has every expert.
    hardware
        What the plan was made for, where it is at hand: see ``not_comparable``.

    Returns
    -------
    str
        HTML text, ready to be written to a file.
    """
    tracks, cut = [], []
    head_layer = len(plan.policy.layers) if plan is not None else None
    for name, timeline in (
        ("Predicted", plan.predicted.timeline if plan is not None else None),
        ("Measured", trace.timeline if trace is not None else None),
    ):
        if timeline is not None and timeline.kind:
            track, was_cut = _track(name, timeline, head_layer)
            tracks.append(track)
            if was_cut:
                cut.append(name.lower())
    experts = _experts(plan, trace, model) if plan is not None else None
    apart = None
    if plan is not None and trace is not None:
        apart = not_comparable(plan, trace, hardware)
    words = ""
    if plan is not None:
        words += _listed("p", explain_plan(plan, model))
        words += f"<ul>{_listed('li', plan.notes)}</ul>" if plan.notes else ""
    if trace is not None:
        words += _listed("p", explain_trace(trace, plan, hardware))
    heading, subtitle = _heading(plan, trace)
    data = {
        "tracks": tracks,
        "groups": _GROUPS,
        "kinds": [[kind, group] for kind, group in KIND_GROUPS.items()],
        "experts": experts,
    }
    source = files("moeplan")
    filling = {
        "title": escape(f"moeplan: {heading}"),
        "heading": escape(heading),
        "subtitle": escape(subtitle),
        "cards": _cards(plan, trace, apart),
        "kinds": _kind_table(plan, trace, apart is None),
        "memory": _memory(plan),
        "experts": _expert_section(experts),
        "words": words,
        "kept": escape(_kept(trace, cut)),
        "footer": escape(f"Made by moeplan {version('moeplan')}."),
        # "<" is escaped, so that no text in the data can end the script element
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "script": (source / "page.js").read_text(encoding="utf-8"),
    }
    template = (source / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filling[match[1]], template)


def _track(name: str, timeline: Timeline, head_layer: int | None) -> tuple[dict[str, Any], bool]:
    """Columns for the script, of as many whole passes as fit."""
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


def _heading(plan: Plan | None, trace: Trace | None) -> tuple[str, str]:
    if plan is None:
        device = trace.device if trace is not None else "nothing"
        return f"A measured run on {device}", "without its plan"
    name = plan.locations.checkpoint.rstrip("/").rsplit("/", 1)[-1]
    work = plan.workload
    account = plan.memory["device"]
    return (
        f"{name}: {'predicted and measured' if trace is not None else 'the plan'}",
        f"{work.requests:,} requests, {work.prompt_tokens:,} prompt and {work.new_tokens:,} new "
        f"tokens each, {plan.dtype} on {plan.device}, within {human_bytes(account.capacity_bytes)}",
    )


def _listed(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _cards(plan: Plan | None, trace: Trace | None, apart: str | None) -> str:
    cards = []
    if plan is not None:
        speed = plan.predicted.tokens_per_second
        cards.append(
            _card(
                f"{human_number(speed.value)}",
                f"tokens/s predicted ({human_number(speed.low)} to {human_number(speed.high)})",
            )
        )
    if trace is not None:
        measured = tokens_per_second(trace)
        cards.append(_card(f"{human_number(measured)}", "tokens/s measured, prefill included"))
    if plan is not None:
        if apart is not None:
            cards.append(_card("other work", apart))
        elif trace is not None and plan.predicted.tokens_per_second.value:
            off = 100 * (tokens_per_second(trace) / plan.predicted.tokens_per_second.value - 1)
            cards.append(_card(f"{off:+.1f}%", "measured against predicted tokens/s"))
        policy, account = plan.policy, plan.memory["device"]
        cards.append(
            _card(f"{policy.n_batches} × {policy.batch_size}", "batches × sequences in a group")
        )
        cards.append(
            _card(
                human_bytes(account.peak_bytes),
                f"device peak of {human_bytes(account.capacity_bytes)}",
            )
        )
        if plan.gap is not None:
            least = f"at most this far from the best with n × b = {policy.n_batches} × "
            cards.append(_card(f"{100 * plan.gap:.2f}%", f"gap: {least}{policy.batch_size}"))
    if trace is not None and plan is None:
        totals = trace.totals
        cards.append(_card(human_time(totals.wall_ns), "in all"))
        cards.append(_card(human_bytes(totals.bytes_read), "read"))
    return "".join(cards)


def _kind_table(plan: Plan | None, trace: Trace | None, judged: bool) -> str:
    """Time of each kind of operation, predicted beside measured; their ratio where ``judged``."""
    columns: list[tuple[str, dict[str, int]]] = []
    if plan is not None:
        promised = plan.predicted.totals.duration_by_kind_ns
        columns.append(("predicted", {str(kind): ns for kind, ns in promised.items()}))
    if trace is not None:
        columns.append(
            ("measured", {str(k): v for k, v in trace.totals.duration_by_kind_ns.items()})
        )
    kinds = [kind for kind in _KINDS if any(column.get(kind) for _, column in columns)]
    most = max([value for _, column in columns for value in column.values()], default=0) or 1
    ratios = judged and len(columns) == 2
    head = "".join(f"<th>{name}</th>" for name, _ in columns)
    if ratios:
        head += '<th title="measured / predicted">ratio</th>'
    rows = []
    for kind in kinds:
        cells = "".join(f"<td>{human_time(column.get(kind, 0))}</td>" for _, column in columns)
        if ratios:
            first, second = (column.get(kind, 0) for _, column in columns)
            cells += f"<td>{second / first:.2f}</td>" if first else "<td>–</td>"
        meters = "".join(
            f'<span class="meter {title}" style="width:{100 * column.get(kind, 0) / most:.2f}%">'
            "</span>"
            for title, column in columns
        )
        name = escape(kind.replace("_", " "))
        rows.append(f'<tr><td>{name}</td>{cells}<td class="bars">{meters}</td></tr>')
    legend = "".join(f'<li><i class="{name}"></i>{name}</li>' for name, _ in columns)
    if ratios:
        legend += "<li>ratio: measured / predicted</li>"
    return (
        "<section><h2>Where the time goes</h2>"
        f'<div class="wide"><table class="kinds"><thead><tr><th>operation</th>{head}<th></th></tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<ul class="legend">{legend}</ul></section>'
    )


_PURPOSE_COLOURS = ("--g0", "--g1", "--g6", "--g3", "--g2", "--g8", "--g5", "--g7", "--g4")


def _memory(plan: Plan | None) -> str:
    if plan is None:
        return ""
    parts = []
    for tier, account in plan.memory.items():
        sizes = [(name, size) for name, size in account.by_purpose.items() if size]
        sizes.sort(key=lambda item: -item[1])
        whole = max(account.capacity_bytes, account.peak_bytes, 1)
        bar, legend = [], []
        for index, (name, size) in enumerate(sizes):
            colour = f"var({_PURPOSE_COLOURS[index % len(_PURPOSE_COLOURS)]})"
            label = escape(f"{PURPOSE_WORDS.get(name, name)}: {human_bytes(size)}")
            bar.append(
                f'<div style="width:{100 * size / whole:.3f}%;background:{colour}" title="{label}">'
                "</div>"
            )
            legend.append(f'<li><i style="background:{colour}"></i>{label}</li>')
        free = account.capacity_bytes - account.peak_bytes
        legend.append(f'<li><i style="background:var(--track)"></i>free: {human_bytes(free)}</li>')
        parts.append(
            f"<h2>Memory: {escape(tier)}, {human_bytes(account.peak_bytes)} of "
            f"{human_bytes(account.capacity_bytes)} at its peak</h2>"
            f'<div class="stack">{"".join(bar)}</div><ul class="legend">{"".join(legend)}</ul>'
        )
    return f"<section>{''.join(parts)}</section>"


def _experts(plan: Plan, trace: Trace | None, model: ModelSpec | None) -> dict[str, Any] | None:
    """Tokens of each expert in the timeline, and how the plan serves it."""
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


def _expert_section(experts: dict[str, Any] | None) -> str:
    if experts is None:
        return ""
    return (
        "<section><h2>Experts</h2>"
        '<p class="soft">A row a layer, a cell an expert: the warmer, the more tokens it served '
        "in the passes shown. Framed: stays in memory. Corner: a candidate to be copied before "
        "the router has spoken. The others are copied on demand.</p>"
        '<div class="stage"><canvas id="heat" role="img" aria-label="Experts by layer"></canvas>'
        '<div class="tip" id="heattip"></div></div></section>'
    )


def _kept(trace: Trace | None, cut: Sequence[str]) -> str:
    said = []
    if trace is not None and trace.kept_passes < trace.totals.passes:
        said.append(
            f"The trace holds the first {trace.kept_passes} of {trace.totals.passes} passes "
            "event by event; the table counts all of them."
        )
    if cut:
        said.append(f"Only the first passes of the {' and '.join(cut)} timeline fit on this page.")
    return " ".join(said)
