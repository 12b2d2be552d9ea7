"""Placements: the list, asking for one, and where its experts lie."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moeplan.service.entries import kept_document
from moeplan.service.pages.lists import add_form, add_list
from moeplan.service.pages.render import page
from moeplan.service.routes.common import Context, Digest, StrictRoute, found
from moeplan.words import compared
from planner.documents import ExpertPlacement

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, include_in_schema=False)
add_list(router, "/placements", "placement", "placements.html")
add_form(router, "/placements/new", "place")


@router.get("/placements/{digest}")
def one_placement(request: Request, service: Context, digest: Digest) -> Response:
    """How evenly devices are loaded, what that was chosen from, and which experts each holds."""
    kept = found(service.store.documents.kept("placement", digest), f"placement {digest}")
    placed = found(kept_document(service.store, ExpertPlacement, digest), f"placement {digest}")
    held: list[list[list[tuple[int, bool]]]] = []
    for layer in placed.layers:
        row: list[list[tuple[int, bool]]] = [[] for _ in range(placed.devices)]
        for expert, devices in enumerate(layer.devices):
            for device in devices:
                row[device].append((expert, len(devices) > 1))
        held.append(row)
    chosen = compared(placed)
    return page(request, "placement.html", kept=kept, placed=placed, held=held, compared=chosen)
