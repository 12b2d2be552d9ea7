"""The command ``compare``: every solver under every objective."""

from __future__ import annotations

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
from planner.profiles import load_profile

if TYPE_CHECKING:
    from planner.compare import ComparisonRow

__all__ = ["compare"]


def compare(
    ctx: typer.Context,
    profile_folder: ProfileFolder,
    memory: Memory,
    requests: Requests = 64,
    prompt_tokens: PromptTokens = 64,
    new_tokens: NewTokens = 16,
    solvers: Annotated[
        str | None, typer.Option("--solvers", help="Names with commas between (all).")
    ] = None,
    objectives: Annotated[
        str, typer.Option("--objectives", help="Names with commas between.")
    ] = "throughput",
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Plan with every solver under every objective; one table for each objective."""
    from planner.compare import compare as plan_all
    from planner.solve import OBJECTIVES, SOLVERS

    reporter = reporter_of(ctx)
    memory_bytes = parse_size(memory, "--memory")
    names = SOLVERS if solvers is None else split_names(solvers, SOLVERS, "--solvers")
    goals = split_names(objectives, OBJECTIVES, "--objectives")
    limit = search_seconds(names, time_limit)
    loaded = load_profile(profile_folder)
    workload = workload_of(requests, prompt_tokens, new_tokens)
    rows: list[ComparisonRow] = []
    with reporter.steps("compare") as progress:
        cells = [(goal, name) for goal in goals for name in names]
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
    reporter.result({"rows": [_summary(row) for row in rows]})


def _table(goal: str, rows: list[ComparisonRow]) -> Table:
    table = Table(title=Text(goal), title_justify="left", box=None, pad_edge=False)
    for heading in ("solver", "plan by"):
        table.add_column(heading)
    for heading in ("value", "gap", "tokens/s", "n x b", "memory", "took"):
        table.add_column(heading, justify="right")
    best = min(row.objective_value for row in rows)
    for row in sorted(rows, key=lambda one: one.objective_value):
        table.add_row(
            row.solver,
            row.winner,
            objective_words(row.plan, row.objective_value),
            f"{100 * row.gap:.1f}%" if row.gap is not None else "–",
            f"{human_number(row.tokens_per_second)}",
            f"{row.n_batches} x {row.batch_size}",
            human_bytes(row.peak_bytes),
            human_time(row.solve_seconds * 1e9),
            style="bold" if row.objective_value == best else "",
        )
    return table


def _summary(row: ComparisonRow) -> dict[str, Any]:
    return {
        **plan_summary(row.plan),
        "solver": row.solver,
        "winner": row.winner,
        "solve_seconds": row.solve_seconds,
    }
