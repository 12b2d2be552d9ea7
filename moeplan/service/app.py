"""The application: routes behind the guard, and every refusal as one kind of document."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from moeplan.service.answers import Answers
from moeplan.service.guard import Guard, GuardSettings, has_head, problem_answer, wants_page
from moeplan.service.metrics import Metrics
from moeplan.service.pages import ROUTERS, problem_page
from moeplan.service.problems import Refusal, problem, problem_of
from moeplan.service.routes import documents, exports, jobs, plans, system
from moeplan.service.routes.common import Service
from moeplan.service.store import Store
from moeplan.service.supervisor import Supervisor
from moeplan.service.views import REFUSALS, ProblemView
from planner.documents.faults import fault_words
from solvers.errors import MoeplanError

__all__ = ["AppSettings", "create_app"]

_ABOUT = """Plans for Mixture-of-Experts models that do not fit in fast memory.

Upload a profile (`POST /v1/profiles`), ask for a plan (`POST /v1/plans`), watch its job
(`/v1/jobs/{id}/events`), get the plan (`/v1/plans/{hash}`). Documents are kept under the SHA-256 of
their canonical JSON and never change. A refusal is `application/problem+json` and names the field.
"""

_ROUTERS = (*(module.router for module in (documents, plans, exports, jobs, system)), *ROUTERS)


@dataclass(frozen=True, slots=True)
class AppSettings:
    """How the service answers.

    Attributes
    ----------
    guard
        What is let through.
    most_queued
        Jobs that may wait; further ones are told to come again.
    most_streams
        Watchers of jobs at once.
    """

    guard: GuardSettings
    most_queued: int = 64
    most_streams: int = 100


def create_app(
    store: Store, settings: AppSettings, supervisor: Supervisor | None = None
) -> FastAPI:
    """The ASGI application.

    Parameters
    ----------
    store
        Closed with the application.
    settings
        How to answer.
    supervisor
        Workers that live as long as the application; None where others do the work.
    """
    metrics = Metrics(store, supervisor)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if supervisor is not None:
            supervisor.start()
        yield
        if supervisor is not None:
            supervisor.stop()
        store.close()

    app = FastAPI(
        title="moeplan",
        version=version("moeplan"),
        description=_ABOUT,
        lifespan=lifespan,
        # a route of ours tells it
        openapi_url=None,
        # their pages load scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        responses=REFUSALS,
        redirect_slashes=False,
    )
    app.state.service = Service(
        store,
        metrics,
        settings.most_queued,
        settings.most_streams,
        settings.guard.token_required,
    )
    app.state.answers = Answers(store)
    for router in _ROUTERS:
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(StarletteHTTPException, _http)
    app.add_exception_handler(MoeplanError, _ours)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(
        Guard,
        settings=settings.guard,
        store=store,
        metrics=metrics,
    )
    _document(app)
    return app


def _document(app: FastAPI) -> None:
    """Name the refusals' schema in the OpenAPI document, which no route names by itself."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        made = make()
        schema = ProblemView.model_json_schema()
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas["ProblemView"] = schema
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _answer(
    request: Request, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """A problem as what asked for it can read it: a document, or for a browser a page."""
    answer = problem_answer(body, headers)
    return problem_page(request, body, answer.headers) if wants_page(request.scope) else answer


async def _not_valid(request: Request, error: Exception) -> Response:
    """Faults that pydantic found, the first one in the line, all of them in a list."""
    if not isinstance(error, RequestValidationError):
        raise error
    faults = []
    for fault in error.errors()[:20]:
        place = ".".join(str(part)[:100] for part in fault["loc"])
        faults.append({"field": place or "body", "message": fault_words(fault)[:300]})
    first = faults[0]
    detail = f"{first['field']}: {first['message']}"
    if len(faults) > 1:
        detail += f" (and {len(faults) - 1} more)"
    title = "Not a valid request"
    body = problem(422, "request", title, detail, first["field"], errors=faults)
    return _answer(request, body)


async def _http(request: Request, error: Exception) -> Response:
    """What the framework refuses: no such path, no such method."""
    if not isinstance(error, StarletteHTTPException):
        raise error
    headers = dict(error.headers or {})
    detail: Any = error.detail
    if isinstance(detail, dict):
        return _answer(request, detail, headers)
    field = "method" if error.status_code == 405 else "path"
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    named = {404: "missing", 405: "method"}.get(error.status_code, "http")
    said = f"{request.method} {request.url.path[:200]}: {detail}"
    body = problem(error.status_code, named, str(detail), said, field)
    return _answer(request, body, headers)


def _methods(request: Request) -> list[str]:
    """What may be done at a path: several routes may have it, each with its methods."""
    found: set[str] = set()
    for route in (route for router in _ROUTERS for route in router.routes):
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= set(getattr(route, "methods", None) or ())
    if "GET" in found and has_head(request.url.path):
        found.add("HEAD")
    return sorted(found)


async def _ours(request: Request, error: Exception) -> Response:
    """moeplan's own errors, by the one table."""
    if not isinstance(error, MoeplanError):
        raise error
    headers = error.headers if isinstance(error, Refusal) else {}
    return _answer(request, {"field": "server", **problem_of(error)}, headers)


async def _bug(request: Request, error: Exception) -> Response:
    """A bug is told in the log; the answer says only that there was one."""
    said = "a bug in moeplan; the server's log tells"
    return _answer(request, problem(500, "internal", "Internal error", said, "server"))
