"""A plan and its run as one HTML page that needs nothing else: no network, no library.

The page is ``page.html`` with ``page.js``; this module puts it together from ``page_parts``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files

from moeplan.output import human_bytes, human_number, human_time
from moeplan.page_parts import (
    KindColumn,
    card,
    expert_cells,
    expert_section,
    kind_table,
    memory_stacks,
    page_data,
    timeline_section,
    timeline_track,
)
from moeplan.words import against_words, explain_plan, explain_trace, tokens_per_second
from planner.comparable import not_comparable
from planner.documents import Hardware, ModelSpec, Plan, Trace
from solvers.counting import counted

__all__ = ["build_page", "report_parts"]


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
    source = files("moeplan")
    filling = {
        **report_parts(plan, trace, model, hardware),
        "style": (source / "page_style.html").read_text(encoding="utf-8"),
        "footer": escape(f"Made by moeplan {version('moeplan')}."),
        "script": (source / "page.js").read_text(encoding="utf-8"),
    }
    template = (source / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filling[match[1]], template)


def report_parts(
    plan: Plan | None,
    trace: Trace | None,
    model: ModelSpec | None = None,
    hardware: Hardware | None = None,
) -> dict[str, str]:
    """The page's parts by name, each HTML (``data``: JSON); parameters as of ``build_page``."""
    tracks, cut = [], []
    head_layer = len(plan.policy.layers) if plan is not None else None
    for name, timeline in (
        ("Predicted", plan.predicted.timeline if plan is not None else None),
        ("Measured", trace.timeline if trace is not None else None),
    ):
        if timeline is not None and timeline.kind:
            track, was_cut = timeline_track(name, timeline, head_layer)
            tracks.append(track)
            if was_cut:
                cut.append(name.lower())
    experts = expert_cells(plan, trace, model) if plan is not None else None
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
    return {
        "title": escape(f"moeplan: {heading}"),
        "heading": escape(heading),
        "subtitle": escape(subtitle),
        "cards": _cards(plan, trace, apart),
        "timeline": timeline_section(_kept(trace, cut)),
        "kinds": kind_table(_kind_columns(plan, trace), judged=apart is None),
        "memory": f"<section>{memory_stacks(plan)}</section>" if plan is not None else "",
        "experts": expert_section(experts),
        "words": words,
        "data": page_data(tracks, experts),
    }


def _kind_columns(plan: Plan | None, trace: Trace | None) -> list[KindColumn]:
    columns = []
    if plan is not None:
        promised = plan.predicted.totals.duration_by_kind_ns
        columns.append(KindColumn("predicted", "predicted", promised))
    if trace is not None:
        columns.append(KindColumn("measured", "measured", trace.totals.duration_by_kind_ns))
    return columns


def _heading(plan: Plan | None, trace: Trace | None) -> tuple[str, str]:
    if plan is None:
        device = trace.device if trace is not None else "nothing"
        return f"A measured run on {device}", "without its plan"
    name = plan.locations.checkpoint.rstrip("/").rsplit("/", 1)[-1]
    work = plan.workload
    account = plan.memory["device"]
    return (
        f"{name}: {'predicted and measured' if trace is not None else 'the plan'}",
        f"{counted(work.requests, 'request')}, {work.prompt_tokens:,} prompt and "
        f"{counted(work.new_tokens, 'new token')} each, {plan.dtype} on {plan.device}, within "
        f"{human_bytes(account.capacity_bytes)}",
    )


def _listed(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _cards(plan: Plan | None, trace: Trace | None, apart: str | None) -> str:
    cards = []
    if plan is not None:
        speed = plan.predicted.tokens_per_second
        cards.append(
            card(
                f"{human_number(speed.value)}",
                f"tokens/s predicted ({human_number(speed.low)} to {human_number(speed.high)})",
            )
        )
    if trace is not None:
        measured = tokens_per_second(trace)
        cards.append(card(f"{human_number(measured)}", "tokens/s measured, prefill included"))
    if plan is not None:
        if apart is not None:
            cards.append(card("other work", apart))
        elif trace is not None and speed.value:
            measured = tokens_per_second(trace)
            said = f"measured against predicted tokens/s, {against_words(speed, measured)}"
            cards.append(card(f"{100 * (measured / speed.value - 1):+.1f}%", said))
        policy, account = plan.policy, plan.memory["device"]
        cards.append(
            card(f"{policy.n_batches} × {policy.batch_size}", "batches × sequences in a group")
        )
        cards.append(
            card(
                human_bytes(account.peak_bytes),
                f"device peak of {human_bytes(account.capacity_bytes)}",
            )
        )
        if plan.gap is not None:
            least = f"at most this far from the best with n × b = {policy.n_batches} × "
            cards.append(card(f"{100 * plan.gap:.2f}%", f"gap: {least}{policy.batch_size}"))
    if trace is not None and plan is None:
        totals = trace.totals
        cards.append(card(human_time(totals.wall_ns), "in all"))
        cards.append(card(human_bytes(totals.bytes_read), "read"))
    return "".join(cards)


def _kept(trace: Trace | None, cut: Sequence[str]) -> str:
    said = []
    if trace is not None and trace.kept_passes < trace.totals.passes:
        said.append(
            f"The trace holds the first {trace.kept_passes} of "
            f"{counted(trace.totals.passes, 'pass')} event by event; the table counts all of them."
        )
    if cut:
        said.append(f"Only the first passes of the {' and '.join(cut)} timeline fit on this page.")
    return " ".join(said)
