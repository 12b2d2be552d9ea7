"""The command ``compare``: every solver under every objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import (
    Json,
    Memory,
    NewTokens,
    ProfileFolder,
    PromptTokens,
    Requests,
    Seed,
    TimeLimit,
    plan_summary,
    reporter_of,
    search_seconds,
    workload_of,
)
from moeplan.options import parse_size, split_names
from moeplan.output import human_bytes, human_number, human_time
from moeplan.words import objective_words
from planner.objectives import OBJECTIVES
from planner.profiles import load_profile
from solvers.registry import names

if TYPE_CHECKING:
    from planner.compare import ComparisonRow

__all__ = ["best_row", "compare", "over_best", "over_bound"]


def compare(
    ctx: typer.Context,
    profile_folder: ProfileFolder,
    memory: Memory,
    requests: Requests = 64,
    prompt_tokens: PromptTokens = 64,
    new_tokens: NewTokens = 16,
    solvers: Annotated[
        str | None,
        typer.Option("--solvers", help=f"Some of {', '.join(names())}, with commas between (all)."),
    ] = None,
    objectives: Annotated[
        str,
        typer.Option("--objectives", help=f"Some of {', '.join(OBJECTIVES)}, with commas between."),
    ] = "throughput",
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Plan with every solver under every objective; one table for each objective."""
    from planner.compare import compare as plan_all

    reporter = reporter_of(ctx)
    memory_bytes = parse_size(memory, "--memory")
    known = names()
    chosen = known if solvers is None else split_names(solvers, known, "--solvers")
    goals = split_names(objectives, OBJECTIVES, "--objectives")
    limit = search_seconds(chosen, time_limit)
    loaded = load_profile(profile_folder)
    workload = workload_of(requests, prompt_tokens, new_tokens)
    rows: list[ComparisonRow] = []
    with reporter.steps("compare") as progress:
        cells = [(goal, name) for goal in goals for name in chosen]
        for done, (goal, name) in enumerate(cells):
            progress(done, len(cells), f"{name} for {goal}")
            rows += plan_all(
                loaded,
                workload,
                memory_bytes=memory_bytes,
                solvers=(name,),
                objectives=(goal,),
                time_limit_seconds=limit,
                seed=seed,
            )
    for goal in goals:
        reporter.show(_table(goal, [row for row in rows if row.objective == goal]))
    reporter.result({"rows": [_summary(row, rows) for row in rows]})


def _table(goal: str, rows: list[ComparisonRow]) -> Table:
    table = Table(title=Text(goal), title_justify="left", box=None, pad_edge=False)
    for heading in ("solver", "plan by"):
        table.add_column(heading)
    for heading in ("value", "over best", "over bound", "tokens/s", "n x b", "memory", "took"):
        table.add_column(heading, justify="right")
    best = best_row(rows)
    for row in sorted(rows, key=lambda one: one.objective_value):
        over = over_bound(row, best)
        table.add_row(
            row.solver,
            row.winner,
            objective_words(row.plan, row.objective_value),
            _percent(over_best(row, best)),
            _percent(over),
            f"{human_number(row.tokens_per_second)}",
            f"{row.n_batches} x {row.batch_size}",
            human_bytes(row.peak_bytes),
            human_time(row.solve_seconds * 1e9),
            style="bold" if row.objective_value == best.objective_value else "",
        )
    if best.bound is not None:
        table.caption_justify = "left"
        table.caption = Text(
            f"over bound: (value - bound) / value, with the best row's bound, which is for n x b = "
            f"{best.n_batches} x {best.batch_size} ({best.plan.bound_class}); – where it does not "
            "hold: for other n x b, or a plan that caches"
        )
    return table


def best_row(rows: Sequence[ComparisonRow]) -> ComparisonRow:
    """The row with the least value; of equals the one with the tightest bound."""
    return min(rows, key=lambda row: (row.objective_value, -(row.bound or 0.0)))


def over_best(row: ComparisonRow, best: ComparisonRow) -> float | None:
    """How much worse than the best row, as a share of the best; None where that is 0."""
    if best.objective_value <= 0:
        return None
    return row.objective_value / best.objective_value - 1


def over_bound(row: ComparisonRow, best: ComparisonRow) -> float | None:
    """Distance from the best row's bound, as a share of the row's value.

    None where that bound says nothing about the row's plan: it is for one n and b, and but for a
    ``physical`` one for plans that do not cache.
    """
    if best.bound is None or row.objective_value <= 0:
        return None
    if (row.n_batches, row.batch_size) != (best.n_batches, best.batch_size):
        return None
    if best.plan.bound_class != "physical" and row.plan.policy.eviction != "none":
        return None
    return (row.objective_value - best.bound) / row.objective_value


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def _summary(row: ComparisonRow, rows: Sequence[ComparisonRow]) -> dict[str, Any]:
    best = best_row([one for one in rows if one.objective == row.objective])
    return {
        **plan_summary(row.plan),
        "solver": row.solver,
        "winner": row.winner,
        "solve_seconds": row.solve_seconds,
        "over_best": over_best(row, best),
        "over_best_bound": over_bound(row, best),
    }
