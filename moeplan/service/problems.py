"""Refusals as problem documents (RFC 9457): one table from error class to status.

Workers keep them with failed jobs, routes answer with them, the client turns them back into the
same errors.
"""

from __future__ import annotations

import re
from typing import Any

from moeplan.output import one_line
from moeplan.service.errors import QueueFullError, StoreError
from solvers.errors import (
    BudgetError,
    CheckpointError,
    DocumentError,
    InputError,
    MoeplanError,
    OptionError,
    RunError,
    StaleError,
    UnsupportedError,
)

__all__ = ["MEDIA_TYPE", "PROBLEMS", "Refusal", "error_of", "problem", "problem_of"]

MEDIA_TYPE = "application/problem+json"

PROBLEMS: tuple[tuple[type[MoeplanError], int, str, str], ...] = (
    (BudgetError, 422, "budget", "The memory budget is too small"),
    (StaleError, 422, "stale", "Documents do not belong together"),
    (DocumentError, 422, "document", "Not a valid document"),
    (CheckpointError, 422, "checkpoint", "Not a valid checkpoint"),
    (UnsupportedError, 422, "unsupported", "Not supported"),
    (OptionError, 422, "option", "Not a valid value"),
    (InputError, 422, "input", "Not valid"),
    (QueueFullError, 429, "queue-full", "Too many jobs wait"),
    (StoreError, 503, "store", "The store is not available"),
    (RunError, 500, "run", "Stopped by the machine"),
)
"""Error class, status, name and title; the first class that fits counts."""

_URN = "urn:moeplan:problem:"


class Refusal(MoeplanError):  # noqa: N818 - what a route answers, not only faults
    """What a route refuses.

    Parameters
    ----------
    status
        Of HTTP.
    name
        The last part of the problem's type.
    title, detail
        A few words that are the same each time, and the whole line.
    field
        What in the request is at fault, as in ``body.workload.requests`` or ``header.host``.
    headers
        For the answer.
    """

    def __init__(
        self,
        status: int,
        name: str,
        title: str,
        detail: str,
        field: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.headers = headers or {}
        self.body = problem(status, name, title, detail, field)


def problem(
    status: int, name: str, title: str, detail: str, field: str | None = None, **more: Any
) -> dict[str, Any]:
    """A problem document."""
    told = {} if field is None else {"field": field}
    return {
        "type": _URN + name,
        "title": title,
        "status": status,
        "detail": one_line(detail),
        **told,
        **more,
    }


_FIELD = re.compile(r"([A-Za-z_][\w.-]{0,200}): ")


def problem_of(error: MoeplanError, field: str | None = None) -> dict[str, Any]:
    """The problem document of one of moeplan's errors.

    Parameters
    ----------
    field
        What is at fault. Where the message itself begins with a place inside of that, as a
        document's does, the place is named too.
    """
    if isinstance(error, Refusal):
        return error.body
    detail = str(error)
    more: dict[str, Any] = {}
    if isinstance(error, BudgetError):
        more["smallest_bytes"] = error.smallest_bytes
    if isinstance(error, StaleError):
        more["document"] = error.document
    if field is not None and detail.startswith(f"{field}: "):
        place = _FIELD.match(detail.removeprefix(f"{field}: "))
        field = f"{field}.{place[1]}" if place else field
    for cls, status, name, title in PROBLEMS:
        if isinstance(error, cls):
            return problem(status, name, title, detail, field, **more)
    return problem(500, "internal", "Internal error", detail, field, **more)


def error_of(body: dict[str, Any]) -> MoeplanError:
    """The error that a problem document was made from, as far as it tells; for a client."""
    detail = str(body.get("detail") or body.get("title") or "refused without a reason")
    name = str(body.get("type", "")).removeprefix(_URN)
    if name == "budget" and isinstance(body.get("smallest_bytes"), int):
        return BudgetError(detail, body["smallest_bytes"])
    if name == "stale":
        return StaleError(str(body.get("document", "profile")), detail)
    for cls, _, known, _ in PROBLEMS:
        if name == known and cls not in (BudgetError, StaleError):
            return cls(detail)
    status = body.get("status")
    refused = isinstance(status, int) and 400 <= status < 500
    field = body.get("field")
    if refused and isinstance(field, str) and field not in detail:
        detail = f"{field}: {detail}"
    return InputError(detail) if refused else RunError(detail)
