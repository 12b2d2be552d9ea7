"""Routing statistics as pictures: a heat map for the terminal, and a page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.text import Text

from moeplan.plots import Chart, Grid, Line, TableOf, build_plots
from planner.documents import RoutingTrace
from planner.routing import TraceArrays, coactivation, popularity
from planner.routing_statistics import (
    activated,
    coverage,
    drift,
    effective_experts,
    information,
    pairs,
)
from solvers.counting import counted

__all__ = ["RoutingView", "heat_map", "routing_page", "routing_summary"]

Floats = npt.NDArray[np.float64]

_SHADES = " ░▒▓█"
_LEAST_WIDTH = 16
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, eq=False)
class RoutingView:
    """A trace and what is shown of it.

    Attributes
    ----------
    trace, arrays
        What was recorded.
    chosen
        The layer whose co-activation with the next is drawn; None: where one choice tells most of
        the next.
    """

    trace: RoutingTrace
    arrays: TraceArrays
    chosen: int | None = None

    @cached_property
    def shares(self) -> Floats:
        """Popularity, [layers, experts]."""
        return popularity(self.arrays, self.trace.experts)

    @cached_property
    def covered(self) -> Floats:
        """Share of choices that the K most popular experts have, [layers, experts]."""
        return coverage(self.shares)

    @cached_property
    def even(self) -> Floats:
        """How many experts chosen alike would be as undecided, [layers]."""
        return effective_experts(self.shares)

    @cached_property
    def following(self) -> Floats:
        """P(f in the next layer / e), [layers - 1, experts, experts]."""
        return coactivation(self.arrays, self.trace.experts)

    @cached_property
    def bits(self) -> tuple[float, ...]:
        """What a choice in a layer tells of one in the next, for all layers but the last."""
        return tuple(
            information(table, shares, self.trace.top_k)
            for table, shares in zip(self.following, self.shares, strict=False)
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens that activation is told for."""
        columns = range(len(self.trace.moe_layers))
        fewest = min(len(self.arrays.chosen(column)) for column in columns)
        return tuple(size for size in _SIZES if size <= fewest)

    @cached_property
    def active(self) -> Floats:
        """Share of experts that N tokens activate, [sizes, layers]."""
        return activated(self.arrays, self.trace.experts, self.sizes)

    @cached_property
    def apart(self) -> Floats | None:
        """Popularity in prefill against decode, [layers]."""
        return drift(self.arrays, self.trace.experts)

    @property
    def layer(self) -> int:
        """Index (among MoE layers) of the layer whose matrices are drawn."""
        if self.chosen is not None:
            return self.trace.moe_layers.index(self.chosen)
        return int(np.argmax(self.bits)) if self.bits else 0


def heat_map(view: RoutingView, width: int) -> Text:
    """Popularity, a row a layer and a column an expert, most popular first.

    Where experts are more than columns, a column is the mean of neighbours.
    """
    trace = view.trace
    names = [str(layer) for layer in trace.moe_layers]
    margin = max(map(len, names)) + 1
    room = max(width - margin - 2, _LEAST_WIDTH)
    columns = min(room, trace.experts)
    ordered = np.sort(view.shares, axis=1)[:, ::-1] * trace.experts
    borders = np.linspace(0, trace.experts, columns + 1).round().astype(int)
    text = Text()
    for name, row in zip(names, ordered, strict=True):
        means = [row[start:end].mean() for start, end in pairwise(borders)]
        text.append(f"{name:>{margin - 1}} ", "dim")
        text.append("".join(_shade(mean) for mean in means), "blue")
        text.append("\n")
    text.append(
        f"{'':{margin}}most popular first; {_shade(0.5)} half, {_shade(1)} as often as by chance, "
        f"{_shade(2)} twice, {_shade(4)} more than three times",
        "dim",
    )
    return text


def _shade(times: float) -> str:
    """For how often an expert is chosen, in units of chance."""
    return _SHADES[sum(times >= least for least in (0.25, 0.75, 1.5, 3.0))]


def routing_summary(view: RoutingView) -> dict[str, Any]:
    """What scripts ask of routing statistics."""
    trace, shares = view.trace, view.shares
    most = view.covered.shape[1]
    places = sorted({min(k, most) for k in (trace.top_k, most // 4 or 1, most // 2 or 1)})
    return {
        "source": trace.source,
        "tokens": trace.tokens,
        "sequences": trace.sequences,
        "experts": trace.experts,
        "top_k": trace.top_k,
        "layers": [
            {
                "layer": layer,
                "popularity": shares[row].tolist(),
                "effective_experts": float(view.even[row]),
                "coverage": {str(k): float(view.covered[row, k - 1]) for k in places},
                "activated": {
                    str(size): float(view.active[at, row]) for at, size in enumerate(view.sizes)
                },
                "bits_about_next": view.bits[row] if row < len(view.bits) else None,
                "drift": None if view.apart is None else float(view.apart[row]),
            }
            for row, layer in enumerate(trace.moe_layers)
        ],
    }


def routing_page(view: RoutingView, name: str) -> str:
    """The page.

    Parameters
    ----------
    view
        What is shown.
    name
        Of the model, or of the file.
    """
    trace, shares, layers = view.trace, view.shares, view.trace.moe_layers
    at = view.layer
    charts: list[Chart | Grid] = [
        Grid(
            "Popularity",
            "expert",
            "layer",
            layers,
            _cells(shares * trace.experts),
            "times chance",
            "How often each expert is chosen; 1 is as often as by chance.",
        ),
        _coverage_chart(view),
        _activation_chart(view),
    ]
    if view.bits:
        here, then = layers[at], layers[at + 1]
        charts.append(
            Grid(
                f"Co-activation of layers {here} and {then}",
                f"expert of layer {then}",
                f"expert of layer {here}",
                tuple(range(trace.experts)),
                _cells(view.following[at]),
                "probability",
                f"P(chosen in layer {then} / chosen in layer {here}); a choice there tells "
                f"{view.bits[at]:.2f} bits of one here. --layer draws another.",
            )
        )
    if trace.top_k > 1:
        charts.append(
            Grid(
                f"Pairs in layer {layers[at]}",
                "expert",
                "with expert",
                tuple(range(trace.experts)),
                _cells(pairs(view.arrays, trace.experts, at)),
                "probability",
                "P(chosen, too / chosen), for one token.",
            )
        )
    kind = {"measured": "recorded", "synthetic": "of a synthetic checkpoint"}
    subtitle = (
        f"{counted(trace.tokens, 'token')} in {counted(trace.sequences, 'sequence')}, "
        f"{kind.get(trace.source, trace.source)}; {trace.top_k} of "
        f"{counted(trace.experts, 'expert')} in each of {counted(len(layers), 'layer')}"
    )
    return build_plots(f"Routing of {name}", subtitle, charts, [_layer_table(view)])


def _cells(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


def _spread(name: str, x: tuple[int, ...], values: Floats) -> tuple[Line, ...]:
    """Mean, least and most over layers; ``values`` is [x, layers]."""
    return tuple(
        Line(f"{what}{name}", tuple(map(float, x)), tuple(of(values, axis=1).tolist()))
        for what, of in (
            ("mean of layers", np.mean),
            ("least of any layer", np.min),
            ("most of any layer", np.max),
        )
    )


def _coverage_chart(view: RoutingView) -> Chart:
    experts = view.trace.experts
    kept = tuple(range(1, experts + 1))
    chance = Line(
        "by chance", tuple(map(float, kept)), tuple(k / experts for k in kept), dashed=True
    )
    return Chart(
        "Coverage",
        "experts kept in each layer",
        "share of choices",
        (*_spread("", kept, view.covered.T), chance),
        "Share of all choices that fall on the K most popular experts of their layer: what keeping "
        "them on the device would save of copies, for one token at a time.",
    )


def _activation_chart(view: RoutingView) -> Chart:
    trace = view.trace
    chance = tuple(1 - (1 - trace.top_k / trace.experts) ** size for size in view.sizes)
    return Chart(
        "Experts activated by N tokens",
        "tokens",
        "share of a layer's experts",
        (
            *_spread("", view.sizes, view.active),
            Line("all alike", tuple(map(float, view.sizes)), chance, dashed=True),
        ),
        "Of any N recorded tokens; those of one sequence are more alike than that.",
        log_x=True,
    )


def _layer_table(view: RoutingView) -> TableOf:
    quarter = max(view.trace.experts // 4, 1)
    rows = [
        (
            str(layer),
            f"{view.shares[row].max() * view.trace.experts:.2f} x",
            f"{view.even[row]:.1f}",
            f"{view.covered[row, quarter - 1]:.0%}",
            f"{view.bits[row]:.2f}" if row < len(view.bits) else "–",
            "–" if view.apart is None else f"{view.apart[row]:.2f}",
        )
        for row, layer in enumerate(view.trace.moe_layers)
    ]
    return TableOf(
        "Layers",
        (
            "layer",
            "most popular",
            "as even as",
            f"coverage of {quarter}",
            "bits about next",
            "prefill / decode",
        ),
        tuple(rows),
        "Most popular: in units of chance. As even as: so many experts chosen alike would be as "
        "undecided. Prefill / decode: how far apart their popularity is, from 0 to 1.",
    )
