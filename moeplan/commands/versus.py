"""The command ``compare``: every solver under every objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import (
    AllowError,
    AttentionSinks,
    AttentionWindow,
    Json,
    KvPlace,
    Memory,
    NewTokens,
    PlotsFile,
    Predictors,
    ProfileFolder,
    PromptTokens,
    Requests,
    Seed,
    Then,
    TimeLimit,
    Tolerance,
    check_predictors,
    kv_place,
    plain,
    plan_summary,
    reporter_of,
    search_seconds,
    searches,
    second_objective,
    workload_of,
)
from moeplan.commands.inputs import error_words, within_error
from moeplan.options import check_outputs, parse_size, split_names
from moeplan.output import human_bytes, human_number, human_time
from moeplan.plots import Chart, TableOf, build_plots, require_plotly
from moeplan.words import CREDIT_WORDS, work_words
from planner.documents import Plan, write_atomic
from planner.objectives import ALL_OBJECTIVES, OBJECTIVES
from planner.profiles import load_profile
from solvers.errors import OptionError
from solvers.registry import BOUNDS, HOSTED, load_runnable, names

if TYPE_CHECKING:
    from planner.compare import BoundRow, ComparisonRow

__all__ = ["best_row", "compare", "over_best", "over_bound"]


def compare(
    ctx: typer.Context,
    profile_folder: ProfileFolder,
    memory: Memory,
    requests: Requests = 64,
    prompt_tokens: PromptTokens = 64,
    new_tokens: NewTokens = 16,
    attention_window: AttentionWindow = None,
    attention_sinks: AttentionSinks = None,
    kv: KvPlace = "auto",
    predictors: Predictors = None,
    allow_error: AllowError = None,
    solvers: Annotated[
        str | None,
        typer.Option(
            "--solvers",
            help=f"Some of {', '.join((*names(), *BOUNDS, *HOSTED))}, with commas between (all).",
        ),
    ] = None,
    objectives: Annotated[
        str,
        typer.Option("--objectives", help=f"Some of {', '.join(OBJECTIVES)}, with commas between."),
    ] = "throughput",
    then: Then = None,
    tolerance: Tolerance = None,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    html: PlotsFile = None,
    as_json: Json = False,
) -> None:
    """Plan with every solver under every objective; one table for each objective."""
    from moeplan.commands.curves import curve_steps, draw_curves
    from planner.compare import compare as plan_all
    from planner.compare import compare_bound
    from planner.curves import TimePoint

    reporter = reporter_of(ctx)
    memory_bytes = parse_size(memory, "--memory")
    known = (*names(), *BOUNDS)
    asked = known if solvers is None else split_names(solvers, (*known, *HOSTED), "--solvers")
    chosen = tuple(name for name in asked if name not in BOUNDS)
    goals = split_names(objectives, OBJECTIVES, "--objectives")
    for name in chosen:
        load_runnable(name)
    second, share = second_objective(goals, then, tolerance)
    if second is not None and not any(searches(name) for name in chosen):
        follows = "follows a rule" if len(asked) == 1 else "follow rules"
        raise OptionError(f"--then {second} has no effect: {', '.join(asked)} {follows}")
    place = kv_place(kv)
    if predictors and not chosen:
        raise OptionError(f"--predictors has no effect: {', '.join(asked)} makes no plan")
    check_predictors(asked, predictors)
    check_outputs({"--html": html}, [profile_folder])
    if html is not None:
        require_plotly()
    limit = search_seconds(asked, time_limit)
    loaded = within_error(load_profile(profile_folder), allow_error)
    workload = workload_of(requests, prompt_tokens, new_tokens, attention_window, attention_sinks)
    bounds: list[BoundRow] = []
    charts: list[Chart] = []
    with reporter.steps("compare") as progress:
        limits = [(goal, name) for goal in goals for name in asked if name in BOUNDS]
        planned = len(goals) * len(chosen)
        made = planned + len(limits)
        drawn = html is not None and bool(chosen)
        total = made + (curve_steps(chosen, workload) if drawn else 0)
        rows = plan_all(
            loaded,
            workload,
            memory_bytes=memory_bytes,
            solvers=chosen,
            objectives=goals,
            time_limit_seconds=limit,
            seed=seed,
            then=second,
            tolerance=share,
            kv=place,
            predictors=predictors,
            progress=lambda done, _, what: progress(done, total, what),
        )
        for done, (goal, name) in enumerate(limits, planned):
            progress(done, total, f"{name} for {goal}")
            bounds.append(
                compare_bound(
                    loaded,
                    workload,
                    memory_bytes=memory_bytes,
                    solver=name,
                    objective=goal,
                    seed=seed,
                    kv=place,
                )
            )
        if drawn:
            # what was made under the whole limit is not made again; with --then it is another plan
            same = [row for row in rows if row.objective == goals[0] and second is None]
            charts = draw_curves(
                loaded,
                workload,
                memory_bytes=memory_bytes,
                solvers=chosen,
                objective=goals[0],
                limit_seconds=limit,
                seed=seed,
                kv=place,
                predictors=predictors,
                whole={
                    row.solver: TimePoint(limit, row.objective_value, row.bound) for row in same
                },
                steps=lambda done, _, what: progress(made + done, total, what),
            )
    tables = []
    about = (
        f"{work_words(workload)}, time limit {limit:g} s{error_words(allow_error)}. Everything is "
        "measured on held-out routing."
    )
    if any(row.plan.predicted.credit_ns is not None for row in rows):
        about += f" {CREDIT_WORDS}"
    if allow_error:
        about += (
            " Bounds are for the forms of experts that were chosen; others within that error may "
            "go below."
        )
    reporter.show(Text(about))
    for goal in goals:
        of_goal = [row for row in rows if row.objective == goal]
        below = [bound for bound in bounds if bound.objective == goal]
        reporter.show(_table(goal, of_goal, below))
        tables.append(_html_table(goal, of_goal, below))
    if html is not None:
        title = f"{loaded.model.name}: solvers compared within {human_bytes(memory_bytes)}"
        write_atomic(html, build_plots(title, about, charts, tables).encode())
        reporter.show(Text(f"The plots are in {html}"))
    reporter.result(
        {
            "rows": [_summary(row, rows) for row in rows],
            "bounds": [plain(bound) for bound in bounds],
            "html": str(html) if html is not None else None,
        }
    )


def _table(goal: str, rows: list[ComparisonRow], bounds: list[BoundRow]) -> Table:
    """For 80 columns: what all values are of stands above, and who made a plan where it is another
    than who was asked."""
    amount, rest = _unit(goal)
    title = f"{goal}, {rest}" if rest else goal
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    table.add_column("solver")
    for heading in ("value", "over\nbest", "over\nbound", "tokens/s", "n x b", "memory", "took"):
        table.add_column(heading, justify="right", no_wrap=True)
    for bound in bounds:
        if bound.value is not None:
            about = "" if bound.n_batches is None else f"{bound.n_batches} x {bound.batch_size}"
            took = human_time(bound.solve_seconds * 1e9)
            what = f"{bound.solver} ({_bound_words(bound)})"
            table.add_row(what, amount(bound.value), "", "", "", about, "", took, style="dim")
    if not rows:
        return table
    best = best_row(rows)
    for row in sorted(rows, key=lambda one: one.promised):
        over = over_bound(row, best)
        table.add_row(
            row.solver if row.winner == row.solver else f"{row.solver} ({row.winner})",
            amount(row.promised),
            _percent(over_best(row, best)),
            _percent(over),
            f"{human_number(row.tokens_per_second)}",
            f"{row.n_batches} x {row.batch_size}",
            human_bytes(row.peak_bytes),
            human_time(row.solve_seconds * 1e9),
            style="bold" if row.promised == best.promised else "",
        )
    if best.bound is not None:
        table.caption_justify = "left"
        table.caption = Text(
            f"over bound: (value - bound) / value, with the best row's bound, which is for n x b = "
            f"{best.n_batches} x {best.batch_size} ({best.plan.bound_class}); – where it does not "
            "hold: for other n x b, "
            + ("other forms of experts, " if _formed(rows) else "")
            + "or a plan that caches"
        )
    return table


_HTML_COLUMNS = (
    "solver",
    "plan by",
    "value",
    "over best",
    "bound",
    "bound's class",
    "gap",
    "price of information",
    "tokens/s",
    "n x b",
    "memory",
    "took",
    "stop",
)


def _html_table(goal: str, rows: list[ComparisonRow], bounds: list[BoundRow]) -> TableOf:
    cells = [
        (
            bound.solver,
            _bound_words(bound),
            value_words(goal, bound.value),
            *("",) * 6,
            "" if bound.n_batches is None else f"{bound.n_batches} x {bound.batch_size}",
            "",
            human_time(bound.solve_seconds * 1e9),
            "",
        )
        for bound in bounds
        if bound.value is not None
    ]
    for row in sorted(rows, key=lambda one: one.promised):
        price = row.price_of_information
        cells.append(
            (
                row.solver,
                row.winner,
                value_words(goal, row.promised),
                _percent(over_best(row, best_row(rows))),
                "–" if row.bound is None else value_words(goal, row.bound),
                row.plan.bound_class or "–",
                _percent(row.gap),
                "–" if price is None else value_words(goal, price),
                human_number(row.tokens_per_second),
                f"{row.n_batches} x {row.batch_size}",
                human_bytes(row.peak_bytes),
                human_time(row.solve_seconds * 1e9),
                row.stop,
            )
        )
    words = (
        "Each bound is for the row's own n and b and its class of policies; the price of "
        "information is what a row takes beyond the bound of a clairvoyant: the most that a better "
        "predictor could earn."
    )
    if _formed(rows) or any(bound.of_forms for bound in bounds):
        words += (
            " Bounds are for the forms of experts that were chosen: with others within the allowed "
            "error a plan may go below them."
        )
    return TableOf(goal, _HTML_COLUMNS, tuple(cells), words)


def _bound_words(bound: BoundRow) -> str:
    return "bound, chosen forms" if bound.of_forms else "bound"


def _formed(rows: Sequence[ComparisonRow]) -> bool:
    """Whether some plan's experts were allowed an error."""
    return any(row.plan.expert_error is not None for row in rows)


def value_words(goal: str, value: float) -> str:
    """A value of an objective with its unit, as in ``4.1 ms a token``."""
    amount, rest = _unit(goal)
    return f"{amount(value)} {rest}".rstrip()


def _unit(goal: str) -> tuple[Callable[[float], str], str]:
    """How values of an objective are written, and what they are of, as in ``a token``."""
    unit = next(one.unit for one in ALL_OBJECTIVES if one.name == goal)
    first, _, rest = unit.partition(" ")
    return human_bytes if first == "bytes" else human_time, rest


def best_row(rows: Sequence[ComparisonRow]) -> ComparisonRow:
    """The row that promises the least; of equals the one with the tightest bound."""
    return min(rows, key=lambda row: (row.promised, -(row.bound or 0.0)))


def over_best(row: ComparisonRow, best: ComparisonRow) -> float | None:
    """How much worse than the best row, as a share of the best; None where that is 0."""
    if best.promised <= 0:
        return None
    return row.promised / best.promised - 1


def over_bound(row: ComparisonRow, best: ComparisonRow) -> float | None:
    """Distance from the best row's bound, as a share of the row's value; both without credit.

    None where that bound says nothing about the row's plan: it is for one n and b and one choice of
    experts' forms, and but for a ``physical`` one or one of a cache for plans that do not cache.
    That of a cache with nothing in it that was copied ahead is not for plans with such a cache.
    """
    if best.bound is None or row.objective_value <= 0:
        return None
    if (row.n_batches, row.batch_size) != (best.n_batches, best.batch_size):
        return None
    if row.plan.policy.expert_forms != best.plan.policy.expert_forms:
        return None
    if row.plan.policy.eviction != "none" and best.plan.bound_class != "physical":
        if best.plan.bound_class != "cache":
            return None
        if _keeps_ahead(row.plan) and not _keeps_ahead(best.plan):
            return None
    return (row.objective_value - best.bound) / row.objective_value


def _keeps_ahead(plan: Plan) -> bool:
    """Whether what was copied ahead and not chosen may stay in a cache."""
    ahead = any(one.prefetch or one.predictor != "plan" for one in plan.policy.layers)
    return plan.policy.eviction != "none" and ahead


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
        "plan_bound": row.plan_bound,
        "clairvoyant_bound": row.clairvoyant_bound,
        "price_of_information": row.price_of_information,
    }
