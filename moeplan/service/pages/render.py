"""Templates filled in, what they look like, and the headers that pages have."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from moeplan.output import human_bytes, human_number, human_time

__all__ = ["POLICY", "assets", "page", "problem_page"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Content-Security-Policy of pages: nothing inline runs, nothing comes from elsewhere."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    # a form says which page it was on, which 'no-referrer' would hide
    "Referrer-Policy": "same-origin",
}
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" '
    'rx="3" fill="#2f6fde"/><path d="M3 5h6M5 8h8M3 11h4" stroke="#fff" stroke-width="2"/></svg>'
)


@functools.cache
def assets() -> Mapping[str, tuple[str, bytes]]:
    """Name -> media type and bytes of what pages load; all of it comes with the program."""
    here, shared = files("moeplan.service.pages.templates"), files("moeplan")
    light, dark = _sheets((shared / "page_style.html").read_text(encoding="utf-8"))
    (more,) = _sheets((here / "style.html").read_text(encoding="utf-8"))
    texts = {
        "style.css": ("text/css", light + more),
        "dark.css": ("text/css", dark),
        "report.js": ("text/javascript", (shared / "page.js").read_text(encoding="utf-8")),
        "pages.js": ("text/javascript", (here / "pages.js").read_text(encoding="utf-8")),
        "icon.svg": ("image/svg+xml", _ICON),
    }
    return {name: (kind, text.encode()) for name, (kind, text) in texts.items()}


def _sheets(text: str) -> list[str]:
    return re.findall(r"<style[^>]*>\n(.*?)</style>", text, re.DOTALL)


def _asset(name: str) -> str:
    """Where an asset is found; another one of the same name has another address."""
    digest = hashlib.sha256(assets()[name][1]).hexdigest()
    return f"/assets/{name}?v={digest[:12]}"


def _when(seconds: float | None) -> str:
    return "–" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}%"


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("moeplan.service.pages", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": human_bytes,
        "number": human_number,
        "duration": human_time,
        "when": _when,
        "percent": _percent,
        "short": lambda digest: digest[:10],
    }
    made.globals |= {"asset": _asset, "version": version("moeplan")}
    return made


def fragment(name: str, macro: str, *arguments: Any) -> str:
    """What one macro of a template makes."""
    made: str = getattr(_templates().get_template(name).module, macro)(*arguments)
    return made


def page(request: Request, name: str, /, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page.

    Parameters
    ----------
    request
        Says where it is shown.
    name
        Of the template.
    status
        Of HTTP.
    **values
        For the template.
    """
    given = {
        "here": request.url.path,
        "token_required": request.app.state.service.token_required,
        **values,
    }
    return HTMLResponse(_templates().get_template(name).render(given), status, _HEADERS)


def problem_page(
    request: Request, body: dict[str, Any], headers: Mapping[str, str]
) -> HTMLResponse:
    """A refusal as a page; of ``headers``, those that say when to come again are kept."""
    response = page(request, "problem.html", status=body["status"], problem=body)
    for name in ("retry-after", "allow"):
        if name in headers:
            response.headers[name] = headers[name]
    return response
