"""What routes share: strict JSON, parameters, what is found or refused."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from fastapi import Depends, Path, Query
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from moeplan.service.answers import Answers
from moeplan.service.metrics import Metrics
from moeplan.service.problems import Refusal, problem, problem_of
from moeplan.service.requests import Shown
from moeplan.service.store import Job, Store
from moeplan.service.views import JobView
from planner.documents import Document, parse_document
from planner.files import loads_once
from solvers.errors import MoeplanError

__all__ = [
    "Context",
    "Digest",
    "KeptRoute",
    "Service",
    "StrictRoute",
    "accepted",
    "decoded",
    "found",
    "parsed",
]

D = TypeVar("D", bound=Document)
T = TypeVar("T")

_INLINE_BYTES = 1 << 16
"""A longer body is parsed in a thread, so that it holds up nobody else."""


@dataclass(frozen=True)
class Service:
    """What routes work with.

    Attributes
    ----------
    store
        Documents and jobs.
    metrics
        Of this server.
    most_queued
        Jobs that may wait.
    most_streams
        Watchers of jobs at once.
    token_required
        Whether browsers log in.
    """

    store: Store
    metrics: Metrics
    most_queued: int
    most_streams: int
    token_required: bool = False

    def submit(self, kind: str, inputs: dict[str, Any]) -> Job:
        """A job of these inputs.

        Raises
        ------
        Refusal
            If too many wait.
        """
        return self.store.jobs.submit(kind, inputs, most_queued=self.most_queued)[0]


async def _service(request: Request) -> Service:
    # a plain function would be called in a thread
    return cast(Service, request.app.state.service)


Context = Annotated[Service, Depends(_service)]
Digest = Annotated[
    str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256.", examples=["01234567" * 8])
]


PageLimit = Annotated[int, Query(ge=1, le=200)]
After = Annotated[
    str | None, Query(pattern=r"^[0-9a-f]{64}$", description="'next' of the page before.")
]
Search = Annotated[str | None, Query(max_length=200, description="Part of the name."), Shown]


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """A route that is strict: bodies are UTF-8 JSON with finite numbers and each key once; there is
    no query parameter that it does not know, and none twice that is no list."""

    def get_route_handler(self) -> Handler:
        """Hand over a request that parses so."""
        handle = super().get_route_handler()
        known = {
            field.alias: _is_list(field.field_info.annotation)
            for field in self.dependant.query_params
        }

        async def strict(request: Request) -> Response:
            _check_query(request, known)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


class KeptRoute(StrictRoute):
    """A strict route whose answers to GET follow from the address and the store alone, so that one
    that was given is given again as it is while neither has changed."""

    def get_route_handler(self) -> Handler:
        """Ask only for what was not answered already."""
        handle = super().get_route_handler()
        if self.methods != {"GET"}:
            return handle

        async def kept(request: Request) -> Response:
            answers = cast(Answers, request.app.state.answers)
            return await answers.of(request, lambda: handle(request))

        return kept


def _is_list(annotation: Any) -> bool:
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


def _check_query(request: Request, known: dict[str, bool]) -> None:
    """Refuse what is not known; ``known`` says of each parameter whether it may stand often."""
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        shown = name[:100]
        if name not in known:
            names = ", ".join(sorted(known))
            knows = f"it knows {names}" if names else "it knows none"
            said = f"query.{shown}: {request.url.path} has no such parameter; {knows}"
        elif name in seen and not known[name]:
            said = f"query.{shown}: given twice"
        else:
            seen.add(name)
            continue
        raise Refusal(422, "request", "Not a valid request", said, f"query.{shown}")


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) < _INLINE_BYTES:
            return _strict_json(body)
        return await run_in_threadpool(_strict_json, body)


def _strict_json(body: bytes) -> Any:
    try:
        return loads_once(body.decode())
    except ValueError as error:
        said = f"not valid JSON: {error}"
        raise HTTPException(400, detail=problem(400, "json", "Not JSON", said, "body")) from error


def parsed(cls: type[D], value: dict[str, Any], field: str) -> D:
    """A document out of a body.

    Raises
    ------
    Refusal
        Naming the place in it.
    """
    try:
        return parse_document(cls, value, field)
    except MoeplanError as error:
        raise refused(error, field) from error


def refused(error: MoeplanError, field: str) -> Refusal:
    """One of moeplan's errors as the refusal of a field."""
    body = problem_of(error, field)
    refusal = Refusal(body["status"], "", body["title"], body["detail"], field)
    refusal.body = body
    return refusal


def decoded(text: str, field: str) -> bytes:
    """Bytes from base64.

    Raises
    ------
    Refusal
        If it is none.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(422, "request", "Not a valid request", f"{field}: {error}", field) from error


def found(value: T | None, what: str, field: str = "path.digest", status: int = 404) -> T:
    """What the store has.

    Raises
    ------
    Refusal
        If it has none.
    """
    if value is None:
        raise Refusal(status, "missing", "There is none", f"the store has no {what}", field)
    return value


def accepted(job: Job, response: Response) -> JobView:
    """The answer to whoever asked for a job."""
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return JobView.of(job)


def unchanging(data: bytes, digest: str, media_type: str) -> Response:
    """Bytes that will always be the same under their path."""
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=31536000, immutable"}
    return Response(data, media_type=media_type, headers=headers)
