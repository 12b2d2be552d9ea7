"""Placements: the list, asking for one, and where its experts lie."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moeplan.service.entries import kept_document
from moeplan.service.pages import asking
from moeplan.service.pages.asking import Chosen
from moeplan.service.pages.forms import Form
from moeplan.service.pages.render import page
from moeplan.service.routes.common import After, Context, Digest, PageLimit, Search, found
from moeplan.service.views import DocumentList
from planner.documents import ExpertPlacement

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/placements")
def list_placements(
    request: Request,
    service: Context,
    limit: PageLimit = 50,
    after: After = None,
    search: Search = None,
) -> Response:
    """All placements."""
    listed = DocumentList.of(service.store, "placement", limit=limit, after=after, search=search)
    return page(request, "placements.html", listed=listed, search=search or "")


@router.get("/placements/new")
def new_placement(request: Request, service: Context, routing: Chosen = None) -> Response:
    """The form."""
    return asking.show(request, service, "place", routing)


@router.post("/placements/new")
def ask_placement(request: Request, service: Context, typed: Form) -> Response:
    """On to the job."""
    return asking.submit(request, service, "place", typed)


@router.get("/placements/{digest}")
def one_placement(request: Request, service: Context, digest: Digest) -> Response:
    """How evenly devices are loaded, and which experts each holds."""
    kept = found(service.store.documents.kept("placement", digest), f"placement {digest}")
    placed = found(kept_document(service.store, ExpertPlacement, digest), f"placement {digest}")
    held: list[list[list[tuple[int, bool]]]] = []
    for layer in placed.layers:
        row: list[list[tuple[int, bool]]] = [[] for _ in range(placed.devices)]
        for expert, devices in enumerate(layer.devices):
            for device in devices:
                row[device].append((expert, len(devices) > 1))
        held.append(row)
    return page(request, "placement.html", kept=kept, placed=placed, held=held)
