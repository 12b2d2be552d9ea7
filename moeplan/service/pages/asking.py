"""Forms that ask for jobs: their fields, and the way from what was typed to the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from moeplan.output import human_bytes
from moeplan.service.errors import QueueFullError
from moeplan.service.pages.forms import (
    Field,
    Filled,
    Typed,
    bandwidth,
    number,
    percent,
    size,
    whole,
    yes,
)
from moeplan.service.pages.render import page
from moeplan.service.problems import Refusal
from moeplan.service.requests import CompareRequest, PlacementRequest, PlanRequest
from moeplan.service.routes.common import Service
from moeplan.service.routes.plans import must_be_kept
from moeplan.service.store import Kept
from planner.objectives import OBJECTIVES
from planner.placement import METHODS
from solvers.registry import names

__all__ = ["Chosen", "comparison_fields", "placement_fields", "plan_fields", "show", "submit"]

Chosen = Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")]
"""A document that a link has chosen."""
_SHOWN = 200
"""Documents to choose from; of more, the newest."""
_extra = partial(Field, optional=True, more=True)
"""A field that is shown when more is asked for, and may be left empty."""


def _named(values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((value, value) for value in values)


def _kept(service: Service, kind: str) -> tuple[tuple[str, str], ...]:
    return tuple(map(_choice, service.store.documents.listed(kind, limit=_SHOWN)))


def _choice(kept: Kept) -> tuple[str, str]:
    return kept.hash, f"{kept.name} ({kept.hash[:10]})"


def _search_fields(service: Service, *between: Field) -> list[Field]:
    work = ("workload",)
    return [
        Field("profile", "Profile", choices=_kept(service, "profile")),
        Field(
            "memory_bytes",
            "Memory",
            size,
            help="The device's budget: 600MiB, 1.5GB or bytes. It is never exceeded.",
        ),
        Field("requests", "Requests", whole, ("64",), place=(*work, "requests")),
        Field("prompt_tokens", "Prompt tokens", whole, ("64",), place=(*work, "prompt_tokens")),
        Field("new_tokens", "New tokens", whole, ("16",), place=(*work, "new_tokens")),
        *between,
        _extra(
            "attention_window",
            "Attention window",
            whole,
            help="Last tokens that one attends to: less memory, other outputs. All, unless given.",
            place=(*work, "attention_window"),
        ),
        _extra(
            "attention_sinks",
            "Attention sinks",
            whole,
            help="First tokens of a sequence that are seen, too. It goes with the window.",
            place=(*work, "attention_sinks"),
        ),
        _extra(
            "kv",
            "Keys and values",
            choices=(
                ("device", "on the device"),
                ("below", "below it, of layers that stream"),
                ("batches", "below it, each batch's by themselves"),
            ),
            help="Where they lie: what is better, unless chosen.",
        ),
        _extra(
            "predictors",
            "Predictors",
            yes,
            choices=(
                ("yes", "what predictor finds more than the lists of prefetches"),
                ("no", "the lists alone"),
            ),
            help="What layers follow: a solver that searches lets them look ahead where that is "
            "clearly faster, unless chosen.",
        ),
        _extra(
            "allow_error",
            "Allowed error",
            percent,
            help="Of a store with several forms: how far off experts' weights may be on average, "
            "as in 1%. All are as in the checkpoint, unless given.",
        ),
        _extra(
            "then",
            "Second objective",
            choices=_named(OBJECTIVES),
            help="The best by it among plans that are nearly the best by the first.",
        ),
        _extra(
            "tolerance",
            "Tolerance",
            percent,
            help="What of the first objective the second may cost: 1% unless given.",
        ),
        *_of_search("solver", 10),
    ]


def _of_search(what: str, seconds: int) -> tuple[Field, Field]:
    """How long, and from which seed."""
    help = f"Seconds for a {what} that searches: {seconds} unless given."
    return (
        _extra("time_limit_seconds", "Time limit", number, help=help),
        _extra("seed", "Seed", whole, ("0",)),
    )


def plan_fields(service: Service) -> list[Field]:
    """Of a plan."""
    return _search_fields(
        service,
        Field("solver", "Solver", initial=("cpsat",), choices=_named(names())),
        Field("objective", "Objective", initial=("throughput",), choices=_named(OBJECTIVES)),
    )


def comparison_fields(service: Service) -> list[Field]:
    """Of a comparison."""
    return _search_fields(
        service,
        Field("solvers", "Solvers", initial=names(), choices=_named(names()), many=True),
        Field(
            "objectives",
            "Objectives",
            initial=OBJECTIVES[:1],
            choices=_named(OBJECTIVES),
            many=True,
        ),
    )


def placement_fields(service: Service) -> list[Field]:
    """Of a placement."""
    return [
        Field("routing", "Routing", choices=_kept(service, "routing")),
        Field("devices", "Devices", whole, ("4",)),
        Field("nodes", "Nodes", whole, ("1",)),
        Field("method", "Method", initial=("cpsat",), choices=_named(METHODS)),
        Field(
            "replicas",
            "Replicas",
            whole,
            ("0",),
            help="Copies that a layer may have beyond one of each expert.",
        ),
        _extra(
            "memory_bytes",
            "Memory",
            size,
            help="For experts, on each device; it goes with the model.",
        ),
        _extra(
            "model",
            "Model",
            choices=_kept(service, "model"),
            help="How large its experts are.",
        ),
        _extra(
            "intra_bandwidth",
            "Bandwidth within a node",
            bandwidth,
            help="As in 300GB/s; it goes with the bandwidth between nodes.",
        ),
        _extra("inter_bandwidth", "Bandwidth between nodes", bandwidth),
        Field("batch", "Batch", whole, ("1",), more=True, help="Sequences in a step."),
        Field("scenarios", "Scenarios", whole, ("512",), more=True),
        *_of_search("method", 30),
    ]


_FORMS: dict[str, tuple[Callable[[Service], list[Field]], type, str, str]] = {
    "plan": (plan_fields, PlanRequest, "profile", "Make a plan"),
    "compare": (comparison_fields, CompareRequest, "profile", "Compare solvers"),
    "place": (placement_fields, PlacementRequest, "routing", "Place experts"),
}
"""Kind of job -> its fields, its request, what must be kept for it, and its title."""


def _with(service: Service, fields: list[Field], chosen: str | None) -> list[Field]:
    """The fields, with ``chosen`` among the documents of the first one, however old it is."""
    first, *others = fields
    if chosen is None or chosen in dict(first.choices):
        return fields
    kept = service.store.documents.kept(first.name, chosen)
    if kept is None:
        return fields
    return [replace(first, choices=(*first.choices, _choice(kept))), *others]


def show(request: Request, service: Service, kind: str, chosen: str | None) -> Response:
    """The empty form; ``chosen`` is the profile's or routing's hash."""
    fields, _, needs, title = _FORMS[kind]
    filled = Filled.fresh(_with(service, fields(service), chosen), **{needs: chosen})
    at = chosen or next((value for value, _ in filled.fields[0].choices), None)
    kept = None if at is None else service.store.documents.kept(needs, at)
    if kept is not None and "memory_bytes" in kept.summary:
        filled.typed["memory_bytes"] = [human_bytes(kept.summary["memory_bytes"]).replace(" ", "")]
    return page(request, "ask.html", title=title, form=filled, needs=needs)


def submit(request: Request, service: Service, kind: str, typed: Typed) -> Response:
    """On to the job, or back to the form with what is wrong."""
    fields, model, needs, title = _FORMS[kind]
    filled = Filled(_with(service, fields(service), next(iter(typed.get(needs, ())), None)), typed)
    asked = filled.read(model)
    status = 422
    if asked is not None:
        try:
            inputs = asked.inputs()
            for what in (needs, "model"):
                if getattr(asked, what, None) is not None:
                    must_be_kept(service, what, getattr(asked, what))
            job = service.submit(kind, inputs)
        except Refusal as refusal:
            filled.refuse(refusal)
        except QueueFullError as error:
            filled.errors[""] = f"{str(error).capitalize()}."
            status = 429
        else:
            return RedirectResponse(f"/jobs/{job.id}", 303)
    return page(request, "ask.html", status=status, title=title, form=filled, needs=needs)
