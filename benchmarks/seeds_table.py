"""The seeds' experiments as a page."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.record import machine_words
from planner.placement import METHODS

__all__ = ["markdown"]

Row = dict[str, Any]


class _Table(NamedTuple):
    title: str
    said: str
    columns: tuple[tuple[str, str], ...]
    """Key in the rows, and format: ``text``, ``rate``, ``share`` or ``times``."""


_RATES = (
    ("n", "text"),
    ("b", "text"),
    ("tokens_per_second", "rate"),
    ("lowest", "rate"),
    ("highest", "rate"),
    ("predicted", "rate"),
    ("bubble_dense", "share"),
    ("bubble_experts", "share"),
)
_TABLES = {
    "throughput": _Table(
        "Throughput against n and b",
        "tokens/s in all (median, lowest and highest run), and the shares of the time in which "
        "compute waits for dense parts and for experts. As many requests as one group has.",
        (("checkpoint", "text"), *_RATES),
    ),
    "ablation": _Table(
        "Bubbles, part by part",
        "Until the planned residents come nothing but dense parts stays in memory. Without the "
        "expert-aware order a layer's experts are copied and computed by their numbers, not most "
        "tokens first. Nothing is predicted for that: the planner knows only the runtime's order.",
        (("checkpoint", "text"), ("step", "text"), *_RATES, ("wasted_share", "share")),
    ),
    "choice": _Table(
        "The planned n and b against the best measured",
        "`short` is what the planned one lacks of the best one's rate; noise is the larger half "
        "spread of the two, below which they are not told apart.",
        (
            ("checkpoint", "text"),
            ("memory", "share"),
            ("requests", "text"),
            ("chosen", "text"),
            ("best", "text"),
            ("short", "share"),
            ("noise", "share"),
            ("within", "text"),
        ),
    ),
    "prefetch": _Table(
        "What predictors name",
        "On held-out sequences of the trained example, for each layer: the share of the named "
        "experts that some token chose (needed), and that are among as many of the hottest (hot).",
        (
            ("sequences", "text"),
            ("layer", "text"),
            ("named", "text"),
            *(
                (f"{name}_{kind}", "share")
                for name in ("coactivation", "lookahead", "popularity")
                for kind in ("needed", "hot")
            ),
        ),
    ),
    "buffers": _Table(
        "Misses of a buffer of experts",
        "Of the trained example's decode passes (trace), and of whole runs: the share of the "
        "experts needed that were not in the buffer, whose size is experts for each layer.",
        (
            ("from", "text"),
            ("sequences", "text"),
            ("buffer", "text"),
            ("needed", "rate"),
            *((name, "share") for name in ("lru", "lifo", "fifo", "frequency", "belady")),
        ),
    ),
    "balance": _Table(
        "Balance of placements",
        "The fullest device's load as a multiple of an even share, on sequences not fitted on, of "
        "the trained example's routing.",
        (
            ("sequences", "text"),
            ("devices", "text"),
            *((name, "times") for name in METHODS),
        ),
    ),
}


_SWEEPS = _Table(
    "All that was measured beside the planned n and b",
    "The best first; what lacked 15% in the first round was not run again, and what was predicted "
    "to take twice as long not at all.",
    (
        ("checkpoint", "text"),
        ("memory", "share"),
        ("requests", "text"),
        *_RATES,
        ("runs", "text"),
        ("chosen", "text"),
        ("why", "text"),
    ),
)


def markdown(body: Row) -> str:
    """All experiments that there are."""
    parts = [f"# The seeds' experiments\n\n{machine_words(body['about']['machine'])}.\n"]
    for name, table in _TABLES.items():
        found = body["experiments"].get(name)
        if found is not None:
            parts.append(_section(table, found))
        if found is not None and name == "choice":
            cells = ("checkpoint", "memory", "requests")
            rows = [
                {**{key: row[key] for key in cells}, **one}
                for row in found["rows"]
                for one in row["measured"]
            ]
            parts.append(_section(_SWEEPS, {**found, "rows": rows}))
    return "\n".join(parts)


def _section(table: _Table, found: Row) -> str:
    rows = found["rows"]
    columns = [one for one in table.columns if any(one[0] in row for row in rows)]
    speed = found["throttle_bytes_per_second"] or found["paced_bytes_per_second"]
    disk = "as it is" if speed is None else f"held to {speed / 1e6:.0f} MB/s"
    quick = "Quick: not to be quoted. " if found["quick"] else ""
    facts = (
        f"{quick}{found['runs']} runs of each plan, "
        f"seed {found['seed']}, disk {disk}; {found['minutes']:.1f} minutes, load average "
        f"{found['load_average']:.1f} at the end."
    )
    lines = [
        " | ".join(key.replace("_", " ") for key, _ in columns),
        " | ".join("---" for _ in columns),
        *(" | ".join(_text(row.get(key), form) for key, form in columns) for row in rows),
    ]
    body = "\n".join(f"| {line} |" for line in lines)
    return f"## {table.title}\n\n{table.said} {facts}\n\n{body}\n"


def _text(value: Any, form: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    forms = {"rate": "{:.1f}", "share": "{:.1%}", "times": "{:.3f}"}
    return forms.get(form, "{}").format(value)
