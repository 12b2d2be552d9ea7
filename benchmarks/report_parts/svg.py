"""Charts as SVG that needs nothing else: in a page, or as a file with its own colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.report_parts.blocks import Bars, Chart, Series, number

__all__ = ["STYLE", "draw"]

_WIDE, _TALL = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 50
_COLOURS = 8
_MOST_TICKS = 12
"""More different x get round ticks."""
_LIGHT = ("2f6fde", "e07b18", "8457c7", "2a9360", "c62f4b", "a8830a", "1f7a8c", "6b7280")
_DARK = ("5c93f2", "f0963a", "a886e6", "45b581", "ff6b84", "e0bb3a", "3fb6cc", "a3a6ae")


def _palette(colours: Sequence[str], ink: str, soft: str, line: str) -> str:
    names = "".join(f"--k{index}:#{colour};" for index, colour in enumerate(colours))
    return f":root{{{names}--ink:{ink};--soft:{soft};--line:{line}}}"


STYLE = (
    _palette(_LIGHT, "#1c1d21", "#5d6068", "#dcdcd8")
    + "@media (prefers-color-scheme:dark){"
    + _palette(_DARK, "#ececee", "#a3a6ae", "#363942")
    + "}svg text{fill:var(--soft);font:13px system-ui,sans-serif}"
    ".g{stroke:var(--line);fill:none}.e{stroke:var(--soft);fill:none;stroke-dasharray:5 4}"
    + "".join(
        f".s{index}{{stroke:var(--k{index});fill:none;stroke-width:2}}.f{index}"
        f"{{fill:var(--k{index})}}"
        for index in range(_COLOURS)
    )
)
"""Colours of charts, light and dark."""


def draw(block: Chart | Bars, alone: bool = False) -> str:
    """The drawing; ``alone`` for a file of its own, with its colours and its title."""
    parts, tall = _bars(block) if isinstance(block, Bars) else _lines(block)
    if alone:
        title = f'<text x="{_LEFT}" y="0" font-weight="600">{escape(block.title)}</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -20 {_WIDE} {tall + 20}" '
            f'width="{_WIDE}"><style>{STYLE}</style>{title}{parts}</svg>\n'
        )
    return (
        f'<svg viewBox="0 0 {_WIDE} {tall}" role="img" aria-label="{escape(block.title)}">'
        f"{parts}</svg>"
    )


def _lines(chart: Chart) -> tuple[str, int]:
    xs = [x for one in chart.series for x in one.x]
    ys = [y for one in chart.series for y in (*one.y, *one.low, *one.high)]
    if chart.diagonal:
        xs = ys = [*xs, *ys]
    x_at, x_ticks = _axis(xs, chart.log_x, _LEFT, _WIDE - _RIGHT, chart.diagonal)
    if chart.log_x and not chart.diagonal and len(set(xs)) <= _MOST_TICKS:
        x_ticks = sorted(set(xs))
    y_at, y_ticks = _axis(ys, chart.log_y, _TALL - _BOTTOM, _TOP, True)
    parts = []
    for value in y_ticks:
        up = y_at(value)
        parts.append(f'<path class="g" d="M{_LEFT} {up:.1f}H{_WIDE - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, up + 4, number(value), "end"))
    for value in x_ticks:
        across = x_at(value)
        parts.append(f'<path class="g" d="M{across:.1f} {_TOP}V{_TALL - _BOTTOM}"/>')
        parts.append(_text(across, _TALL - _BOTTOM + 18, number(value), "middle"))
    middle = (_TOP + _TALL - _BOTTOM) / 2
    parts.append(_text((_LEFT + _WIDE - _RIGHT) / 2, _TALL - 10, chart.x_title, "middle"))
    parts.append(
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_title)}</text>"
    )
    if chart.diagonal:
        low, high = max(min(xs), 1e-12), max(xs)
        ends = f"M{x_at(low):.1f} {y_at(low):.1f}L{x_at(high):.1f} {y_at(high):.1f}"
        parts.append(f'<path class="e" d="{ends}"/>')
    for index, one in enumerate(chart.series):
        parts.append(_drawn(one, index % _COLOURS, x_at, y_at, joined=not chart.diagonal))
    legend, tall = _legend([one.name for one in chart.series], _TALL)
    return "".join([*parts, legend]), tall


def _drawn(
    one: Series,
    colour: int,
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
    joined: bool,
) -> str:
    points = [(x_at(x), y_at(y)) for x, y in zip(one.x, one.y, strict=True)]
    parts = []
    if joined and len(points) > 1:
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path class="s{colour}" d="M{way}"/>')
    for (x, _), low, high in zip(points, one.low, one.high, strict=False):
        parts.append(f'<path class="s{colour}" d="M{x:.1f} {y_at(low):.1f}V{y_at(high):.1f}"/>')
    if len(points) <= 80:
        for (x, y), real_x, real_y in zip(points, one.x, one.y, strict=True):
            said = escape(f"{one.name}: {number(real_x)}, {number(real_y)}")
            parts.append(
                f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{said}</title>'
                "</circle>"
            )
    return "".join(parts)


def _bars(bars: Bars) -> tuple[str, int]:
    flat = [one for values in bars.values for one in values if one is not None]
    left = min(40 + 7 * max(map(len, bars.names)), 250)
    at, ticks = _axis([0.0, *flat], False, left, _WIDE - 60, True)
    each = 13 * len(bars.series) + 9
    tall = _TOP + each * len(bars.names)
    parts = [
        f'<path class="g" d="M{at(value):.1f} {_TOP}V{tall}"/>'
        f"{_text(at(value), tall + 16, number(value), 'middle')}"
        for value in ticks
    ]
    for row, name in enumerate(bars.names):
        top = _TOP + each * row + 4
        cut = name if len(name) <= 32 else f"{name[:31]}…"
        parts.append(_text(left - 6, top + 6.5 * len(bars.series) + 4, cut, "end"))
        for index, values in enumerate(bars.values):
            value = values[row]
            if value is None:
                continue
            start, end = sorted((at(0.0), at(value)))
            up = top + 13 * index
            parts.append(
                f'<rect class="f{index % _COLOURS}" x="{start:.1f}" y="{up}" '
                f'width="{max(end - start, 1):.1f}" height="11"/>'
                f"{_text(end + 4, up + 10, number(value), 'start')}"
            )
    parts.append(_text((left + _WIDE) / 2, tall + 34, bars.unit, "middle"))
    legend, tall = _legend(bars.series if len(bars.series) > 1 else (), tall + 42)
    return "".join([*parts, legend]), tall


def _legend(names: Sequence[str], top: int) -> tuple[str, int]:
    if not names:
        return "", top
    parts, across, up = [], 8.0, top + 10
    for index, name in enumerate(names):
        wide = 30 + 7.6 * len(name)
        if across + wide > _WIDE and across > 8:
            across, up = 8.0, up + 20
        square = f'<rect class="f{index % _COLOURS}" x="{across}" y="{up - 9}" width="11"'
        parts.append(f'{square} height="11"/>{_text(across + 17, up, name, "start")}')
        across += wide
    return "".join(parts), up + 10


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _axis(
    values: Sequence[float], log: bool, start: float, end: float, from_zero: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies, and about five round values."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log:
        low, high = math.log10(max(low, 1e-12)), math.log10(max(high, 1e-12))
        room = (high - low) * 0.05 or 0.1
        low, high = low - room, high + room
        powers = [
            m * 10.0**k
            for k in range(math.floor(low), math.ceil(high) + 1)
            for m in ((1, 2, 5) if high - low < 2.2 else (1,))
        ]
        ticks = [one for one in powers if low <= math.log10(one) <= high]
        return (
            lambda one: start + (math.log10(max(one, 1e-12)) - low) / (high - low) * (end - start),
            ticks,
        )
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    low, high = low - room * (low != 0), high + room * (high != 0)
    wish = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(wish))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= wish)
    ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return lambda one: start + (one - low) / (high - low) * (end - start), ticks
