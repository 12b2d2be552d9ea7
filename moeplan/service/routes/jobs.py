"""Jobs: looked at, watched, cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from moeplan.service.problems import Refusal
from moeplan.service.routes.common import (
    After,
    Context,
    Digest,
    KeptRoute,
    PageLimit,
    Service,
    found,
)
from moeplan.service.store.jobs import State
from moeplan.service.views import JobList, JobView

__all__ = ["router", "stream"]

router = APIRouter(route_class=KeptRoute, tags=["jobs"])

_LOOK_SECONDS = 0.25
_QUIET_SECONDS = 15.0
"""After so long without news a comment keeps the connection open."""

_streams = 0


@router.get("/v1/jobs", summary="List jobs, the newest first")
def list_jobs(
    service: Context,
    limit: PageLimit = 50,
    after: After = None,
    state: Annotated[State | None, Query()] = None,
) -> JobList:
    """All jobs, or those in one state."""
    return JobList.of(service.store, limit=limit, after=after, state=state)


@router.get("/v1/jobs/{digest}", summary="One job")
def get_job(service: Context, digest: Digest) -> JobView:
    """How far it is, what it made, or why it failed."""
    return JobView.of(found(service.store.jobs.get(digest), f"job {digest}"))


@router.post("/v1/jobs/{digest}/cancel", summary="Cancel a job", status_code=202)
def cancel_job(service: Context, digest: Digest) -> JobView:
    """At once while it waits, soon while it runs; one that has ended stays as it is."""
    return JobView.of(found(service.store.jobs.cancel(digest), f"job {digest}"))


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events 'job', each with a job as its data, until it ends.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/v1/jobs/{digest}/events",
    summary="Watch a job",
    response_class=StreamingResponse,
    responses=_STREAM,
)
async def watch_job(
    service: Context,
    digest: Digest,
    last_event_id: Annotated[int | None, Header(ge=0, lt=1 << 31)] = None,
) -> StreamingResponse:
    """Its state now, and again with each change (incumbent, bound, gap), as server-sent events."""
    found(await run_in_threadpool(service.store.jobs.get, digest), f"job {digest}")
    seen = last_event_id

    def look() -> tuple[bytes, bool]:
        nonlocal seen
        job = service.store.jobs.get(digest)
        if job is None:
            return b"", True
        if job.changes == seen:
            return b"", job.ended
        seen = job.changes
        data = JobView.of(job).model_dump_json()
        return f"event: job\nid: {job.changes}\ndata: {data}\n\n".encode(), job.ended

    return stream(service, look)


def stream(service: Service, look: Callable[[], tuple[bytes, bool]]) -> StreamingResponse:
    """Server-sent events.

    Parameters
    ----------
    service
        Says how many may watch at once.
    look
        Called again and again in a thread: what is new, and whether there will be no more.

    Raises
    ------
    Refusal
        If too many watch.
    """
    if _streams >= service.most_streams:
        said = f"{_streams} watch already"
        raise Refusal(429, "streams", "Too many watch", said, "server", {"Retry-After": "10"})
    return StreamingResponse(_events(look), media_type="text/event-stream")


async def _events(look: Callable[[], tuple[bytes, bool]]) -> AsyncIterator[bytes]:
    global _streams
    _streams += 1
    try:
        told = time.monotonic()
        while True:
            news, over = await run_in_threadpool(look)
            if news:
                told = time.monotonic()
                yield news
            elif time.monotonic() - told > _QUIET_SECONDS:
                told = time.monotonic()
                yield b": nothing new\n\n"
            if over:
                return
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        _streams -= 1
