"""Comparisons: the list, asking for one, its matrix of solvers and objectives, its plots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moeplan.output import human_bytes, human_number, human_time
from moeplan.service.pages.charts import Axis, Point, chart
from moeplan.service.pages.lists import add_form, add_list
from moeplan.service.pages.render import page
from moeplan.service.routes.common import Context, Digest, Service, StrictRoute, found
from moeplan.words import objective_value
from planner.documents import Workload

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, include_in_schema=False)
add_list(router, "/compare", "comparison", "comparisons.html")
add_form(router, "/compare/new", "compare")

_MOST_BUDGETS = 200
"""Plans that are looked through for other budgets, the newest."""
_SPEED = Axis("tokens/s predicted", human_number)


@dataclass(frozen=True, slots=True)
class Cell:
    """One solver under one objective.

    Attributes
    ----------
    plan
        Hash.
    words
        The value with its unit.
    times
        The value over the smallest of its column; None where that is nothing.
    best
        Whether it is the smallest.
    gap
        See ``Plan``.
    winner
        Whose plan it is, where that is another one's; else empty.
    """

    plan: str
    words: str
    times: float | None
    best: bool
    gap: float | None
    winner: str


@router.get("/compare/{digest}")
def one_comparison(request: Request, service: Context, digest: Digest) -> Response:
    """The matrix, and what its plans are in each other's company."""
    what = f"comparison {digest}"
    kept = found(service.store.documents.kept("comparison", digest), what)
    body = json.loads(found(service.store.documents.get("comparison", digest), what))
    inputs, rows = body["inputs"], body["rows"]
    return page(
        request,
        "comparison.html",
        kept=kept,
        inputs=inputs,
        rows=rows,
        matrix=_matrix(inputs, rows),
        charts=_charts(service, inputs, rows),
    )


def _matrix(inputs: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, dict[str, Cell]]:
    """Solver -> objective -> cell."""
    workload = Workload(**inputs["workload"])
    least: dict[str, float] = {}
    for row in rows:
        name, value = row["objective"], _ranked_by(row)
        least[name] = min(value, least.get(name, value))
    made: dict[str, dict[str, Cell]] = {}
    for row in rows:
        name, value = row["objective"], _ranked_by(row)
        made.setdefault(row["solver"], {})[name] = Cell(
            row["plan"],
            objective_value(name, workload, value),
            value / least[name] if least[name] > 0 else None,
            value == least[name],
            row["gap"],
            row["winner"] if row["winner"] != row["solver"] else "",
        )
    return made


def _ranked_by(row: dict[str, Any]) -> float:
    """The objective; with the credit of a link that has one."""
    value: float = row.get("promised", row["objective_value"])
    return value


def _charts(service: Service, inputs: dict[str, Any], rows: list[dict[str, Any]]) -> list[Any]:
    """Frontiers: memory and speed, waiting and speed, budget and speed."""
    memory, waiting, order = [], [], inputs["solvers"]
    for row in rows:
        words = f"{row['solver']} for {row['objective']}"
        speed, link = row["tokens_per_second"], f"/plans/{row['plan']}"
        rate = f"{human_number(speed)} tokens/s"
        peak = row["peak_bytes"]
        said = f"{words}: {rate}, {human_bytes(peak)}"
        memory.append(Point(peak, speed, row["solver"], said, link))
        kept = service.store.documents.kept("plan", row["plan"])
        if kept is not None:
            first = kept.summary["predicted"]["time_to_first_token_ns"]
            said = f"{words}: {rate}, first token after {human_time(first)}"
            waiting.append(Point(first, speed, row["solver"], said, link))
    return [
        chart("Memory and speed", memory, Axis("device peak", human_bytes, 1024), _SPEED, order),
        chart(
            "First token and speed", waiting, Axis("first token after", human_time), _SPEED, order
        ),
        chart(
            "Budgets and speed, of all plans for this profile and work",
            _budgets(service, inputs),
            Axis("device budget", human_bytes, 1024),
            _SPEED,
            order,
        ),
    ]


def _budgets(service: Service, inputs: dict[str, Any]) -> list[Point]:
    points = []
    for kept in service.store.documents.listed("plan", limit=_MOST_BUDGETS):
        summary = kept.summary
        same = summary.get("profile") == inputs["profile"]
        if same and summary["workload"] == inputs["workload"]:
            budget = summary["memory"]["device"]["capacity_bytes"]
            speed = summary["predicted"]["tokens_per_second"]["value"]
            words = f"{summary['solver']}, {human_bytes(budget)}: {human_number(speed)} tokens/s"
            points.append(Point(budget, speed, summary["solver"], words, f"/plans/{kept.hash}"))
    # one budget is no frontier
    return points if len({one.x for one in points}) > 1 else []
