"""The way in: the first page, logging in and out, and what pages load."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from moeplan.service.guard import COOKIE
from moeplan.service.pages.forms import Form
from moeplan.service.pages.render import assets, page
from moeplan.service.routes.common import Context, StrictRoute, found

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

_HERE = re.compile(r"/[a-z][\w/?=&.,:%+-]*", re.ASCII)
"""Where one may be sent after logging in: a path of this service."""

Version = Annotated[str | None, Query(pattern=r"^[0-9a-f]{12}$")]
"""Part of an asset's address, so that a browser asks for another one of the same name."""


@router.get("/")
def first() -> Response:
    """Plans are what one comes for."""
    return RedirectResponse("/plans", 303)


@router.get("/assets/{name}")
def asset(name: str, v: Version = None) -> Response:
    """A style, a script, the icon: by name out of a fixed list, never out of a folder."""
    kind, data = found(assets().get(name), f"asset {name}", "path.name")
    return Response(data, media_type=kind, headers={"Cache-Control": "public, max-age=31536000"})


def _after(typed: str) -> str:
    return typed if _HERE.fullmatch(typed) else "/plans"


@router.get("/login")
def ask_token(request: Request, service: Context, next: str = "/plans") -> Response:
    """Where a token is typed."""
    if not service.token_required:
        return RedirectResponse("/plans", 303)
    return page(request, "login.html", after=_after(next), error="")


@router.post("/login")
def log_in(request: Request, service: Context, typed: Form) -> Response:
    """Keep a valid token in a cookie that scripts cannot read and other sites cannot use."""
    after = _after(next(iter(typed.get("next", ())), ""))
    token = next(iter(typed.get("token", ())), "").strip()
    if not service.token_required:
        return RedirectResponse("/plans", 303)
    if not service.store.tokens.valid(token):
        said = "This token is not valid, or it was revoked."
        return page(request, "login.html", status=401, after=after, error=said)
    response = RedirectResponse(after, 303)
    # behind a proxy that speaks TLS, the browser's own origin says so
    secure = request.headers.get("origin", "").startswith("https:")
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
    return response


@router.post("/logout")
def log_out() -> Response:
    """Forget the token."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response
