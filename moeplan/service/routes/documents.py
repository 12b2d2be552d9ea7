"""Uploading, listing and getting documents."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import Response

from moeplan.commands.look import document_schema
from moeplan.service.entries import (
    PROFILE_PARTS,
    hardware_entry,
    kept_document,
    model_entry,
    profile_entries,
    routing_entry,
    trace_entry,
)
from moeplan.service.problems import Refusal
from moeplan.service.requests import ProfileUpload, RoutingUpload
from moeplan.service.routes.common import (
    After,
    Context,
    Digest,
    KeptRoute,
    PageLimit,
    Search,
    Service,
    decoded,
    found,
    parsed,
    refused,
    unchanging,
)
from moeplan.service.store.documents import Entry
from moeplan.service.views import COLLECTIONS, DocumentList, DocumentView, href
from planner.documents import (
    CostProfile,
    Hardware,
    ModelSpec,
    ProfileIndex,
    RoutingTrace,
    Trace,
    canonical_json,
    document_hash,
)
from planner.documents.base import SEAL
from planner.profiles import Profile, assemble
from planner.routing import TraceArrays, read_arrays
from solvers.counting import counted
from solvers.errors import MoeplanError

__all__ = ["router"]

router = APIRouter(route_class=KeptRoute, tags=["documents"])


def _body_of(name: str) -> Any:
    """A document as a body; its schema is what 'moeplan schema' prints."""
    schema = {k: v for k, v in document_schema(name).items() if k not in ("$schema", "$defs")}
    flat = {"type": "object", "title": name, "description": schema.get("description", "")}
    return Body(json_schema_extra={**flat, "required": schema["required"]})


def _put(service: Service, response: Response, entries: list[Entry], *blobs: bytes) -> DocumentView:
    (digest, new), *_ = service.store.documents.put(entries, blobs)
    kind = entries[0].kind
    kept = found(service.store.documents.kept(kind, digest), f"{kind} {digest}", "body")
    response.status_code = 201 if new else 200
    response.headers["Location"] = href(kind, digest)
    return DocumentView.of(kept)


_PUT: dict[str, Any] = {
    "status_code": 201,
    "responses": {200: {"model": DocumentView, "description": "It was there already."}},
}


@router.post("/v1/hardware", summary="Keep a hardware document", **_PUT)
def put_hardware(
    service: Context, response: Response, body: Annotated[dict[str, Any], _body_of("hardware")]
) -> DocumentView:
    """Keep a machine's document under its hash."""
    return _put(service, response, [hardware_entry(parsed(Hardware, body, "body"))])


@router.post("/v1/models", summary="Keep a model document", **_PUT)
def put_model(
    service: Context, response: Response, body: Annotated[dict[str, Any], _body_of("model")]
) -> DocumentView:
    """Keep a model's document under its hash."""
    return _put(service, response, [model_entry(parsed(ModelSpec, body, "body"))])


def _trace(body: RoutingUpload | ProfileUpload) -> tuple[RoutingTrace, TraceArrays, bytes]:
    trace = parsed(RoutingTrace, body.routing, "body.routing")
    data = decoded(body.arrays_base64, "body.arrays_base64")
    try:
        arrays = read_arrays(trace, data, "body.arrays_base64", "body.routing")
    except MoeplanError as error:
        raise refused(error, "body.arrays_base64") from error
    return trace, arrays, data


@router.post("/v1/routings", summary="Keep a routing trace", **_PUT)
def put_routing(service: Context, response: Response, body: RoutingUpload) -> DocumentView:
    """Keep a routing document and its arrays, which must be its own."""
    trace, _, data = _trace(body)
    name = f"{counted(trace.tokens, 'token')} of {counted(trace.experts, 'expert')}"
    return _put(service, response, [routing_entry(trace, name)], data)


@router.post("/v1/profiles", summary="Keep a whole profile", **_PUT)
def put_profile(service: Context, response: Response, body: ProfileUpload) -> DocumentView:
    """Keep what lies in a profile folder: five documents that belong together, and the arrays."""
    trace, arrays, data = _trace(body)
    profile = Profile(
        Path("body"),
        parsed(ProfileIndex, body.profile, "body.profile"),
        parsed(Hardware, body.hardware, "body.hardware"),
        parsed(ModelSpec, body.model, "body.model"),
        parsed(CostProfile, body.costs, "body.costs"),
        trace,
        arrays,
    )
    try:
        entries = profile_entries(assemble(profile))
    except MoeplanError as error:
        part = getattr(error, "document", "profile")
        raise refused(error, f"body.{part}" if part in PROFILE_PARTS else "body") from error
    return _put(service, response, entries, data)


@router.post("/v1/traces", summary="Keep what a run of a kept plan did", **_PUT)
def put_trace(
    service: Context, response: Response, body: Annotated[dict[str, Any], _body_of("trace")]
) -> DocumentView:
    """Keep the file that 'moeplan run --trace' wrote, its seal unbroken."""
    value = {key: inner for key, inner in body.items() if key != SEAL}
    trace = parsed(Trace, value, "body")
    as_sent = hashlib.sha256(canonical_json(value).encode()).hexdigest()
    if body.get(SEAL) not in (as_sent, document_hash(trace)):
        said = f"body.{SEAL}: it is not the trace's: send the file as 'moeplan run' wrote it"
        raise Refusal(422, "document", "Not a valid document", said, f"body.{SEAL}")
    said = f"plan {trace.plan_hash}: it keeps runs of its own plans only"
    found(service.store.documents.kept("plan", trace.plan_hash), said, "body.plan_hash", 422)
    return _put(service, response, [trace_entry(trace)])


def _sealed(data: bytes, digest: str) -> bytes:
    """A sealed document's file: what is kept is the canonical text, whose hash is the seal."""
    return data.removesuffix(b"}") + f',"{SEAL}":"{digest}"}}'.encode()


def _listing(kind: str) -> None:
    path, words = COLLECTIONS[kind], f"{kind} documents"

    def listed(
        service: Context, limit: PageLimit = 50, after: After = None, search: Search = None
    ) -> DocumentList:
        return DocumentList.of(service.store, kind, limit=limit, after=after, search=search)

    def got(service: Context, digest: Digest) -> Response:
        data = found(service.store.documents.get(kind, digest), f"{kind} {digest}")
        data = _sealed(data, digest) if kind == Trace.kind else data
        return unchanging(data, digest, "application/json")

    listed.__name__, got.__name__ = f"list_{path}", f"get_{path}"
    router.get(f"/v1/{path}", summary=f"List {words}, the newest first")(listed)
    if kind != "plan":
        router.get(
            f"/v1/{path}/{{digest}}",
            summary=f"One of the {words}",
            response_class=Response,
            responses=_JSON,
        )(got)


_JSON: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The document.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    304: {"description": "As it was."},
}

for _kind in COLLECTIONS:
    _listing(_kind)


@router.get(
    "/v1/plans/{digest}",
    summary="One plan, as a file to keep",
    response_class=Response,
    responses=_JSON,
)
def get_plan(service: Context, digest: Digest) -> Response:
    """The sealed document, which 'moeplan run' and 'moeplan show' take."""
    data = found(service.store.documents.get("plan", digest), f"plan {digest}")
    return unchanging(_sealed(data, digest), digest, "application/json")


@router.get(
    "/v1/routings/{digest}/arrays",
    summary="The arrays of a routing trace",
    response_class=Response,
    responses={
        200: {
            "description": "A .npz archive.",
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        },
        304: {"description": "As it was."},
    },
)
def get_arrays(service: Context, digest: Digest) -> Response:
    """What 'routing.npz' holds."""
    what = f"arrays of routing {digest}"
    trace = found(kept_document(service.store, RoutingTrace, digest), what)
    data = found(service.store.documents.blob(trace.arrays_hash), what)
    return unchanging(data, trace.arrays_hash, "application/octet-stream")
