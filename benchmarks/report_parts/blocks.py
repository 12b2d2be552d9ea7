"""What a section of the report is made of, and Markdown read into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Bars",
    "Block",
    "Chart",
    "Heading",
    "Points",
    "Series",
    "Table",
    "Words",
    "blocks_of",
    "number",
    "plain",
    "table_of",
]

_MOST_ROWS = 300
_MOST_VALUES = 8


@dataclass(frozen=True)
class Heading:
    """Below a section's own."""

    text: str


@dataclass(frozen=True)
class Words:
    """A paragraph; ``code``, *emphasis* and links as in Markdown."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Headings, and rows of text of the same length."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Series:
    """Points of one name, joined in their order; ``low`` and ``high`` are whiskers."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """Lines, or with ``diagonal`` points against the line of equal x and y."""

    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    diagonal: bool = False


@dataclass(frozen=True)
class Bars:
    """A row for each name, in it a bar for each series: ``values[series][row]``."""

    title: str
    unit: str
    names: tuple[str, ...]
    series: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


Block = Heading | Words | Points | Table | Chart | Bars


def number(value: Any) -> str:
    """Three digits that mean something; whole numbers whole."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
    return str(value)


def table_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[tuple[str, str, str]]) -> Table:
    """A table of rows of JSON.

    Parameters
    ----------
    rows
        Mappings.
    columns
        Heading, key (dots lead into mappings), and format: ``""`` for ``number``, else as of
        ``format``; a format with ``/`` divides first (``".1f/1e6"``).
    """

    def cell(row: Mapping[str, Any], key: str, form: str) -> str:
        value: Any = row
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or not form:
            return number(value)
        form, _, divisor = form.partition("/")
        return format(value / float(divisor) if divisor else value, form)

    return Table(
        tuple(heading for heading, _, _ in columns),
        tuple(tuple(cell(row, key, form) for _, key, form in columns) for row in rows),
    )


def plain(document: Mapping[str, Any]) -> list[Block]:
    """Any result: its single values, then a table for each list or mapping of mappings."""
    found: list[Block] = []
    single = {key: value for key, value in document.items() if not _nested(value)}
    if single:
        values = tuple((key.replace("_", " "), _short(value)) for key, value in single.items())
        found.append(Table(("figure", "value"), values))
    for key, value in document.items():
        if not _nested(value):
            continue
        found.append(Heading(key.replace("_", " ")))
        if isinstance(value, Mapping) and all(map(_flatly, value.values())):
            value = [{"": name, **one} for name, one in value.items()]
        if isinstance(value, Mapping):
            found += plain(value)
            continue
        flat = [_flat(one) for one in value[:_MOST_ROWS]]
        names = tuple(dict.fromkeys(name for one in flat for name in one))
        rows = tuple(tuple(_short(one.get(name)) for name in names) for one in flat)
        found.append(Table(tuple(name.replace("_", " ") for name in names), rows))
        if len(value) > _MOST_ROWS:
            found.append(Words(f"The first {_MOST_ROWS} of {len(value)} rows."))
    return found


def _nested(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _flatly(value: Any) -> bool:
    """Whether it is a row: a mapping without tables in it."""
    return isinstance(value, Mapping) and not any(map(_nested, value.values()))


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key} ")
        else:
            found[f"{before}{key}"] = value
    return found


def _short(value: Any) -> str:
    if isinstance(value, list):
        words = all(isinstance(one, str) for one in value)
        if (len(value) > _MOST_VALUES and not words) or any(
            isinstance(one, (list, Mapping)) for one in value
        ):
            return f"{len(value)} values"
        return ", ".join(number(one) for one in value)
    return number(value)


def blocks_of(markdown: str) -> list[Block]:
    """A page of Markdown without its title: headings, tables, lists and paragraphs."""
    found: list[Block] = []
    for part in re.split(r"\n\s*\n", markdown.strip()):
        lines = part.strip().splitlines()
        while lines and lines[0].startswith("#"):
            marks, _, text = lines.pop(0).partition(" ")
            if len(marks) > 1:
                found.append(Heading(text))
        if not lines:
            continue
        if lines[0].startswith("|"):
            cells = [_cells(line) for line in lines if line.startswith("|")]
            width = len(cells[0])
            rows = tuple((*row, *("",) * width)[:width] for row in cells[2:])
            found.append(Table(cells[0], rows))
        elif lines[0].startswith("- "):
            items = re.split(r"\n- ", "\n".join(lines)[2:])
            found.append(Points(tuple(" ".join(one.split()) for one in items)))
        else:
            found.append(Words(" ".join(" ".join(lines).split())))
    return found


def _cells(line: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in line.strip().strip("|").split("|"))
