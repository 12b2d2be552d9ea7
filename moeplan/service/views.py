"""What the service answers with: models for the OpenAPI document, made from what the store has."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moeplan.service.store import Job, Kept, Store
from moeplan.service.store.jobs import State

__all__ = ["REFUSALS", "DocumentList", "DocumentView", "JobList", "JobView", "ProblemView"]

COLLECTIONS = {
    "hardware": "hardware",
    "model": "models",
    "costs": "costs",
    "profile": "profiles",
    "routing": "routings",
    "plan": "plans",
    "trace": "traces",
    "placement": "placements",
    "comparison": "compare",
    "explanation": "explanations",
}
"""Kind of document -> where it is found."""

_RESULTS = {"plan": "plan", "compare": "comparison", "explain": "explanation", "place": "placement"}
"""Kind of job -> kind of its result."""

_EXAMPLE_HASH = "0123456789abcdef" * 4


class ProblemView(BaseModel):
    """A refusal (RFC 9457): what is wrong, and where in the request."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:moeplan:problem:request",
                    "title": "Not a valid request",
                    "status": 422,
                    "detail": "body.memory_bytes: must be a whole number, not 1.5",
                    "field": "body.memory_bytes",
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None


class DocumentView(BaseModel):
    """What a list says of a document."""

    hash: str = Field(examples=[_EXAMPLE_HASH])
    kind: str = Field(examples=["hardware"])
    name: str = Field(examples=["workstation (Xeon)"])
    summary: dict[str, Any]
    size_bytes: int = Field(examples=[1834])
    created_at: float = Field(description="Seconds since 1970.", examples=[1_790_000_000.0])
    href: str = Field(examples=[f"/v1/hardware/{_EXAMPLE_HASH}"])

    @classmethod
    def of(cls, kept: Kept) -> DocumentView:
        """From a row of the store."""
        return cls(
            hash=kept.hash,
            kind=kept.kind,
            name=kept.name,
            summary={name: value for name, value in kept.summary.items() if name != "words"},
            size_bytes=kept.size_bytes,
            created_at=kept.created_at,
            href=href(kept.kind, kept.hash),
        )


class DocumentList(BaseModel):
    """One page of a list, the newest first."""

    items: list[DocumentView]
    next: str | None = Field(description="'after' of the next page; null on the last.")

    @classmethod
    def of(
        cls, store: Store, kind: str, *, limit: int, after: str | None, search: str | None
    ) -> DocumentList:
        """From the store."""
        kept = store.documents.listed(kind, limit=limit + 1, after=after, search=search)
        items = [DocumentView.of(one) for one in kept[:limit]]
        return cls(items=items, next=items[-1].hash if len(kept) > limit else None)


class JobView(BaseModel):
    """A job."""

    id: str = Field(examples=[_EXAMPLE_HASH])
    kind: str = Field(examples=["plan"])
    state: State
    inputs: dict[str, Any]
    progress: dict[str, Any] | None = Field(
        examples=[
            {
                "stage": "cpsat, n x b = 4 x 8",
                "incumbent": 41_250_000,
                "bound": 40_900_000,
                "gap": 0.0085,
            }
        ]
    )
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempts: int
    changes: int = Field(description="Rises with each change; the id of its events.")
    cancelling: bool
    result: str | None = Field(description="Hash of the document that it made.")
    result_href: str | None = Field(examples=[f"/v1/plans/{_EXAMPLE_HASH}"])
    error: ProblemView | None
    href: str = Field(examples=[f"/v1/jobs/{_EXAMPLE_HASH}"])

    @classmethod
    def of(cls, job: Job) -> JobView:
        """From a row of the store."""
        made = job.result_hash
        return cls(
            id=job.id,
            kind=job.kind,
            state=job.state,
            inputs=job.inputs,
            progress=job.progress,
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            attempts=job.attempts,
            changes=job.changes,
            cancelling=job.cancel and not job.ended,
            result=made,
            result_href=None if made is None else href(_RESULTS[job.kind], made),
            error=None if job.error is None else ProblemView.model_validate(job.error),
            href=f"/v1/jobs/{job.id}",
        )


class JobList(BaseModel):
    """One page of jobs, the newest first."""

    items: list[JobView]
    next: str | None = Field(description="'after' of the next page; null on the last.")

    @classmethod
    def of(cls, store: Store, *, limit: int, after: str | None, state: State | None) -> JobList:
        """From the store."""
        listed = store.jobs.listed(limit=limit + 1, after=after, state=state)
        items = [JobView.of(job) for job in listed[:limit]]
        return cls(items=items, next=items[-1].id if len(listed) > limit else None)


def href(kind: str, digest: str) -> str:
    """Where a document is found."""
    return f"/v1/{COLLECTIONS[kind]}/{digest}"


def _refused(why: str) -> dict[str, Any]:
    schema = {"schema": {"$ref": "#/components/schemas/ProblemView"}}
    return {"description": why, "content": {"application/problem+json": schema}}


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: _refused("The body is not JSON."),
    401: _refused("A token is required."),
    403: _refused("Asked by a page of another site, or under another host's name."),
    404: _refused("There is none."),
    413: _refused("The body is too large."),
    415: _refused("The body is of another type."),
    422: _refused("A value is not valid; 'field' says which."),
    429: _refused("Too much at once; Retry-After says when to come again."),
    503: _refused("The store is not available."),
}
"""What any route may refuse."""
