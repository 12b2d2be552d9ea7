"""The command ``simulate``: how long MoE layers would take on more devices than there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import Json, ProfileFolder, Seed, reporter_of
from moeplan.options import optional_bandwidth, parse_bandwidth
from moeplan.output import human_time
from planner.documents import ExpertPlacement, load_document
from planner.profiles import load_profile
from solvers.counting import counted
from solvers.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from planner.balance_simulator import LayerTimes
    from planner.routing_sources import RoutingSource

__all__ = ["simulate"]


def simulate(
    ctx: typer.Context,
    profile: ProfileFolder,
    placement: Annotated[Path, typer.Option("--placement", help="A file of 'moeplan place'.")],
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Of a device's link to others of its node: 300GB/s.")
    ],
    latency: Annotated[
        float,
        typer.Option(
            "--latency-us",
            min=0.0,
            max=1e9,
            help="Of an exchange among all devices that moves next to nothing.",
        ),
    ],
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Tokens of a pass, on all devices together.")
    ],
    inter_bandwidth: Annotated[
        str | None, typer.Option("--inter-bandwidth", help="Of a device's link to other nodes.")
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option("--routing", help="Routing statistics as for 'place' (the profile's)."),
    ] = None,
    series: Annotated[
        str | None, typer.Option("--series", help="Which series of a file of counts.")
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(
            "--sequences", min=1, help="Sequences that the tokens are of (as many as tokens)."
        ),
    ] = None,
    passes: Annotated[int, typer.Option("--passes", min=1, help="Passes to draw.")] = 64,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Predict the MoE layers' time on many devices, from a placement and the links between them.

    An expert takes what the profile measured. Routing is drawn from sequences that no placement was
    fitted to. Dense parts are not in it.
    """
    from planner.balance_simulator import Links, check_fits, simulate_passes
    from planner.routing_draws import draw_passes
    from planner.routing_sources import load_source, trace_source

    reporter = reporter_of(ctx)
    found = load_profile(profile)
    document = load_document(ExpertPlacement, placement)
    model = found.model
    check_fits(document, model)
    if model.encoder:
        raise UnsupportedError(
            f"{model.name}: an encoder-decoder cannot be simulated on many devices yet: its sides "
            "compute different numbers of tokens in a pass"
        )
    if (document.nodes > 1) != (inter_bandwidth is not None):
        raise OptionError(
            f"the placement is for {counted(document.nodes, 'node')}: "
            + ("give --inter-bandwidth" if document.nodes > 1 else "leave --inter-bandwidth out")
        )
    if routing is None and series is not None:
        raise OptionError("--series has no effect without --routing")
    where = profile / "routing.json" if routing is None else routing
    source = (
        trace_source(found.routing, found.arrays, str(where))
        if routing is None
        else load_source(routing, series)
    )
    _check_source(source, document, where)
    intra = parse_bandwidth(bandwidth, "--bandwidth")
    inter = optional_bandwidth(inter_bandwidth, "--inter-bandwidth") or intra
    load = draw_passes(
        source,
        passes,
        tokens=tokens,
        top_k=max(layer.top_k for layer in model.layers),
        sequences=sequences,
        seed=seed,
    )
    curve = found.costs.curves["expert"]
    times = simulate_passes(
        load,
        document,
        expert=curve,
        links=Links(round(latency * 1e3), float(intra), float(inter)),
        row_bytes=model.hidden_size * model.dtype_bytes,
    )
    total = times.total_ns.sum(axis=1)
    even = float((times.compute_ns - times.idle_ns).mean())
    body: dict[str, Any] = {
        "devices": document.devices,
        "nodes": document.nodes,
        "passes": passes,
        "tokens": tokens,
        "layer_ns": {
            "total": float(times.total_ns.mean()),
            "compute": float(times.compute_ns.mean()),
            "idle": float(times.idle_ns.mean()),
            "exchange": float(times.exchange_ns.mean()),
        },
        "pass_ns": {"mean": float(total.mean()), "ninth_decile": float(np.quantile(total, 0.9))},
        "compute_over_even": float(times.compute_ns.mean()) / even if even else 1.0,
        "expert_source": curve.source,
        "drawn": source.statement,
    }
    most, known = int(load.max()), curve.rows[-1]
    if most > known:
        reporter.note(
            f"moeplan: up to {counted(most, 'row')} choose an expert, and the profile measured up "
            f"to {known:,}: beyond, its time is extrapolated"
        )
    reporter.show(_table(document, times))
    reporter.show(
        Text(
            f"A pass of {counted(tokens, 'token')} through "
            f"{counted(len(document.layers), 'MoE layer')}: {human_time(body['pass_ns']['mean'])}, "
            f"nine of ten below {human_time(body['pass_ns']['ninth_decile'])}, without dense "
            f"parts. An expert's time is {curve.source}, links are as given. "
            f"Routing: {source.statement}."
        )
    )
    reporter.result(body)


def _check_source(source: RoutingSource, placement: ExpertPlacement, where: Path) -> None:
    layers = len(placement.layers)
    if source.experts != placement.experts or len(source.layers) != layers:
        raise OptionError(
            f"{where} tells of {counted(len(source.layers), 'layer')} of "
            f"{counted(source.experts, 'expert')}, the placement of {layers} of "
            f"{placement.experts}; give the --routing of this model"
        )


def _table(placement: ExpertPlacement, times: LayerTimes) -> Table:
    table = Table(box=None, pad_edge=False)
    headings = ("devices", "layer", "computing", "the others wait", "exchange")
    for heading in headings:
        table.add_column(heading, justify="right")
    parts = times.total_ns, times.compute_ns, times.idle_ns, times.exchange_ns
    table.add_row(str(placement.devices), *(human_time(float(part.mean())) for part in parts))
    return table
