"""Commands that only look at documents: ``show`` and ``schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from moeplan.bars import expert_map, memory_bars
from moeplan.commands.common import (
    Json,
    plan_summary,
    reporter_of,
    say,
    say_plan,
    trace_summary,
)
from moeplan.commands.inputs import hardware_of, load_plan, model_of
from moeplan.commands.routing import show_routing
from moeplan.options import check_outputs
from moeplan.output import Reporter
from moeplan.page import build_page
from moeplan.terminal import draw_pass, pass_indices
from moeplan.words import explain_trace
from planner.documents import (
    DOCUMENTS,
    ModelSpec,
    Plan,
    RoutingTrace,
    Timeline,
    Trace,
    document_hash,
    load_document,
    write_atomic,
)
from planner.files import is_dir, read_regular
from solvers.errors import DocumentError, OptionError, StaleError

__all__ = ["document_schema", "kind_of", "load_plan_or_trace", "schema", "show"]


def document_schema(name: str) -> dict[str, Any]:
    """JSON Schema of one kind of document, ``kind`` and ``version`` included.

    Raises
    ------
    OptionError
        If there is no such kind.
    """
    from pydantic import TypeAdapter

    if name not in DOCUMENTS:
        raise OptionError(f"schema {name!r} is unknown; choose from {', '.join(DOCUMENTS)}")
    cls = DOCUMENTS[name]
    body = TypeAdapter(cls).json_schema()
    seal = {"content_hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"}} if cls.sealed else {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "properties": {
            "kind": {"const": cls.kind},
            "version": {"const": cls.version},
            **body["properties"],
            **seal,
        },
        "required": ["kind", "version", *body.get("required", []), *seal],
    }


def schema(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(DOCUMENTS)}.")],
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of a document."""
    reporter = reporter_of(ctx)
    document = document_schema(name)
    reporter.show_text(json.dumps(document, indent=1))
    reporter.result(document)


def load_plan_or_trace(path: Path) -> Plan | Trace:
    """Whichever of the two the file holds.

    Raises
    ------
    DocumentError
        If it is neither.
    """
    kind = kind_of(path)
    if kind == Plan.kind:
        return load_plan(path)
    if kind == Trace.kind:
        return load_document(Trace, path)
    if kind is None:
        raise DocumentError(f"{path}: has no 'kind'; is it a moeplan document?")
    raise DocumentError(f"{path}: kind is {kind!r}; a plan or a trace was expected")


def kind_of(path: Path) -> Any:
    """What kind of document a file says it holds; None where it says nothing.

    Raises
    ------
    DocumentError
        If it is not JSON.
    """
    try:
        value = json.loads(read_regular(path, "plan or a trace"))
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path}: cannot be read as JSON: {error}") from error
    return value.get("kind") if isinstance(value, dict) else None


def show(
    ctx: typer.Context,
    documents: Annotated[
        list[Path],
        typer.Argument(
            metavar="PLAN|TRACE...",
            help="A plan, a trace, or a plan and its trace; or a PROFILE_DIR or its routing.json.",
        ),
    ],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the report as one HTML page.")
    ] = None,
    pass_index: Annotated[
        int | None,
        typer.Option("--pass", min=0, help="Pass to draw: 0 is prefill (the first decode pass)."),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option("--layer", min=0, help="Layer of a routing page (the most telling)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a plan or a run: words, memory, and one pass as a timeline; or as an HTML page. Of a
    profile: which experts are chosen, and together with which."""
    reporter = reporter_of(ctx)
    if len(documents) == 1 and _is_routing(documents[0]):
        if pass_index is not None:
            raise OptionError(f"--pass has no effect on the routing of {documents[0]}")
        if layer is not None and html is None:
            raise OptionError("--layer has no effect without --html")
        check_outputs({"--html": html}, documents)
        show_routing(reporter, documents[0], html, layer)
        return
    if layer is not None:
        raise OptionError("--layer is for the routing of a profile: it has no effect here")
    plan, trace = _plan_and_trace(documents)
    places = [Path(plan.locations.profile)] if plan is not None else []
    check_outputs({"--html": html}, [*documents, *places])
    model = model_of(plan) if plan is not None else None
    hardware = hardware_of(plan) if plan is not None else None
    if html is not None and pass_index is not None:
        raise OptionError("--pass has no effect on the page of --html, which has every pass")
    drawn = []
    for name, timeline in (
        ("predicted", plan.predicted.timeline if plan is not None else None),
        ("measured", trace.timeline if trace is not None else None),
    ):
        if timeline is not None and pass_indices(timeline):
            drawn.append((name, timeline, _pick_pass(timeline, pass_index, name)))
    if html is not None:
        write_atomic(html, build_page(plan, trace, model, hardware).encode())
        reporter.show(Text(f"The report is in {html}"))
    elif not as_json:
        if plan is not None:
            say_plan(reporter, plan, model)
            _memory(reporter, plan, model)
        if trace is not None:
            say(reporter, explain_trace(trace, plan, hardware))
        for name, timeline, index in drawn:
            width = reporter.console.width
            phase = "prefill" if index == 0 else f"pass {index}"
            reporter.show(Text(f"\n{name}, {phase}", "bold"))
            reporter.show(draw_pass(timeline, index, _head_layer(plan, timeline), width))
    reporter.result(
        {
            "plan": plan_summary(plan) if plan is not None else None,
            "trace": trace_summary(trace, plan.workload.requests if plan is not None else None)
            if trace is not None
            else None,
            "html": str(html) if html is not None else None,
        }
    )


def _is_routing(path: Path) -> bool:
    return is_dir(path) or kind_of(path) == RoutingTrace.kind


def _plan_and_trace(documents: list[Path]) -> tuple[Plan | None, Trace | None]:
    plan: Plan | None = None
    trace: Trace | None = None
    for path in documents:
        document = load_plan_or_trace(path)
        if isinstance(document, Plan) and plan is None:
            plan = document
        elif isinstance(document, Trace) and trace is None:
            trace = document
        else:
            raise OptionError(f"{path}: a second {document.kind}; give one plan and one trace")
    if plan is not None and trace is not None and trace.plan_hash != document_hash(plan):
        raise StaleError("plan", "the trace is of another plan's run; give the plan that was run")
    return plan, trace


def _pick_pass(timeline: Timeline, wanted: int | None, name: str) -> int:
    there = pass_indices(timeline)
    if wanted is None:
        return there[1] if len(there) > 1 else there[0]
    if wanted not in there:
        raise OptionError(
            f"--pass {wanted}: the {name} timeline has passes {there[0]} to {there[-1]}"
        )
    return wanted


def _head_layer(plan: Plan | None, timeline: Timeline) -> int:
    if plan is not None:
        return len(plan.policy.layers)
    return max((event.layer for event in timeline.events() if event.kind == "head"), default=-2)


def _memory(reporter: Reporter, plan: Plan, model: ModelSpec | None) -> None:
    for tier, account in plan.memory.items():
        reporter.show(Text(f"Memory of the {tier} at its peak", "bold"))
        reporter.show(memory_bars(account.by_purpose, account.capacity_bytes))
        reporter.show("")
    if model is not None and max(layer.experts for layer in model.layers) <= 90:
        reporter.show(Text("Experts, a row a layer", "bold"))
        reporter.show(expert_map(plan, model))
        reporter.show("")
