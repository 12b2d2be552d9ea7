"""Plans for other engines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from moeplan.service.entries import kept_document
from moeplan.service.requests import Hash, no_effect
from moeplan.service.routes.common import Context, Digest, KeptRoute, found, refused
from planner.documents import ExpertPlacement, Hardware, ModelSpec, Plan, Trace
from planner.exports import TARGETS, Sources, export
from solvers.errors import MoeplanError, StaleError

__all__ = ["TargetName", "router"]

router = APIRouter(route_class=KeptRoute)

TargetName = Literal["accelerate", "llama.cpp", "ktransformers", "vllm", "perfetto"]

_JSON = {
    "kind": "export",
    "target": "accelerate",
    "plan": "0123456789abcdef" * 4,
    "cannot_express": ["the promised speed: it is for moeplan's own runtime"],
    "device_map": {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu"},
    "dtype": "bfloat16",
}
_SHELL = "#!/bin/sh\n# moeplan export to llama.cpp, of plan 0123...\nexec llama-server ...\n"
_YAML = "# moeplan export to ktransformers, of plan 0123...\n- match: ...\n"
_TEXT = {"schema": {"type": "string"}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file; what the engine cannot do of the plan stands in it.",
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": _JSON},
            "application/yaml": {**_TEXT, "example": _YAML},
            "text/x-shellscript": {**_TEXT, "example": _SHELL},
        },
    },
}


@router.get(
    "/v1/plans/{digest}/export/{target}",
    summary="A plan for another engine",
    tags=["plans"],
    response_class=Response,
    responses=_ANSWERS,
)
def get_export(
    service: Context,
    digest: Digest,
    target: TargetName,
    trace: Annotated[
        Hash | None, Query(description="For perfetto: a kept run's, beside the prediction.")
    ] = None,
    placement: Annotated[
        Hash | None, Query(description="For vllm: a kept placement on several devices.")
    ] = None,
) -> Response:
    """What 'moeplan export' writes."""
    known = TARGETS[target]
    for name, value in (("trace", trace), ("placement", placement)):
        if value is not None and name not in known.reads:
            said = f"{name} has no effect on an export to {target}"
            raise no_effect(f"query.{name}", said)
    store = service.store
    plan = found(kept_document(store, Plan, digest), f"plan {digest}")
    run, spread = None, None
    if trace is not None:
        kept = kept_document(store, Trace, trace)
        run = found(kept, f"trace {trace}", "query.trace", 422)
    if placement is not None:
        there = kept_document(store, ExpertPlacement, placement)
        spread = found(there, f"placement {placement}", "query.placement", 422)
    sources = Sources(
        plan,
        kept_document(store, ModelSpec, plan.inputs.model),
        kept_document(store, Hardware, plan.inputs.hardware),
        run,
        spread,
    )
    try:
        made = export(target, sources)
    except StaleError as error:
        raise refused(error, "query.trace") from error
    except MoeplanError as error:
        raise refused(error, "path.target") from error
    return Response(made.text, media_type=known.media_type)
