"""The command ``place``: experts on many devices."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import Json, Seed, placement_summary, reporter_of
from moeplan.options import check_outputs, optional_bandwidth, parse_size, split_names
from moeplan.words import compared
from planner.documents import document_hash, write_document
from solvers.counting import counted
from solvers.errors import OptionError
from solvers.told import Told

if TYPE_CHECKING:
    from planner.documents.placement import ExpertPlacement

__all__ = ["place"]

_DEFAULT_TIME_LIMIT_SECONDS = 30.0
_UNCHOSEN = (
    "searched all layers without a choice: of so few fitted batches none could be kept apart to "
    "compare it with the rules on (--scenarios 16 or more can)."
)


def place(
    ctx: typer.Context,
    routing: Annotated[
        Path,
        typer.Option(
            "--routing",
            help="Routing statistics: a profile's routing.json, shares in .npz, heat or counts.",
        ),
    ],
    devices: Annotated[int, typer.Option("--devices", min=1, help="How many devices.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the placement here.")] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="contiguous, greedy, anti-correlation, replicate, cpsat or milp; with commas "
            "between: compare them (the best is written; replicas only where one makes them).",
        ),
    ] = "cpsat",
    replicas: Annotated[
        int, typer.Option("--replicas", min=0, help="Copies of each layer beyond one per expert.")
    ] = 0,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Memory for experts on each device.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="A checkpoint or config.json: how large an expert is."),
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Nodes that the devices divide into.")
    ] = 1,
    intra_bandwidth: Annotated[
        str | None, typer.Option("--intra-bandwidth", help="Between devices of a node: 300GB/s.")
    ] = None,
    inter_bandwidth: Annotated[
        str | None, typer.Option("--inter-bandwidth", help="Between nodes: 25GB/s.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            help="Sequences in a batch (1); of statistics without sequences, tokens (64).",
        ),
    ] = None,
    scenarios: Annotated[
        int, typer.Option("--scenarios", min=1, help="Batches to fit; twice as many judge.")
    ] = 512,
    series: Annotated[
        str | None, typer.Option("--series", help="Which series of a file of counts.")
    ] = None,
    fit_domains: Annotated[
        str | None, typer.Option("--fit-domains", help="Fit on these domains only.")
    ] = None,
    judge_domains: Annotated[
        str | None, typer.Option("--judge-domains", help="Judge on these domains (the same).")
    ] = None,
    by_domain: Annotated[
        bool, typer.Option("--by-domain", help="Each batch is of one domain.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", min=0.001, help="Seconds for a method that searches (30)."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Place each layer's experts on devices, evenly loaded on batches not yet seen."""
    from planner.placement import METHODS, SINGLE, Cluster, expert_room, file_hash, scenes_of
    from planner.placement import place as place_experts
    from planner.routing_sources import load_source
    from solvers.placement.rules import RULES

    reporter = reporter_of(ctx)
    names = split_names(method, METHODS, "--method")
    if time_limit is not None and not {"cpsat", "milp"} & set(names):
        raise OptionError(f"--time-limit has no effect: {', '.join(names)} does not search")
    if (memory is None) != (model is None):
        raise OptionError("--memory and --model go together: how much room, and for how large ones")
    if nodes == 1 and inter_bandwidth is not None:
        raise OptionError("--inter-bandwidth has no effect with one node: give --nodes")
    if (intra_bandwidth is None) != (inter_bandwidth is None):
        raise OptionError("--intra-bandwidth and --inter-bandwidth go together")
    check_outputs({"--out": out}, [routing, model], made="placement")
    source = load_source(routing, series)
    cluster = Cluster(
        devices,
        nodes,
        float(optional_bandwidth(intra_bandwidth, "--intra-bandwidth") or 1),
        float(optional_bandwidth(inter_bandwidth, "--inter-bandwidth") or 1),
    )
    if nodes > 1 and source.joint is None:
        raise OptionError(
            f"--nodes has no effect: {routing} does not say which experts follow which from layer "
            "to layer (a profile's routing.json does)"
        )
    room = expert_room(
        cluster,
        layers=len(source.layers),
        experts=source.experts,
        replicas=replicas,
        memory_bytes=None if memory is None else parse_size(memory, "--memory"),
        expert_bytes=None if model is None else _expert_bytes(model, source.experts),
    )
    fitted = None if fit_domains is None else split_names(fit_domains, source.domains, "domain")
    judged = (
        fitted if judge_domains is None else split_names(judge_domains, source.domains, "domain")
    )
    scenes = scenes_of(
        source,
        scenarios=scenarios,
        judged=2 * scenarios,
        batch=batch or (1 if source.sequences else 64),
        seed=seed,
        fit_domains=fitted,
        judge_domains=judged,
        by_domain=by_domain,
    )
    placements: list[ExpertPlacement] = []
    source_hash = file_hash(routing)
    with reporter.steps("place") as progress:
        for name in names:
            progress(0, 0, name)
            placements.append(
                place_experts(
                    source,
                    scenes,
                    cluster,
                    room,
                    method=name,
                    replicas=replicas if len(names) == 1 or name not in SINGLE else 0,
                    source_hash=source_hash,
                    time_limit_seconds=time_limit or _DEFAULT_TIME_LIMIT_SECONDS,
                    seed=seed,
                    progress=functools.partial(_tell, progress, name),
                )
            )
    best = min(placements, key=_judged)
    if out is not None:
        write_document(best, out)
    reporter.show(_table(placements, cluster.devices))
    reporter.show(Text(f"Batches: {scenes.drawn}. An even load would be {1 / devices:.4f}."))
    for one in placements:
        if one.candidates:
            reporter.show(Text(_choice(one)))
        elif one.method not in RULES:
            reporter.show(Text(f"{one.method} {_UNCHOSEN}"))
    if out is not None:
        why = ", of these the best on the batches that judge" if len(placements) > 1 else ""
        reporter.show(Text(f"{best.method} is written to {out}{why}"))
    summaries = [{**placement_summary(one), "hash": document_hash(one)} for one in placements]
    chosen = summaries[placements.index(best)]
    reporter.result({**chosen, "methods": summaries, "out": out and str(out)})


def _tell(steps: Told, name: str, done: int, total: int, what: str) -> None:
    """What a method that searches is at."""
    steps(done, total, f"{name}, {what}")


def _expert_bytes(path: Path, experts: int) -> int:
    """What the largest expert of a model takes on a device."""
    from planner.model_spec import read_model
    from planner.placement import largest_expert

    return largest_expert(read_model(path), experts, f"--model {path}")


def _judged(placement: ExpertPlacement) -> float:
    """What placements are compared by."""
    return placement.held_out.average_max_load


def _choice(placement: ExpertPlacement) -> str:
    """What a method that searches took in which layers, and what the others came to."""
    said = [
        f"{one.name} {one.average_max_load:.4f}"
        + (f" (in {counted(one.layers, 'layer')})" if one.layers else "")
        for one in compared(placement)
    ]
    return (
        f"{placement.method} took what had less on the fullest device on fitted batches that it "
        f"had not learnt from: {', '.join(said)}."
    )


def _table(placements: list[ExpertPlacement], devices: int) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    for heading in ("fullest device, mean", "worst", "over even", "fitted", "bound", "moved"):
        table.add_column(heading, justify="right")
    best = min(map(_judged, placements))
    for one in placements:
        seen = one.held_out
        table.add_row(
            one.method,
            f"{seen.average_max_load:.4f}",
            f"{seen.max_load:.4f}",
            f"+{100 * (seen.average_max_load * devices - 1):.1f}%",
            f"{one.fitted.average_max_load:.4f}",
            f"{one.bound:.4f}",
            "–" if seen.traffic is None else f"{100 * seen.traffic:.0f}%",
            style="bold" if _judged(one) == best else "",
        )
    return table
