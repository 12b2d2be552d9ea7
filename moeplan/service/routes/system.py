"""Whether the service is there and well."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moeplan.service.routes.common import Context, StrictRoute

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, tags=["system"])


class HealthView(BaseModel):
    """One word."""

    status: str


@router.get("/healthz", summary="The process answers")
async def healthz() -> HealthView:
    """Needs neither the store nor a token."""
    return HealthView(status="ok")


@router.get("/readyz", summary="The store answers, too")
def readyz(service: Context) -> HealthView:
    """503 while the store cannot be read."""
    service.store.jobs.get("0" * 64)
    return HealthView(status="ready")


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Text.", "content": {"text/plain": {}}}},
)
def metrics(service: Context) -> Response:
    """Requests, jobs by state, documents by kind, workers."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/openapi.json", include_in_schema=False)
def description(request: Request) -> Response:
    """The API's description; the framework's own route would let unknown parameters pass."""
    return JSONResponse(request.app.openapi())
