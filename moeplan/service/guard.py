"""What stands before every route: who may ask, from where, how much, and safe headers back.

A plain ASGI layer, so that what it refuses is never parsed.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from fastapi.exceptions import HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moeplan.service.errors import StoreError
from moeplan.service.metrics import Metrics
from moeplan.service.problems import MEDIA_TYPE, Refusal, problem_of
from moeplan.service.store import Store

__all__ = [
    "COOKIE",
    "Guard",
    "GuardSettings",
    "has_head",
    "is_loopback",
    "problem_answer",
    "wants_page",
]

COOKIE = "moeplan_token"
"""What a browser that has logged in sends: an API token that no script can read."""

_OPEN = ("/healthz", "/readyz", "/login")
"""Told to anybody: they say nothing but whether the service is there."""
_ASSETS = "/assets/"
"""What pages look like and do, told to anybody too."""
_NO_PAGES = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")
_FORM = "application/x-www-form-urlencoded"

_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", _POLICY.encode()),
)
_CLOSE = {"Connection": "close"}
_LARGE = ("/v1/profiles", "/v1/routings", "/v1/traces")


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What is let through.

    Attributes
    ----------
    token_required
        Whether every request needs an API token. Without it only the loopback's own names are
        answered, so that no page elsewhere can point its own name here.
    body_bytes, upload_bytes
        The largest body, and the largest upload of a profile or routing.
    """

    token_required: bool
    body_bytes: int = 4 << 20
    upload_bytes: int = 64 << 20


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """The layer; see the module."""

    def __init__(
        self, app: ASGIApp, settings: GuardSettings, store: Store, metrics: Metrics
    ) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500
        inner = _as_get(scope)

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in _HEADERS if pair[0] not in present),
                ]
                if b"cache-control" not in present:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        try:
            refused = await self._refuse(scope)
            if refused is not None:
                # what was not read is not read: the connection cannot be used again
                answer = _told(refused, scope)
                await answer(scope, receive, guarded)
            else:
                limit = self._limit(scope["path"])
                await self._app(inner, _counted(receive, limit), guarded)
        finally:
            route = getattr(inner.get("route"), "path", None) or "unknown"
            spent = time.perf_counter() - started
            self._metrics.request(scope["method"], route, status, spent)

    def _limit(self, path: str) -> int:
        large = path.rstrip("/") in _LARGE
        return self._settings.upload_bytes if large else self._settings.body_bytes

    async def _refuse(self, scope: Scope) -> Refusal | None:
        """The first reason not to pass a request on."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        named = _split(f"//{host}") if _plain_host(host) else None
        if host and named is None:
            said = f"host {host[:100]!r} is no name of a host"
            return Refusal(403, "host", "No host's name", said, "header.host")
        name = None if named is None else named.hostname
        if not self._settings.token_required and not is_loopback(name or ""):
            said = f"host {host[:100]!r} is not this machine's loopback"
            return Refusal(403, "host", "Another host's name", said, "header.host")
        origin = headers.get("origin")
        page = None if origin is None else _split(origin)
        if origin is not None and (page is None or page.netloc != host):
            said = f"asked by a page of {origin[:100]!r}"
            return Refusal(403, "origin", "Another site's page", said, "header.origin")
        if self._settings.token_required and not _open_to_all(scope["path"]):
            refused = await self._without_token(headers)
            if refused is not None:
                return refused
        if origin is None and scope["method"] not in _READING and _by_browser(scope, headers):
            said = "a form or a logged-in browser says which page it asks from"
            return Refusal(403, "origin", "No page of this site", said, "header.origin")
        return self._bad_body(scope, headers)

    async def _without_token(self, headers: Mapping[str, str]) -> Refusal | None:
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        if not given:
            scheme, token = "bearer", cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        try:
            valid = scheme.lower() == "bearer" and await run_in_threadpool(
                self._store.tokens.valid, token.strip()
            )
        except StoreError as error:
            return Refusal(503, "store", "The store is not available", str(error), "server")
        if valid:
            return None
        said = "this token is not valid" if given else "give an API token: 'moeplan token create'"
        challenge = {"WWW-Authenticate": "Bearer"}
        return Refusal(401, "token", "Token required", said, "header.authorization", challenge)

    def _bad_body(self, scope: Scope, headers: Mapping[str, str]) -> Refusal | None:
        length = headers.get("content-length")
        chunked = "transfer-encoding" in headers
        if length is not None and length.isdecimal() and len(length) < 20:
            if int(length) > self._limit(scope["path"]):
                return _too_large(self._limit(scope["path"]))
        elif length is not None:
            return Refusal(
                400,
                "length",
                "Not a length",
                "content-length is no number",
                "header.content-length",
            )
        if (chunked or (length or "0") != "0") and scope["method"] not in ("GET", "HEAD"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            form = kind == _FORM and not scope["path"].startswith(_NO_PAGES)
            if kind != "application/json" and not form:
                said = f"the body is {kind[:100] or 'of no type'!r}; send application/json"
                return Refusal(415, "type", "Another type", said, "header.content-type")
        return None


def has_head(path: str) -> bool:
    """Whether the head of what GET gives can be asked for: a stream of events has no end."""
    return not path.endswith("/events")


def _as_get(scope: Scope) -> Scope:
    """HEAD asks for what GET would say, without the body, which the server leaves out."""
    if scope["method"] != "HEAD" or not has_head(scope["path"]):
        return scope
    return {**scope, "method": "GET"}


_READING = ("GET", "HEAD", "OPTIONS")


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks for a page, rather than a program for JSON."""
    html = "text/html" in Headers(scope=scope).get("accept", "")
    return html and not scope["path"].startswith(_NO_PAGES)


def _open_to_all(path: str) -> bool:
    return path in _OPEN or path.startswith(_ASSETS)


def _by_browser(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether a request could be one that another site's page made in a user's name."""
    return "cookie" in headers or not scope["path"].startswith(_NO_PAGES)


def _told(refused: Refusal, scope: Scope) -> Response:
    """A refusal, its body unread; a browser without a token is shown where to give one."""
    if refused.body["status"] == 401 and wants_page(scope):
        query = scope["query_string"].decode("latin-1")
        after = scope["path"] + (f"?{query}" if query else "")
        there = f"/login?next={quote(after, safe='')}" if scope["method"] == "GET" else "/login"
        return RedirectResponse(there, 303, headers=_CLOSE)
    return problem_answer(problem_of(refused), {**refused.headers, **_CLOSE})


def _split(url: str) -> SplitResult | None:
    """Its parts; None where it is no address (a bracket that is not closed)."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
    except ValueError:
        return None
    return parts


def _plain_host(host: str) -> bool:
    return bool(host) and not set(host) & set("/\\@?#% \t")


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "size", "Too large", f"the body is larger than {limit:,} bytes", "body")


def _counted(receive: Receive, limit: int) -> Receive:
    """``receive``, which refuses to go on beyond ``limit`` bytes, whatever was announced."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, detail=_too_large(limit).body)
        return message

    return counted


def problem_answer(body: dict[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A problem document as the answer; what is too much now says when to come again."""
    again = {"Retry-After": "5"} if body["status"] in (429, 503) else {}
    return JSONResponse(
        body, body["status"], headers={**again, **(headers or {})}, media_type=MEDIA_TYPE
    )
