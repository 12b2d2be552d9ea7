"""Plans: the list, asking for one, one of them, and two side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from moeplan.page import report_parts
from moeplan.page_parts import (
    KindColumn,
    kind_table,
    memory_stacks,
    page_data,
    timeline_section,
    timeline_track,
)
from moeplan.service.entries import kept_document
from moeplan.service.pages.asking import Chosen
from moeplan.service.pages.lists import add_form, add_list
from moeplan.service.pages.render import page
from moeplan.service.pages.sides import expert_words, figures
from moeplan.service.problems import Refusal
from moeplan.service.requests import ExplainRequest
from moeplan.service.routes.common import Context, Digest, Service, StrictRoute, found
from moeplan.service.routes.plans import explain_inputs
from moeplan.service.store import Kept
from moeplan.service.store.jobs import job_id
from planner.documents import Hardware, ModelSpec, Plan, Trace
from solvers.counting import counted

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, include_in_schema=False)
add_list(router, "/plans", "plan", "plans.html")
add_form(router, "/plans/new", "plan")

_RUNS = 20
"""Runs of a plan that its page offers, the newest."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A plan with what it was made for, as far as that is kept."""

    kept: Kept
    plan: Plan
    model: ModelSpec | None
    hardware: Hardware | None


def _whole(service: Service, digest: str, field: str = "path.digest") -> _Whole:
    store, what = service.store, f"plan {digest}"
    kept = found(store.documents.kept("plan", digest), what, field)
    plan = found(kept_document(store, Plan, digest), what, field)
    model = kept_document(store, ModelSpec, plan.inputs.model)
    fits = model is not None and len(model.layers) == len(plan.policy.layers)
    hardware = kept_document(store, Hardware, plan.inputs.hardware)
    return _Whole(kept, plan, model if fits else None, hardware)


@router.get("/plans/{digest}")
def one_plan(request: Request, service: Context, digest: Digest, run: Chosen = None) -> Response:
    """What was decided and why, its memory, its experts, and its timeline above a run's."""
    whole = _whole(service, digest)
    runs = service.store.documents.listed("trace", limit=_RUNS, search=digest)
    chosen = run or (runs[0].hash if runs else None)
    trace = None
    if chosen is not None:
        trace = found(kept_document(service.store, Trace, chosen), f"trace {chosen}", "query.run")
        if trace.plan_hash != digest:
            raise Refusal(404, "missing", "There is none", "no run of this plan", "query.run")
    parts = report_parts(whole.plan, trace, whole.model, whole.hardware)
    # its own escaping is tested; templates would escape it once more
    marked = {name: Markup(text) for name, text in parts.items()}
    return page(
        request,
        "plan.html",
        whole=whole,
        parts=marked,
        runs=runs,
        chosen=chosen,
        deeper=_deeper(service, whole.kept),
    )


def _deeper(service: Service, kept: Kept) -> list[str]:
    """Words of the newest explanation with new plans; none where there is none."""
    inputs = explain_inputs(kept, ExplainRequest())
    job = service.store.jobs.get(job_id("explain", inputs))
    if job is None or job.result_hash is None:
        return []
    data = found(service.store.documents.get("explanation", job.result_hash), "explanation")
    words: list[str] = json.loads(data)["words"]
    return words


@router.post("/plans/{digest}/explain")
def ask_explanation(service: Context, digest: Digest) -> Response:
    """What more memory and speed would buy: a job."""
    kept = found(service.store.documents.kept("plan", digest), f"plan {digest}")
    job = service.submit("explain", explain_inputs(kept, ExplainRequest()))
    return RedirectResponse(f"/jobs/{job.id}", 303)


@router.get("/beside")
def two_plans(
    request: Request,
    service: Context,
    plan: Annotated[list[str] | None, Query(max_length=20)] = None,
) -> Response:
    """Two plans side by side."""
    chosen = plan or []
    if len(chosen) != 2 or not all(map(_is_hash, chosen)):
        said = f"you chose {counted(len(chosen), 'plan')}; choose two to see them side by side"
        raise Refusal(422, "request", "Choose two plans", said, "query.plan")
    sides = [_whole(service, digest, "query.plan") for digest in chosen]
    tracks, columns, memory = [], [], []
    for letter, look, one in zip("AB", ("predicted", "measured"), sides, strict=True):
        timeline = one.plan.predicted.timeline
        if timeline.kind:
            name = f"Plan {letter}: {one.plan.solver}"
            tracks.append(timeline_track(name, timeline, len(one.plan.policy.layers))[0])
        promised = one.plan.predicted.totals.duration_by_kind_ns
        columns.append(KindColumn(f"plan {letter}", look, promised))
        memory.append(Markup(memory_stacks(one.plan, f"Plan {letter}")))
    parts: dict[str, Any] = {
        "timeline": Markup(timeline_section("Both are predicted.")),
        "kinds": Markup(kind_table(columns, judged=True)),
        "data": Markup(page_data(tracks, None)),
    }
    return page(
        request,
        "beside.html",
        sides=list(zip("AB", sides, strict=True)),
        figures=figures(sides[0].plan, sides[1].plan),
        experts=expert_words(sides[0].plan, sides[1].plan),
        memory=memory,
        parts=parts,
    )


def _is_hash(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
