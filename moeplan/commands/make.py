"""Commands that make something: ``synth``, ``pack`` and ``plan``."""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from moeplan.bars import memory_bars
from moeplan.commands.common import (
    AllowError,
    AttentionSinks,
    AttentionWindow,
    Json,
    KvPlace,
    Memory,
    NewTokens,
    ObjectiveName,
    Predictors,
    PromptTokens,
    Requests,
    Seed,
    SolverName,
    Then,
    TimeLimit,
    Tolerance,
    check_predictors,
    kv_place,
    plain,
    plan_summary,
    reporter_of,
    say_plan,
    search_seconds,
    second_objective,
    workload_of,
)
from moeplan.commands.inputs import within_error
from moeplan.commands.offline import (
    DtypeName,
    HardwareName,
    HostMemory,
    ModelConfig,
    OptionalProfile,
    ProfileOut,
    Routing,
    Series,
    profile_of,
)
from moeplan.commands.remote import Server, plan_at
from moeplan.options import (
    check_new_folder,
    check_outputs,
    parse_size,
    split_names,
)
from moeplan.output import SearchSteps, human_bytes
from planner.documents import QuantizedExperts, write_document
from planner.files import is_file
from planner.objectives import OBJECTIVES
from planner.quantized import LEAST_GROUP
from solvers.counting import counted
from solvers.errors import OptionError
from solvers.registry import BOUNDS, HOSTED

__all__ = ["pack", "plan", "synth"]

_COMPRESS: dict[str, Literal["none", "exact", "both", "auto"]] = {
    "none": "none",
    "exact": "exact",
    "both": "both",
    "auto": "auto",
}
_QUANTIZE: dict[str, Literal["int8-1", "int4-1"]] = {"int8": "int8-1", "int4": "int4-1"}


def synth(
    ctx: typer.Context,
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A config.json, or a folder with one.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the checkpoint.")],
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Layers (as many as CONFIG has).")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="bfloat16, float16 or float32.")
    ] = "bfloat16",
    skew: Annotated[
        float | None, typer.Option("--skew", help="How unequal the experts' popularity is.")
    ] = None,
    persistence: Annotated[
        float | None,
        typer.Option(
            "--persistence", help="Share of an expert's choices that the next token keeps."
        ),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option("--routing", help="A routing document to take both from."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write a checkpoint with a real model's shapes and random weights, labelled synthetic."""
    from executor.synth import write_synthetic

    reporter = reporter_of(ctx)
    for option, value in (("--skew", skew), ("--persistence", persistence)):
        if value is not None and not math.isfinite(value):
            raise OptionError(f"{option} {value} is not a number")
        if value is not None and routing is not None:
            raise OptionError(f"{option} has no effect: --routing says it")
    check_new_folder(out, "--out", [config, routing])
    with reporter.steps("synth") as progress:
        summary = write_synthetic(
            config,
            out,
            layers=layers,
            seed=seed,
            dtype=dtype,
            skew=skew,
            persistence=persistence,
            routing=routing,
            progress=progress,
        )
    reporter.show(
        Text(
            f"{out}: {summary.family}, {counted(summary.layers, 'layer')}, "
            f"{human_bytes(summary.size_bytes)} in {dtype}; random weights, routing "
            f"{summary.routing}; prompts for it are in {out / 'prompts.jsonl'}"
        )
    )
    reporter.result({"checkpoint": str(out), "dtype": dtype, "synthetic": True, **plain(summary)})


def pack(
    ctx: typer.Context,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder for the store.")],
    compress: Annotated[
        str,
        typer.Option(
            "--compress",
            help="none; exact: fewer bytes that decode to the same bits; auto: so where it pays; "
            "both: experts so and as they are, and the plan chooses.",
        ),
    ] = "none",
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize",
            help="int8 or int4: experts quantized by groups, all of them; own,int8,int4 (or "
            "own and one of them): each expert in all of these, and the plan chooses.",
        ),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(
            "--group",
            help="Weights of a row that share a scale (int8: the whole row; int4: 64 or fewer).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rewrite a checkpoint so that one direct read fetches one expert. Can be taken up again."""
    import executor

    reporter = reporter_of(ctx)
    several = quantize is not None and ("," in quantize or quantize == "own")
    quantized = None if several else _quantized(quantize, group)
    forms = _forms(quantize, group) if quantize is not None and several else ()
    if compress not in _COMPRESS:
        raise OptionError(f"--compress {compress!r} is unknown; choose {', '.join(_COMPRESS)}")
    if quantize is not None and compress != "none":
        raise OptionError(
            f"--compress {compress} and --quantize {quantize}: a store is either quantized or "
            "exactly compressed; leave one out"
        )
    check_new_folder(store, "STORE", [checkpoint])
    with reporter.steps("pack") as progress:
        summary = executor.pack(
            checkpoint,
            store,
            progress,
            compress=_COMPRESS[compress],
            quantize=quantized,
            forms=forms,
        )
    again = f", {summary.reused_units} of them from before" if summary.reused_units else ""
    share = summary.size_bytes / max(summary.weights_bytes, 1)
    how = "exactly compressed" + (", experts as they are, too" if summary.both else "")
    small = f" ({share:.1%} of the weights, {how})" if summary.compressed else ""
    if summary.quantized is not None:
        off = summary.relative_error
        small = f", experts in {quantize}" + (
            "" if off is None else f" (their weights are {off:.2%} off, by root mean square)"
        )
    if summary.form_errors:
        each = (f"{form} ({error:.2%} off)" for form, error in summary.form_errors.items())
        small = f", experts as they are and in {', '.join(each)}: weights, by root mean square"
    size = human_bytes(summary.size_bytes)
    reporter.show(
        Text(f"{store}: {counted(summary.units, 'unit')}{again}, {size}{small}, verified")
    )
    for note in summary.notes:
        reporter.note(f"moeplan: {note}")
    reporter.result(plain(summary))


def _quantized(quantize: str | None, group: int | None) -> QuantizedExperts | None:
    """What ``--quantize`` and ``--group`` ask for."""
    if quantize is None:
        if group is not None:
            raise OptionError("--group has no effect without --quantize")
        return None
    if quantize not in _QUANTIZE:
        raise OptionError(f"--quantize {quantize!r} is unknown; choose {', '.join(_QUANTIZE)}")
    if group is not None and group < LEAST_GROUP:
        raise OptionError(f"--group {group}: a group has {LEAST_GROUP} weights or more")
    return QuantizedExperts(_QUANTIZE[quantize], group)


def _forms(quantize: str, group: int | None) -> tuple[QuantizedExperts, ...]:
    """What ``--quantize`` with several forms, and ``--group``, ask for."""
    names = split_names(quantize, ("own", *_QUANTIZE), "--quantize")
    if "own" not in names or len(names) < 2:
        raise OptionError(
            f"--quantize {quantize}: several forms are 'own', as the checkpoint has experts, and "
            "int8 or int4 or both"
        )
    found = (_quantized(name, group) for name in _QUANTIZE if name in names)
    return tuple(how for how in found if how is not None)


def plan(
    ctx: typer.Context,
    memory: Memory,
    profile_folder: OptionalProfile = None,
    model: ModelConfig = None,
    hardware: HardwareName = None,
    routing: Routing = None,
    series: Series = None,
    dtype: DtypeName = None,
    host_memory: HostMemory = None,
    profile_out: ProfileOut = None,
    requests: Requests = 64,
    prompt_tokens: PromptTokens = 64,
    new_tokens: NewTokens = 16,
    attention_window: AttentionWindow = None,
    attention_sinks: AttentionSinks = None,
    kv: KvPlace = "auto",
    objective: ObjectiveName = "throughput",
    solver: SolverName = "cpsat",
    then: Then = None,
    tolerance: Tolerance = None,
    time_limit: TimeLimit = None,
    predictors: Predictors = None,
    allow_error: AllowError = None,
    seed: Seed = 0,
    server: Server = None,
    out: Annotated[
        Path, typer.Option("--out", help="File for the plan; an older plan there is replaced.")
    ] = Path("plan.json"),
    as_json: Json = False,
) -> None:
    """Choose what stays in memory, what is copied ahead, and how many sequences share a copy.

    Control-C ends the search and writes the best plan so far; a second one gives up. With --server
    it cancels the search there.
    """
    from planner.check import check_plan
    from planner.offline import write_profile
    from planner.solve import SOLVERS, make_plan

    reporter = reporter_of(ctx)
    memory_bytes = parse_size(memory, "--memory")
    (objective,) = split_names(objective, OBJECTIVES, "--objective", most=1)
    (solver,) = split_names(solver, (*SOLVERS, *BOUNDS, *HOSTED), "--solver", most=1)
    second, share = second_objective((objective,), then, tolerance)
    place = kv_place(kv)
    check_outputs(
        {"--out": out},
        [profile_folder, model, *map(Path, filter(None, (routing, hardware)))],
        made="plan",
    )
    limit = search_seconds((solver,), time_limit)
    check_predictors((solver,), predictors)
    workload = workload_of(requests, prompt_tokens, new_tokens, attention_window, attention_sinks)
    began = time.monotonic()
    with reporter.steps("plan") as steps:
        loaded = profile_of(
            profile_folder,
            workload,
            memory_bytes,
            seed,
            model=model,
            hardware=hardware,
            routing=routing,
            series=series,
            dtype=dtype,
            host_memory=host_memory,
            profile_out=profile_out,
            progress=steps,
        )
        drawn = loaded
        loaded = within_error(loaded, allow_error)
        # what a plan is made from counts, too
        left = max(limit - (time.monotonic() - began), 0.001)
        here = functools.partial(make_plan, interruptible=True, cap_seconds=left)
        planned = here if server is None else functools.partial(plan_at, server)
        made = planned(
            loaded,
            workload,
            memory_bytes=memory_bytes,
            solver=solver,
            objective=objective,
            time_limit_seconds=limit,
            seed=seed,
            progress=SearchSteps(steps, limit),
            then=second,
            tolerance=share,
            kv=place,
            predictors=predictors,
        )
        steps(0, 0, "checking, by code that shares nothing with the search")
        faults = check_plan(made, loaded)
    if faults:
        # the plan's maker and the checker disagree: a bug, which must not leave as a plan
        raise RuntimeError(f"the checker refuses the new plan: {faults}")
    if profile_out is not None:
        write_profile(drawn, profile_out)
    older = is_file(out) and out.stat().st_size > 0
    write_document(made, out)
    say_plan(reporter, made, loaded.model)
    account = made.memory["device"]
    reporter.show(memory_bars(account.by_purpose, account.capacity_bytes))
    reporter.show(Text(f"\nThe plan is in {out}{', in place of an older one' if older else ''}"))
    reporter.result({**plan_summary(made), "plan": str(out)})
