"""Points on two axes as SVG, with the line of those that no other one beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

__all__ = ["Axis", "Point", "chart", "frontier"]

_WIDE, _TALL = 520, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 52
_SHAPES = ("circle", "square", "diamond", "triangle")
_COLOURS = 9


@dataclass(frozen=True, slots=True)
class Point:
    """One plan.

    Attributes
    ----------
    x, y
        Where it lies.
    group
        What it is drawn and listed as: one look each.
    words
        What it is, in full.
    href
        Where it is found.
    """

    x: float
    y: float
    group: str
    words: str
    href: str


@dataclass(frozen=True, slots=True)
class Axis:
    """Its title, how its numbers are written, and what a round one is a multiple of."""

    title: str
    write: Callable[[float], str]
    base: int = 1000


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those for which no other one has less of x and as much of y; x ascends, and so does y."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.x, -one.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def chart(
    title: str, points: Sequence[Point], x: Axis, y: Axis, order: Sequence[str] = ()
) -> Markup:
    """The drawing and its legend; nothing where there are no two different points.

    Parameters
    ----------
    title
        Above it.
    points
        What is drawn; the first ones lie on top.
    x, y
        Their axes.
    order
        Groups that come first, so that they look alike in all charts with the same order.
    """
    if len({(one.x, one.y) for one in points}) < 2:
        return Markup()
    low = min(one.x for one in points)
    high = max(one.x for one in points)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    x_low, x_high = max(low - room, 0.0), high + room
    y_high = max(one.y for one in points) * 1.1 or 1.0

    def at(one_x: float, one_y: float) -> tuple[float, float]:
        across = _LEFT + (one_x - x_low) / (x_high - x_low) * (_WIDE - _LEFT - _RIGHT)
        return across, _TALL - _BOTTOM - one_y / y_high * (_TALL - _TOP - _BOTTOM)

    groups = list(dict.fromkeys([*order, *(one.group for one in points)]))
    there = {one.group for one in points}
    drawn = [_axes(x, y, (x_low, x_high), y_high, at)]
    steps = [at(one.x, one.y) for one in frontier(points)]
    if len(steps) > 1:
        way = f"M{steps[0][0]:.1f} {steps[0][1]:.1f}"
        way += "".join(f"H{across:.1f}V{up:.1f}" for across, up in steps[1:])
        drawn.append(Markup('<path class="frontier" d="{}"/>').format(way))
    for one in reversed(points):
        look = groups.index(one.group)
        drawn.append(
            Markup('<a href="{}" aria-label="{}">{}</a>').format(
                one.href, one.words, _mark(look, *at(one.x, one.y), one.words)
            )
        )
    legend = Markup().join(
        Markup(
            '<li><svg class="mark" viewBox="0 0 16 16" aria-hidden="true">{}</svg>{}</li>'
        ).format(_mark(index, 8, 8), group)
        for index, group in enumerate(groups)
        if group in there
    )
    return Markup(
        '<figure><figcaption>{}</figcaption><svg class="chart" viewBox="0 0 {} {}" role="group" '
        'aria-label="{}">{}</svg><ul class="legend">{}<li>dashed: the frontier, '
        "above which no plan lies</li></ul></figure>"
    ).format(title, _WIDE, _TALL, title, Markup().join(drawn), legend)


def _mark(look: int, x: float, y: float, words: str = "") -> Markup:
    """A shape of a colour: both tell groups apart."""
    shape = _SHAPES[(look + look // _COLOURS) % len(_SHAPES)]
    r = 6
    corners = {
        "circle": "",
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "diamond": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        "triangle": f"M{x:.1f} {y - r:.1f}l{r + 1} {2 * r}h{-2 * r - 2}z",
    }[shape]
    title = Markup("<title>{}</title>").format(words) if words else Markup()
    colour = f"c{look % _COLOURS}"
    if not corners:
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>').format(
            colour, x, y, r, title
        )
    return Markup('<path class="{}" d="{}">{}</path>').format(colour, corners, title)


def _axes(
    x: Axis,
    y: Axis,
    x_range: tuple[float, float],
    y_high: float,
    at: Callable[[float, float], tuple[float, float]],
) -> Markup:
    line = Markup('<path class="grid" d="M{:.1f} {:.1f}{}"/>')
    label = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    parts = []
    for value in _ticks(0.0, y_high, 5, y.base):
        _, up = at(x_range[0], value)
        parts.append(line.format(_LEFT, up, f"H{_WIDE - _RIGHT}"))
        parts.append(label.format(_LEFT - 6, up + 4, "end", y.write(value)))
    for value in _ticks(*x_range, 4, x.base):
        across, _ = at(value, 0.0)
        parts.append(line.format(across, _TOP, f"V{_TALL - _BOTTOM}"))
        parts.append(label.format(across, _TALL - _BOTTOM + 19, "middle", x.write(value)))
    parts.append(label.format((_LEFT + _WIDE - _RIGHT) / 2, _TALL - 8, "middle", x.title))
    parts.append(
        Markup(
            '<text transform="translate(13 {}) rotate(-90)" text-anchor="middle">{}</text>'
        ).format((_TOP + _TALL - _BOTTOM) / 2, y.title)
    )
    return Markup().join(parts)


def _ticks(low: float, high: float, wish: int, base: int) -> list[float]:
    """About so many round numbers between two: multiples of the largest unit that fits in."""
    unit = float(base) ** max(math.floor(math.log(high, base)), 0)
    power = unit * 10 ** math.floor(math.log10((high - low) / unit / wish))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * wish >= high - low)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
