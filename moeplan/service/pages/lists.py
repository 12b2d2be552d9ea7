"""What kinds of documents have alike: a page that lists them, and one that asks for another."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moeplan.service.pages.asking import Chosen, show, submit
from moeplan.service.pages.forms import Form
from moeplan.service.pages.render import page
from moeplan.service.routes.common import After, Context, PageLimit, Search
from moeplan.service.views import DocumentList

__all__ = ["add_form", "add_list"]


def add_list(router: APIRouter, place: str, kind: str, template: str) -> None:
    """List documents of a kind, or those whose name holds a text, the newest first."""

    @router.get(place)
    def listed(
        request: Request,
        service: Context,
        limit: PageLimit = 50,
        after: After = None,
        search: Search = None,
    ) -> Response:
        found = DocumentList.of(service.store, kind, limit=limit, after=after, search=search)
        return page(request, template, listed=found, search=search or "")


def add_form(router: APIRouter, place: str, kind: str) -> None:
    """Ask for a job of a kind; ``of`` is the document that a link has chosen."""

    @router.get(place)
    def empty(request: Request, service: Context, of: Chosen = None) -> Response:
        return show(request, service, kind, of)

    @router.post(place)
    def filled(request: Request, service: Context, typed: Form) -> Response:
        return submit(request, service, kind, typed)
