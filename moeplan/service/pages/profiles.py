"""Profiles: the list, uploading, and what one holds."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moeplan.service.entries import kept_document
from moeplan.service.pages.lists import add_list
from moeplan.service.pages.render import page
from moeplan.service.routes.common import Context, Digest, StrictRoute, found
from planner.documents import CostProfile, Hardware, ModelSpec, ProfileIndex, RoutingTrace

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, include_in_schema=False)
add_list(router, "/profiles", "profile", "profiles.html")


@router.get("/profiles/{digest}")
def one_profile(request: Request, service: Context, digest: Digest) -> Response:
    """A machine with a model."""
    store = service.store
    kept = found(store.documents.kept("profile", digest), f"profile {digest}")
    index = found(kept_document(store, ProfileIndex, digest), f"profile {digest}")
    return page(
        request,
        "profile.html",
        kept=kept,
        index=index,
        hardware=kept_document(store, Hardware, index.hardware_hash),
        model=kept_document(store, ModelSpec, index.model_hash),
        costs=kept_document(store, CostProfile, index.costs_hash),
        routing=kept_document(store, RoutingTrace, index.routing_hash),
    )
