"""Asking for plans, comparisons, explanations and placements; reading what a plan says."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from moeplan.service.requests import (
    CompareRequest,
    ExplainRequest,
    PlacementRequest,
    PlanRequest,
)
from moeplan.service.routes.common import (
    Context,
    Digest,
    KeptRoute,
    Service,
    accepted,
    found,
    unchanging,
)
from moeplan.service.store import Kept
from moeplan.service.store.jobs import job_id
from moeplan.service.views import JobView

__all__ = ["explain_inputs", "must_be_kept", "router"]

router = APIRouter(route_class=KeptRoute)

_AS_ASKED = ExplainRequest()
"""What an explanation is where nothing is said about it."""

_JOB: dict[str, Any] = {"status_code": 202, "response_description": "The job; Location is it."}
_EXAMPLE = {
    "profile": "0123456789abcdef" * 4,
    "memory_bytes": 629145600,
    "workload": {"requests": 64, "prompt_tokens": 64, "new_tokens": 16},
    "time_limit_seconds": 10.0,
}


def _examples(**values: dict[str, Any]) -> Any:
    return Body(openapi_examples={name: {"value": value} for name, value in values.items()})


def must_be_kept(service: Service, kind: str, digest: str) -> None:
    """Refuse a body that names, under ``kind``, a document that is not there."""
    kept = service.store.documents.kept(kind, digest)
    found(kept, f"{kind} {digest}: upload it first", f"body.{kind}", 422)


def _ask(
    service: Service, response: Response, kind: str, body: PlanRequest | CompareRequest
) -> JobView:
    inputs = body.inputs()
    must_be_kept(service, "profile", body.profile)
    return accepted(service.submit(kind, inputs), response)


@router.post("/v1/plans", summary="Ask for a plan", tags=["plans"], **_JOB)
def ask_plan(
    service: Context,
    response: Response,
    body: Annotated[
        PlanRequest,
        _examples(
            throughput=_EXAMPLE,
            first_token={**_EXAMPLE, "objective": "first-token", "then": "bytes"},
        ),
    ],
) -> JobView:
    """Make a job; the same inputs are the same job."""
    return _ask(service, response, "plan", body)


@router.post("/v1/compare", summary="Ask for a comparison of solvers", tags=["plans"], **_JOB)
def ask_comparison(
    service: Context,
    response: Response,
    body: Annotated[
        CompareRequest,
        _examples(rules={**_EXAMPLE, "solvers": ["cpsat", "klotski"], "objectives": ["bytes"]}),
    ],
) -> JobView:
    """Plan with each solver for each objective; every plan is kept."""
    return _ask(service, response, "compare", body)


@router.post("/v1/placements", summary="Ask for a placement", tags=["placements"], **_JOB)
def ask_placement(
    service: Context,
    response: Response,
    body: Annotated[
        PlacementRequest, _examples(four={"routing": "0123456789abcdef" * 4, "devices": 4})
    ],
) -> JobView:
    """Place a routing's experts on devices."""
    inputs = body.inputs()
    must_be_kept(service, "routing", body.routing)
    if body.model is not None:
        must_be_kept(service, "model", body.model)
    return accepted(service.submit("place", inputs), response)


class ExplanationView(BaseModel):
    """What a plan does and why."""

    words: list[str] = Field(description="What it does, a paragraph an entry.")
    notes: list[str] = Field(description="Why this n, what binds, what was cut to fit.")
    memory: dict[str, Any] = Field(description="Tier -> capacity and peak, by purpose.")
    chosen_over: dict[str, float] = Field(
        description="Baselines, with their objective; a link's credit counts."
    )
    deeper: str | None = Field(description="Hash of the newest explanation with new plans.")


class TimelineView(BaseModel):
    """Predicted events, one list for each of their properties."""

    tokens_per_second: dict[str, float]
    totals: dict[str, Any]
    timeline: dict[str, Any]


def _kept(service: Service, digest: str) -> Kept:
    return found(service.store.documents.kept("plan", digest), f"plan {digest}")


def explain_inputs(kept: Kept, asked: ExplainRequest) -> dict[str, Any]:
    """Of the job that explains a plan."""
    return {"plan": kept.hash, "profile": kept.summary["profile"], **asked.model_dump()}


@router.get("/v1/plans/{digest}/explanation", summary="A plan in words", tags=["plans"])
def get_explanation(service: Context, digest: Digest) -> ExplanationView:
    """What it keeps, copies and promises. New plans around it are a job: POST here."""
    kept = _kept(service, digest)
    summary = kept.summary
    job = service.store.jobs.get(job_id("explain", explain_inputs(kept, _AS_ASKED)))
    return ExplanationView(
        words=summary["words"],
        notes=summary["notes"],
        memory=summary["memory"],
        chosen_over=summary["chosen_over"],
        deeper=None if job is None else job.result_hash,
    )


@router.post(
    "/v1/plans/{digest}/explanation",
    summary="Ask what more memory or speed would buy",
    tags=["plans"],
    **_JOB,
)
def ask_explanation(
    service: Context, response: Response, digest: Digest, body: ExplainRequest | None = None
) -> JobView:
    """Make a job that plans again with a tenth more."""
    inputs = explain_inputs(_kept(service, digest), body or _AS_ASKED)
    return accepted(service.submit("explain", inputs), response)


@router.get(
    "/v1/plans/{digest}/timeline",
    summary="A plan's predicted timeline",
    tags=["plans"],
    response_class=Response,
    responses={
        200: {"model": TimelineView, "description": "The timeline."},
        304: {"description": "As it was."},
    },
)
def get_timeline(service: Context, digest: Digest) -> Response:
    """Events of the predicted passes, times in ns."""
    plan = found(service.store.documents.get("plan", digest), f"plan {digest}")
    body = json.loads(plan)["predicted"]
    data = json.dumps({name: body[name] for name in TimelineView.model_fields}).encode()
    return unchanging(data, digest, "application/json")
