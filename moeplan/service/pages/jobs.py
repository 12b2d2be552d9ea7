"""Jobs: all of them and one, as they move."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from moeplan.output import human_bytes
from moeplan.service.pages.render import fragment, page
from moeplan.service.routes.common import (
    After,
    Context,
    Digest,
    PageLimit,
    Service,
    StrictRoute,
    found,
)
from moeplan.service.routes.jobs import stream
from moeplan.service.store.jobs import State
from moeplan.service.store.tables import STATES
from moeplan.service.views import JobList, JobView
from solvers.counting import counted

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

_SHOWN = 50
_PLACES = {"plan": "plans", "compare": "compare", "place": "placements"}
"""Kind of job -> where the page of its result is."""


def _link(job: JobView) -> str:
    """The page of what a job made; empty before it has."""
    if job.result is None:
        return ""
    if job.kind == "explain":
        return f"/plans/{job.inputs['plan']}#deeper"
    return f"/{_PLACES[job.kind]}/{job.result}"


def _words(service: Service, job: JobView) -> str:
    """What is asked, in a line."""
    inputs: dict[str, Any] = job.inputs
    if job.kind == "explain":
        return f"What more memory and speed would buy plan {inputs['plan'][:10]}"
    if job.kind == "place":
        return (
            f"Experts of routing {inputs['routing'][:10]} on "
            f"{counted(inputs['devices'], 'device')}, {inputs['method']}"
        )
    kept = service.store.documents.kept("profile", inputs["profile"])
    name = kept.name if kept is not None else f"profile {inputs['profile'][:10]}"
    work = inputs["workload"]
    solvers = [inputs["solver"]] if job.kind == "plan" else inputs["solvers"]
    goals = [inputs["objective"]] if job.kind == "plan" else inputs["objectives"]
    what = solvers[0] if len(solvers) == 1 else counted(len(solvers), "solver")
    goal = goals[0] if len(goals) == 1 else counted(len(goals), "objective")
    return (
        f"{name}: {what} for {goal}, within {human_bytes(inputs['memory_bytes'])}, "
        f"{work['requests']:,} of {work['prompt_tokens']:,}+{work['new_tokens']:,} tokens"
    )


def _told(service: Service, job: JobView) -> dict[str, Any]:
    return {"job": job, "words": _words(service, job), "link": _link(job)}


@router.get("/jobs")
def list_jobs(
    request: Request,
    service: Context,
    limit: PageLimit = _SHOWN,
    after: After = None,
    state: Annotated[State | None, Query()] = None,
) -> Response:
    """All jobs, the newest first."""
    listed = JobList.of(service.store, limit=limit, after=after, state=state)
    told = [_told(service, job) for job in listed.items]
    live = after is None and state is None
    return page(
        request, "jobs.html", told=told, next=listed.next, state=state, states=STATES, live=live
    )


@router.get("/jobs/events")
async def watch_jobs(service: Context) -> Response:
    """Rows of jobs that are new or have changed, as server-sent events."""
    seen: dict[str, int] = {}

    def look() -> tuple[bytes, bool]:
        jobs = service.store.jobs.listed(limit=_SHOWN)
        changed = [job for job in jobs if seen.get(job.id) != job.changes]
        seen.update({job.id: job.changes for job in changed})
        rows = [_told(service, JobView.of(job)) for job in reversed(changed)]
        return b"".join(_event(fragment("_jobs.html", "row", told)) for told in rows), False

    return stream(service, look)


@router.get("/jobs/{digest}")
def one_job(request: Request, service: Context, digest: Digest) -> Response:
    """How far a job is."""
    job = JobView.of(found(service.store.jobs.get(digest), f"job {digest}"))
    return page(request, "job.html", told=_told(service, job))


@router.get("/jobs/{digest}/events")
async def watch_job(service: Context, digest: Digest) -> Response:
    """The job's state as it changes, until it ends."""
    found(await run_in_threadpool(service.store.jobs.get, digest), f"job {digest}")
    seen = -1

    def look() -> tuple[bytes, bool]:
        nonlocal seen
        job = service.store.jobs.get(digest)
        if job is None or job.changes == seen:
            return b"", job is None
        seen = job.changes
        news = _event(fragment("_jobs.html", "state", _told(service, JobView.of(job))))
        return news + (b"event: end\ndata: end\n\n" if job.ended else b""), job.ended

    return stream(service, look)


def _event(html: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: job\n{lines}\n".encode()


@router.post("/jobs/{digest}/cancel")
def cancel_job(service: Context, digest: Digest) -> Response:
    """Cancel, and look at what becomes of it."""
    found(service.store.jobs.cancel(digest), f"job {digest}")
    return RedirectResponse(f"/jobs/{digest}", 303)
