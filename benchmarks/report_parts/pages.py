"""The report as Markdown and as one HTML page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.report_parts.blocks import (
    Bars,
    Block,
    Chart,
    Heading,
    Points,
    Table,
    Words,
    number,
)
from benchmarks.report_parts.svg import STYLE, draw

__all__ = ["Part", "html", "markdown", "picture", "provenance"]

TITLE = "moeplan: benchmarks"
_MOST_OPEN = 16
"""A longer table is folded in the page."""


@dataclass(frozen=True)
class Part:
    """A section as it stands in the report.

    Attributes
    ----------
    name, title, words
        As of ``Section``.
    command
        How it is run again.
    about
        What its result says of itself; None where it has not been run.
    headline
        Its one sentence.
    blocks
        The rest.
    """

    name: str
    title: str
    words: str
    command: str
    about: Mapping[str, Any] | None
    headline: str
    blocks: tuple[Block, ...]


def machine(about: Mapping[str, Any]) -> str:
    """The machine, in words."""
    found = about.get("machine")
    if not isinstance(found, Mapping):
        return str(found) if found else "machine not recorded"
    said = [str(found[key]) for key in ("gpu", "processor") if key in found]
    if "cores" in found:
        said.append(f"{found['cores']} cores")
    if "memory_bytes" in found:
        said.append(f"{found['memory_bytes'] / 2**30:.0f} GiB")
    said += [str(found["system"])] if "system" in found else []
    said += [f"Python {found['python']}"] if "python" in found else []
    said += [f"torch {found['torch']}"] if "torch" in found else []
    return ", ".join(said)


def quiet(about: Mapping[str, Any]) -> str:
    """Whether the machine did anything else."""
    if about.get("timed") is False:
        return "not timed"
    others = about.get("others_cores")
    told = {True: "quiet", False: "not quiet", None: "not recorded"}[about.get("quiet")]
    return told if others is None else f"{told}, {number(float(others))} cores busy otherwise"


def provenance(about: Mapping[str, Any]) -> str:
    """When, where, how."""
    seeds = about.get("seeds")
    if isinstance(seeds, list):
        seeds = ", ".join(map(str, seeds)) or "none"
    said = [
        f"Measured {about.get('measured') or 'at a time not recorded'} on {machine(about)}",
        f"other work on the machine: {quiet(about)}",
        f"seeds: {'not recorded' if seeds is None else seeds}",
        f"budget: {about.get('budget') or 'not recorded'}",
    ]
    said += [f"took {_duration(float(about['seconds']))}"] if about.get("seconds") else []
    said += [f"`{about['command']}`"] if about.get("command") else []
    said += [str(about["note"])] if about.get("note") else []
    return "; ".join(said) + "."


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def _glance(parts: Sequence[Part]) -> Table:
    rows = []
    for part in parts:
        if part.about is None:
            rows.append((part.title, "**not run**", "", f"`{part.command}`"))
            continue
        when = str(part.about.get("measured") or "not recorded")
        rows.append((part.title, when, quiet(part.about), f"`{part.command}`"))
    return Table(("benchmark", "measured", "other work", "command"), tuple(rows))


def _headlines(parts: Sequence[Part]) -> Points:
    return Points(tuple(f"**{one.title}**: {one.headline}" for one in parts if one.headline))


_INTRODUCTION = (
    "Made by `python benchmarks/report.py` from the results in `benchmarks/results`; `--run` runs "
    "the benchmarks first. Every section says when, where and how quietly it was measured. Figures "
    "of machines that were not quiet are what they are: slower, and further from their "
    "predictions. The random checkpoints are for speed and size, never for what they say."
)


def picture(name: str, index: int) -> str:
    """File of a chart, beside the Markdown."""
    return f"plots/{name}-{index}.svg"


def markdown(parts: Sequence[Part]) -> str:
    """The report with its charts as files."""
    lines = [f"# {TITLE}", _INTRODUCTION, "## What it comes to"]
    lines += [_block(_headlines(parts)), "## What was run", _block(_glance(parts))]
    for part in parts:
        lines += [f"## {part.title}", part.words]
        if part.about is None:
            lines.append(f"**Not run**: there is no `{part.name}.json`. `{part.command}`")
            continue
        lines.append(f"{provenance(part.about)} All of it: [{part.name}.json]({part.name}.json).")
        lines += [part.headline] if part.headline else []
        drawn = 0
        for block in part.blocks:
            if isinstance(block, Chart | Bars):
                lines.append(f"![{block.title}]({picture(part.name, drawn)})")
                drawn += 1
            else:
                lines.append(_block(block))
    return "\n\n".join(lines) + "\n"


def _block(block: Heading | Words | Points | Table) -> str:
    match block:
        case Heading(text):
            return f"### {text}"
        case Words(text):
            return text
        case Points(items):
            return "\n".join(f"- {item}" for item in items)
        case Table(columns, rows):
            cells = [columns, ("---",) * len(columns), *rows]
            return "\n".join(f"| {' | '.join(_cell(one) for one in row)} |" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def html(parts: Sequence[Part]) -> str:
    """The report as a page."""
    links = "".join(f'<a href="#{one.name}">{escape(one.title)}</a>' for one in parts)
    body = [
        f"<h1>{escape(TITLE)}</h1><p>{_inline(_INTRODUCTION)}</p><nav>{links}</nav>",
        f"<section><h2>What it comes to</h2>{_shown(_headlines(parts))}</section>",
        f"<section><h2>What was run</h2>{_shown(_glance(parts))}</section>",
    ]
    for part in parts:
        inner = [f"<h2>{escape(part.title)}</h2><p>{_inline(part.words)}</p>"]
        if part.about is None:
            inner.append(f"<p><b>Not run.</b> <code>{escape(part.command)}</code></p>")
        else:
            inner.append(f'<p class="soft">{_inline(provenance(part.about))}</p>')
            inner += [f"<p><b>{_inline(part.headline)}</b></p>"] if part.headline else []
            inner += [_shown(block) for block in part.blocks]
        body.append(f'<section id="{part.name}">{"".join(inner)}</section>')
    return _PAGE.format(title=escape(TITLE), style=_STYLE + STYLE, body="\n".join(body))


def _shown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h3>{_inline(text)}</h3>"
        case Words(text):
            return f"<p>{_inline(text)}</p>"
        case Points(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        case Chart() | Bars():
            return f"<figure><figcaption>{escape(block.title)}</figcaption>{draw(block)}</figure>"
        case Table(columns, rows):
            head = "".join(f"<th>{_inline(name)}</th>" for name in columns)
            lines = "".join(
                f"<tr>{''.join(f'<td>{_inline(cell)}</td>' for cell in row)}</tr>" for row in rows
            )
            table = (
                f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody>'
                "</table></div>"
            )
            if len(rows) <= _MOST_OPEN:
                return table
            return f"<details><summary>{len(rows)} rows</summary>{table}</details>"


def _inline(text: str) -> str:
    """Code, strong, emphasis; links by their words."""
    text = escape(text, quote=False)
    text = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\*(\w[^*<>]*)\*", r"<i>\1</i>", text)
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)


_STYLE = """:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff}
@media (prefers-color-scheme:dark){:root{--page:#141519;--card:#1d1f24}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1000px;margin:0 auto;padding:20px 12px 40px}
h1{font-size:22px;margin:0}h2{font-size:18px;margin:0 0 6px}h3{font-size:15px;margin:16px 0 4px}
p,ul{margin:6px 0;max-width:80ch;overflow-wrap:anywhere}ul{padding-left:20px}
.soft{color:var(--soft);font-size:13px}
nav{display:flex;flex-wrap:wrap;gap:4px 14px;margin:10px 0;font-size:14px}
a{color:var(--k0)}section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:14px;margin-top:14px}.wide{overflow-x:auto;margin:8px 0}table{border-collapse:collapse;
font-variant-numeric:tabular-nums;font-size:13px}th,td{text-align:left;padding:4px 9px 4px 0;
border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--soft);font-weight:600}
figure{margin:10px 0;max-width:680px;overflow-x:auto}figcaption{font-weight:600;font-size:14px}
svg{display:block;width:100%;min-width:480px;height:auto}
summary{cursor:pointer;color:var(--soft);padding:6px 0}
code{font-size:.92em;overflow-wrap:anywhere}td code{white-space:nowrap}
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
