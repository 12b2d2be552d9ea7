"""The command ``sweep``: what each budget gives, from too little memory to more than enough.

Without a profile it is a sweep of many models on many machines, see ``sweep_pairs``.
"""

from __future__ import annotations

from pathlib import Path
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
    NewTokens,
    ObjectiveName,
    PlotsFile,
    Predictors,
    PromptTokens,
    Requests,
    Seed,
    SolverName,
    TimeLimit,
    check_predictors,
    kv_place,
    plan_summary,
    reporter_of,
    search_seconds,
    workload_of,
)
from moeplan.commands.inputs import error_words, within_error
from moeplan.commands.offline import DtypeName, HostMemory, OptionalProfile, Routing, Series
from moeplan.commands.serve import StoreUrl
from moeplan.commands.sweep_pairs import (
    BudgetList,
    EngineName,
    HardwareList,
    ModelList,
    PairOptions,
    RayAddress,
    Search,
    Workers,
    sweep_of_pairs,
)
from moeplan.options import check_outputs, parse_range, split_names
from moeplan.output import Reporter, human_bytes, human_number
from moeplan.plots import Chart, Line, TableOf, build_plots, require_plotly
from moeplan.words import CREDIT_WORDS, objective_words, work_words
from planner.documents import Workload, write_atomic
from planner.objectives import OBJECTIVES
from planner.profiles import load_profile
from planner.sizes import typed_size
from solvers.errors import BudgetError, OptionError
from solvers.registry import names

if TYPE_CHECKING:
    from planner.curves import FrontierPoint
    from planner.sweep import SweepPoint

__all__ = ["frontier_chart", "sweep"]

_COLUMNS = ("memory", "tokens/s", "objective", "plan by", "n x b", "experts that stay", "used")


def sweep(
    ctx: typer.Context,
    profile_folder: OptionalProfile = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Device budgets, as in 1GiB..8GiB.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=2, max=64, help="How many budgets (8).")
    ] = None,
    models: ModelList = None,
    hardware: HardwareList = None,
    budgets: BudgetList = None,
    routing: Routing = None,
    series: Series = None,
    dtype: DtypeName = None,
    host_memory: HostMemory = None,
    engine: EngineName = None,
    ray_address: RayAddress = None,
    workers: Workers = None,
    store: StoreUrl = None,
    requests: Requests = 64,
    prompt_tokens: PromptTokens = 64,
    new_tokens: NewTokens = 16,
    attention_window: AttentionWindow = None,
    attention_sinks: AttentionSinks = None,
    kv: KvPlace = "auto",
    predictors: Predictors = None,
    allow_error: AllowError = None,
    objective: ObjectiveName = "throughput",
    solver: SolverName = "cpsat",
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    html: PlotsFile = None,
    as_json: Json = False,
) -> None:
    """Plan within a range of budgets: the frontier of memory and throughput. Or, with --models,
    --hardware and --budgets, each model on each machine within each budget, kept in a store.

    Control-C, and kill -9, lose no plan of the second kind: the same command goes on.
    """
    reporter = reporter_of(ctx)
    (objective,) = split_names(objective, OBJECTIVES, "--objective", most=1)
    (solver,) = split_names(solver, names(), "--solver", most=1)
    limit = search_seconds((solver,), time_limit)
    check_predictors((solver,), predictors)
    workload = workload_of(requests, prompt_tokens, new_tokens, attention_window, attention_sinks)
    search = Search(solver, objective, limit, seed, kv_place(kv), predictors)
    options = PairOptions(
        models, hardware, budgets, routing, series, dtype, host_memory, engine, ray_address,
        workers, store,
    )  # fmt: skip
    if profile_folder is None:
        own = {"--memory": memory, "--html": html, "--allow-error": allow_error}
        for option, value in own.items():
            if value is not None:
                raise OptionError(f"{option} is for a sweep of a PROFILE_DIR, and none was given")
        sweep_of_pairs(reporter, options, steps, workload, search)
        return
    options.check_unused(profile_folder)
    if memory is None:
        raise OptionError("--memory is missing: give a range of budgets, as in 1GiB..8GiB")
    _frontier(reporter, profile_folder, memory, steps or 8, workload, search, allow_error, html)


def _frontier(
    reporter: Reporter,
    profile_folder: Path,
    memory: str,
    steps: int,
    workload: Workload,
    search: Search,
    allow_error: float | None,
    html: Path | None,
) -> None:
    from planner.sweep import budgets_between
    from planner.sweep import sweep as plan_all

    low, high = parse_range(memory, "--memory")
    budgets = budgets_between(low, high, steps)
    check_outputs({"--html": html}, [profile_folder])
    if html is not None:
        require_plotly()
    loaded = within_error(load_profile(profile_folder), allow_error)
    with reporter.steps("sweep") as progress:
        points = plan_all(
            loaded,
            workload,
            budgets,
            **search._asdict(),
            progress=progress,
        )
    smallest = next((p.smallest_bytes for p in points if p.smallest_bytes is not None), None)
    if all(point.plan is None for point in points) and smallest is not None:
        raise BudgetError(
            f"--memory {memory}: no budget of the range works; the smallest that does is "
            f"{smallest:,} bytes ({typed_size(smallest)})",
            smallest,
        )
    rows = [_cells(point) for point in points]
    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(_COLUMNS):
        table.add_column(heading, justify="left" if index == 3 else "right")
    for row in rows:
        table.add_row(*row)
    about = (
        f"{work_words(workload)}; solver {search.solver}, objective {search.objective}"
        f"{error_words(allow_error)}. Predicted on held-out routing."
    )
    if any(point.plan and point.plan.predicted.credit_ns is not None for point in points):
        about += f" {CREDIT_WORDS}"
    reporter.show(Text(about))
    reporter.show(table)
    said = ""
    if smallest is not None:
        said = f"The smallest budget that works is {smallest:,} bytes ({typed_size(smallest)})."
        reporter.show(Text(said))
    if html is not None:
        name = loaded.model.name
        page = build_plots(
            f"{name}: memory and throughput",
            about,
            [frontier_chart({search.solver: [_drawn(point) for point in points]}, smallest)],
            [TableOf("Budgets", _COLUMNS, tuple(rows), said)],
        )
        write_atomic(html, page.encode())
        reporter.show(Text(f"The plots are in {html}"))
    reporter.result(
        {
            "smallest_bytes": smallest,
            "points": [_summary(point) for point in points],
            "html": str(html) if html is not None else None,
        }
    )


def frontier_chart(frontiers: dict[str, list[FrontierPoint]], smallest: int | None) -> Chart:
    """Tokens/s against the budget, a line for each solver."""
    lines = [
        Line(
            name,
            tuple(point.memory_bytes / (1 << 20) for point in points),
            tuple(point.tokens_per_second for point in points),
            texts=tuple(
                "" if p.tokens_per_second is None else f"n x b = {p.n_batches} x {p.batch_size}"
                for p in points
            ),
        )
        for name, points in frontiers.items()
    ]
    words = "A plan for less memory is valid for more, so no line falls."
    if smallest is not None:
        words += f" Below {typed_size(smallest)} nothing works."
    return Chart("Throughput against memory", "device budget, MiB", "tokens/s", tuple(lines), words)


def _drawn(point: SweepPoint) -> FrontierPoint:
    from planner.curves import FrontierPoint

    if point.plan is None:
        return FrontierPoint(point.memory_bytes, None, 0, 0)
    rate, policy = point.plan.predicted.tokens_per_second.value, point.plan.policy
    return FrontierPoint(point.memory_bytes, rate, policy.n_batches, policy.batch_size)


def _cells(point: SweepPoint) -> tuple[str, ...]:
    plan = point.plan
    if plan is None:
        return (human_bytes(point.memory_bytes), "–", "too small", "–", "–", "–", "–")
    by = plan.solver
    if point.made_for_bytes != point.memory_bytes:
        by += f" for {human_bytes(point.made_for_bytes)}"
    return (
        human_bytes(point.memory_bytes),
        human_number(plan.predicted.tokens_per_second.value),
        objective_words(plan, plan.promised),
        by,
        f"{plan.policy.n_batches} x {plan.policy.batch_size}",
        f"{sum(len(layer.resident) for layer in plan.policy.layers):,}",
        human_bytes(plan.memory["device"].peak_bytes),
    )


def _summary(point: SweepPoint) -> dict[str, Any]:
    return {
        "memory_bytes": point.memory_bytes,
        "feasible": point.plan is not None,
        "smallest_bytes": point.smallest_bytes,
        "made_for_bytes": point.made_for_bytes,
        "seconds": point.seconds,
        "plan": None if point.plan is None else plan_summary(point.plan),
    }
