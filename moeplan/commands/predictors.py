"""The command ``predictors``: how often each one names the experts that a layer then needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import Json, PlotsFile, Seed, reporter_of
from moeplan.options import check_outputs
from moeplan.plots import Chart, Line, TableOf, build_plots, require_plotly
from planner.documents import RoutingTrace, write_atomic
from planner.files import is_dir
from planner.profiles import load_profile
from planner.routing import TraceArrays, load_trace
from solvers.counting import counted
from solvers.errors import OptionError

if TYPE_CHECKING:
    from planner.predictor_report import LayerRates, Rate

__all__ = ["predictors"]


def predictors(
    ctx: typer.Context,
    profile: Annotated[
        Path,
        typer.Argument(metavar="PROFILE_DIR", help="A profile's folder, or its routing.json."),
    ],
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", help="Judge, too, on another profile's routing of the same model."
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Experts that each names (what a token chooses)."),
    ] = None,
    group: Annotated[
        int, typer.Option("--group", min=1, help="Sequences that are decoded together.")
    ] = 1,
    seed: Seed = 0,
    html: PlotsFile = None,
    as_json: Json = False,
) -> None:
    """Hit rates of prefetch predictors, layer by layer, on sequences not used to fit them."""
    from planner.predictor_report import check_judgeable, halves, judge, tables_of

    reporter = reporter_of(ctx)
    check_outputs({"--html": html}, [profile, against])
    if html is not None:
        require_plotly()
    trace, arrays = _routing_of(profile)
    check_judgeable(trace)
    named = trace.top_k if count is None else count
    if named > trace.experts:
        raise OptionError(f"--count {named}: a layer has only {counted(trace.experts, 'expert')}")
    fitted, held_out = halves(trace.sequences, seed)
    judged: list[tuple[str, TraceArrays, Any]] = [("the other half", arrays, held_out)]
    judging = [len(held_out)]
    if against is not None:
        other, others = _routing_of(against)
        if other.model_hash != trace.model_hash:
            raise OptionError(f"--against {against}: is the routing of another model")
        if other.arrays_hash == trace.arrays_hash:
            raise OptionError(f"--against {against}: holds the same routing; give another one")
        judged.append((str(against), others, None))
        judging.append(other.sequences)
    if group > min(judging):
        raise OptionError(
            f"--group {group}: there are only {counted(min(judging), 'sequence')} to judge by; "
            "give fewer"
        )
    tables = tables_of(arrays, fitted, trace.experts)
    results = []
    for (name, where, members), sequences in zip(judged, judging, strict=True):
        layers = judge(
            tables, where, members, moe_layers=trace.moe_layers, count=named, group=group
        )
        results.append((name, sequences, layers))
    said = (
        f"Share of the experts needed that a predictor had named, {named} of "
        f"{counted(trace.experts, 'expert')} a layer; {group} decoded together; fitted on "
        f"{counted(len(fitted), 'sequence')}. In the first layer coactivation has "
        "nothing to go by but popularity."
    )
    for name, sequences, layers in results:
        reporter.show(Text(f"judged on {name}, {counted(sequences, 'sequence')}", "bold"))
        reporter.show(_table(layers))
        reporter.show("")
    reporter.show(Text(said))
    if arrays.ahead is None:
        reporter.show(
            Text("The profile did not record what routers say ahead, so lookahead is missing.")
        )
    if html is not None:
        charts = [_chart(name, layers) for name, _, layers in results]
        shown = [
            TableOf(
                f"Judged on {name}",
                _headings(layers),
                _rows(layers),
                counted(sequences, "sequence"),
            )
            for name, sequences, layers in results
        ]
        page = build_plots("Predictors of experts", said, charts, shown)
        write_atomic(html, page.encode())
        reporter.show(Text(f"The plots are in {html}"))
    reporter.result(
        {
            "count": named,
            "group": group,
            "fitted_sequences": len(fitted),
            "judged": [
                {
                    "on": name,
                    "sequences": sequences,
                    "hit_rate": _means(layers),
                    "layers": [_summary(one) for one in layers],
                }
                for name, sequences, layers in results
            ],
            "html": None if html is None else str(html),
        }
    )


def _routing_of(path: Path) -> tuple[RoutingTrace, TraceArrays]:
    if is_dir(path):
        loaded = load_profile(path)
        return loaded.routing, loaded.arrays
    return load_trace(path)


def _means(layers: tuple[LayerRates, ...]) -> dict[str, float | None]:
    """Of the layers after the first, where there are any: the first has none before it."""
    rest = layers[1:] or layers
    return {
        name: None
        if any(one.rates[name] is None for one in rest)
        else sum(rate.hit_rate for one in rest if (rate := one.rates[name]) is not None) / len(rest)
        for name in layers[0].rates
    }


def _summary(one: LayerRates) -> dict[str, Any]:
    def of(field: str) -> dict[str, float | None]:
        return {
            name: None if rate is None else getattr(rate, field) for name, rate in one.rates.items()
        }

    return {
        "layer": one.layer,
        "needed": one.needed,
        "hit_rate": of("hit_rate"),
        "used": of("used"),
    }


def _headings(layers: tuple[LayerRates, ...]) -> tuple[str, ...]:
    return ("layer", "needed", *layers[0].rates)


def _rows(layers: tuple[LayerRates, ...]) -> tuple[tuple[str, ...], ...]:
    means = _means(layers)
    rest = layers[1:] or layers
    last = ("mean of the rest", f"{sum(one.needed for one in rest) / len(rest):.1f}")
    return (
        *(
            (str(one.layer), f"{one.needed:.1f}", *map(_percent, one.rates.values()))
            for one in layers
        ),
        (*last, *("–" if mean is None else f"{100 * mean:.1f}%" for mean in means.values())),
    )


def _percent(rate: Rate | None) -> str:
    return "–" if rate is None else f"{100 * rate.hit_rate:.1f}%"


def _table(layers: tuple[LayerRates, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(_headings(layers)):
        table.add_column(heading, justify="right" if index else "left")
    for row in _rows(layers):
        table.add_row(*row)
    return table


def _chart(name: str, layers: tuple[LayerRates, ...]) -> Chart:
    lines = [
        Line(
            row,
            tuple(float(one.layer) for one in layers),
            tuple(None if (rate := one.rates[row]) is None else rate.hit_rate for one in layers),
            dashed=row in ("uniform", "clairvoyant"),
        )
        for row in layers[0].rates
    ]
    return Chart(f"Judged on {name}", "layer", "hit rate", tuple(lines))
