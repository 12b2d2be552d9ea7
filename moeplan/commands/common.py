"""What several commands share: options that mean the same, and documents as JSON summaries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from moeplan.options import split_names
from moeplan.output import Reporter
from moeplan.words import decode_tokens_per_second, explain_plan, note_list, tokens_per_second
from planner.documents import (
    ExpertPlacement,
    ModelSpec,
    Plan,
    Trace,
    Workload,
    document_hash,
)
from planner.kv import KV_PLACES, Place
from planner.objectives import OBJECTIVES
from solvers.errors import OptionError
from solvers.registry import BOUNDS, Feature, load, names

__all__ = [
    "AllowError",
    "AttentionSinks",
    "AttentionWindow",
    "Json",
    "KvPlace",
    "Memory",
    "NewTokens",
    "ObjectiveName",
    "OutputsFile",
    "PlanFile",
    "PlotsFile",
    "Predictors",
    "ProfileFolder",
    "ProfileOption",
    "PromptTokens",
    "PromptsFile",
    "Requests",
    "Seed",
    "SolverName",
    "Then",
    "TimeLimit",
    "Tolerance",
    "check_predictors",
    "kv_place",
    "no_predictors_words",
    "placement_summary",
    "plain",
    "plan_summary",
    "reporter_of",
    "say",
    "say_plan",
    "search_seconds",
    "searches",
    "second_objective",
    "trace_summary",
    "workload_of",
]


DEFAULT_TIME_LIMIT_SECONDS = 10.0
DEFAULT_TOLERANCE = 0.01
DEFAULT_SINKS = 4

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
Memory = Annotated[str, typer.Option("--memory", help="Device budget: 600MiB, 1.5GB or bytes.")]
ProfileFolder = Annotated[
    Path, typer.Argument(metavar="PROFILE_DIR", help="A folder that 'moeplan profile' made.")
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A file of 'moeplan plan'.")]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", help="The profile (where it lay when planning).")
]
PromptsFile = Annotated[
    Path, typer.Option("--prompts", help="A .txt (a prompt a line) or a .jsonl (see the docs).")
]
OutputsFile = Annotated[
    Path | None, typer.Option("--out", help="File for the outputs, one JSON object a line.")
]
Requests = Annotated[int, typer.Option("--requests", min=1, help="How many sequences.")]
PromptTokens = Annotated[int, typer.Option("--prompt-tokens", min=1, help="The longest prompt.")]
NewTokens = Annotated[int, typer.Option("--new-tokens", min=1, help="New tokens for each.")]
AttentionWindow = Annotated[
    int | None,
    typer.Option(
        "--attention-window",
        min=1,
        help="Attend to the last so many tokens only (all): less memory, other outputs.",
    ),
]
AttentionSinks = Annotated[
    int | None,
    typer.Option(
        "--attention-sinks", min=0, max=1 << 20, help="And to so many first tokens of each (4)."
    ),
]
KvPlace = Annotated[
    str,
    typer.Option(
        "--kv",
        help="Where keys and values lie: auto, device, below it (of layers that stream), or "
        "batches (below, each batch's copied by themselves).",
    ),
]
Predictors = Annotated[
    bool | None,
    typer.Option(
        "--predictors/--no-predictors",
        help="Have layers follow what predictor finds more than the list of prefetches, or none "
        "(a solver that searches: look ahead where that is clearly faster).",
        show_default=False,
    ),
]
AllowError = Annotated[
    float | None,
    typer.Option(
        "--allow-error",
        help="Of a store with several forms: how far off experts' weights may be, on average over "
        "what tokens choose (0.01: 1%; 0: all as in the checkpoint).",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", min=0.001, help="Seconds for a solver that searches (10)."),
]
ObjectiveName = Annotated[
    str, typer.Option("--objective", help=f"What is best: {', '.join(OBJECTIVES)}.")
]
SolverName = Annotated[
    str, typer.Option("--solver", help=f"Back end or strategy: {', '.join(names())}.")
]
PlotsFile = Annotated[Path | None, typer.Option("--html", help="Write a page with plots.")]
Then = Annotated[
    str | None,
    typer.Option("--then", help="A second objective, among plans nearly the best by the first."),
]
Tolerance = Annotated[
    str | None,
    typer.Option("--tolerance", help="How much of the first --then may give up, as in 2% (1%)."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of what is random.")]


def reporter_of(ctx: typer.Context) -> Reporter:
    """The reporter that ``main`` made for this call."""
    reporter: Reporter = ctx.obj
    return reporter


def say(reporter: Reporter, paragraphs: Sequence[str]) -> None:
    """Show paragraphs, each with an empty line after it."""
    for paragraph in paragraphs:
        reporter.show(Text(paragraph + "\n"))


def say_plan(reporter: Reporter, plan: Plan, model: ModelSpec | None) -> None:
    """Show what a plan does, and its notes."""
    say(reporter, explain_plan(plan, model))
    if plan.notes:
        reporter.show(note_list(plan.notes))
        reporter.show("")


def workload_of(
    requests: int,
    prompt_tokens: int,
    new_tokens: int,
    attention_window: int | None = None,
    attention_sinks: int | None = None,
) -> Workload:
    """The workload document of these options.

    Raises
    ------
    OptionError
        If there are attention sinks without a window.
    """
    if attention_window is None and attention_sinks is not None:
        raise OptionError("--attention-sinks has no effect without --attention-window")
    if attention_window is not None and attention_sinks is None:
        attention_sinks = DEFAULT_SINKS
    return Workload(requests, prompt_tokens, new_tokens, attention_window, attention_sinks)


def kv_place(typed: str) -> Place:
    """Where keys and values are to lie.

    Raises
    ------
    OptionError
        If it is none of ``KV_PLACES``.
    """
    (place,) = split_names(typed, KV_PLACES, "--kv", most=1)
    return cast("Place", place)


def search_seconds(
    solvers: Sequence[str],
    time_limit: float | None,
    default: float = DEFAULT_TIME_LIMIT_SECONDS,
) -> float:
    """The time limit of solvers that search; ``default`` where none was given.

    Raises
    ------
    OptionError
        If it is no number of seconds, or was given where none of the solvers searches.
    """
    if time_limit is None:
        return default
    if not math.isfinite(time_limit):
        raise OptionError(f"--time-limit {time_limit} is not a number of seconds")
    if not any(searches(solver) for solver in solvers):
        rule = "follows a rule and does" if len(solvers) == 1 else "follow rules and do"
        raise OptionError(f"--time-limit has no effect: {', '.join(solvers)} {rule} not search")
    return time_limit


def searches(solver: str) -> bool:
    """Whether a solver searches, rather than to follow a rule."""
    return solver not in BOUNDS and Feature.BOUND in load(solver).features


def no_predictors_words(solvers: Sequence[str], option: str) -> str:
    """Why no predictors cannot be asked for where no solver searches."""
    rule = "follows a rule and looks" if len(solvers) == 1 else "follow rules and look"
    return f"{option} has no effect: {', '.join(solvers)} {rule} ahead only where asked to"


def check_predictors(solvers: Sequence[str], predictors: bool | None) -> None:
    """Refuse ``--no-predictors`` where nobody looks ahead by itself.

    Raises
    ------
    OptionError
        If none of the solvers searches.
    """
    if predictors is False and not any(searches(solver) for solver in solvers):
        raise OptionError(no_predictors_words(solvers, "--no-predictors"))


def second_objective(
    first: Sequence[str], then: str | None, tolerance: str | None
) -> tuple[str | None, float]:
    """The second objective, and the share of the ``first`` ones that it may give up.

    Raises
    ------
    OptionError
        If one of the two options can have no effect or cannot be read.
    """
    if then is None:
        if tolerance is not None:
            raise OptionError("--tolerance has no effect without --then")
        return None, DEFAULT_TOLERANCE
    (then,) = split_names(then, OBJECTIVES, "--then", most=1)
    if then in first:
        raise OptionError(f"--then {then} is the first objective; name another")
    if tolerance is None:
        return then, DEFAULT_TOLERANCE
    try:
        share = float(tolerance.removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if "_" in tolerance or not (tolerance.endswith("%") and 0 <= share < 1):
        raise OptionError(f"--tolerance {tolerance!r} is no share; write it like 2%, below 100%")
    return then, share


def plain(value: Any) -> Any:
    """Plain JSON values of (nested) dataclasses, tuples and paths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def plan_summary(plan: Plan) -> dict[str, Any]:
    """What scripts ask of a plan: everything but its timeline."""
    policy, predicted = plan.policy, plan.predicted
    return {
        "n_batches": policy.n_batches,
        "batch_size": policy.batch_size,
        "solver": plan.solver,
        "stop": plan.stop,
        "objective_name": plan.objective_name,
        "objective": plan.objective,
        "bound": plan.bound,
        "bound_class": plan.bound_class,
        "gap": plan.gap,
        "predicted": {
            "tokens_per_second": plain(predicted.tokens_per_second),
            "decode_tokens_per_second": plain(predicted.decode_tokens_per_second),
            "time_to_first_token_ns": predicted.time_to_first_token_ns,
            "totals": plain(predicted.totals),
            **_credited(plan),
        },
        "memory": {
            tier: {**plain(account), "peak_bytes": account.peak_bytes}
            for tier, account in plan.memory.items()
        },
        "policy": {
            "resident_experts": sum(len(layer.resident) for layer in policy.layers),
            "prefetched_experts": sum(len(layer.prefetch) for layer in policy.layers),
            "resident_dense_parts": sum(layer.dense_resident for layer in policy.layers),
            "layers": len(policy.layers),
            "resident_head_tiles": policy.resident_head_tiles,
            "head_tiles": policy.head_tiles,
            "slots": policy.slots,
            "dense_slots": policy.dense_slots,
            "kv_slots": policy.kv_slots,
            "reserve": policy.reserve,
            "eviction": policy.eviction,
            "hold": policy.hold,
            "chunk_bytes": policy.chunk_bytes,
        },
        "workload": {k: v for k, v in plain(plan.workload).items() if v is not None},
        "inputs": plain(plan.inputs),
        "locations": plain(plan.locations),
        "device": plan.device,
        "dtype": plan.dtype,
        "chosen_over": plan.chosen_over,
        "asked": plain(plan.asked),
        "notes": list(plan.notes),
        "hash": document_hash(plan),
    }


def _credited(plan: Plan) -> dict[str, Any]:
    """What a prediction has that counts a link's credit."""
    if plan.predicted.credit_ns is None:
        return {}
    return {"credit_ns": plan.predicted.credit_ns, "objective": plan.predicted.objective}


def placement_summary(placement: ExpertPlacement) -> dict[str, Any]:
    """What scripts ask of a placement: everything but the experts' devices."""
    left_out = {"layers"} if placement.offload is not None else {"layers", "offload"}
    body = {name: value for name, value in plain(placement).items() if name not in left_out}
    return {**body, "moe_layers": len(placement.layers)}


def trace_summary(trace: Trace, sequences: int | None = None) -> dict[str, Any]:
    """What scripts ask of a trace: everything but its timeline."""
    decode = decode_tokens_per_second(trace, sequences) if sequences is not None else None
    return {
        "tokens_per_second": tokens_per_second(trace),
        "decode_tokens_per_second": decode,
        "device": trace.device,
        "paced_bytes_per_second": trace.paced_bytes_per_second,
        "plan_hash": trace.plan_hash,
        "kept_passes": trace.kept_passes,
        "totals": plain(trace.totals),
    }
