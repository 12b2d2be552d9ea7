"""Commands that use a plan: ``check``, ``run`` and ``verify``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import (
    Json,
    OutputsFile,
    PlanFile,
    ProfileOption,
    PromptsFile,
    plain,
    reporter_of,
    say,
    trace_summary,
)
from moeplan.commands.inputs import costs_of, hardware_of, load_plan
from moeplan.commands.offload import check_placed, is_placement
from moeplan.commands.outputs import give_outputs
from moeplan.options import check_outputs, optional_pace, read_prompts
from moeplan.output import Reporter, human_bytes, human_number, human_time, one_line
from moeplan.words import against_words, explain_trace, range_words, served_words
from planner.comparable import disk_pace, pace_words
from planner.documents import (
    Plan,
    Trace,
    load_document,
    load_with_seal,
    write_document,
)
from planner.profiles import load_profile
from solvers.counting import counted
from solvers.errors import InputError, MoeplanError, OptionError

if TYPE_CHECKING:
    from executor import Output, Sampling

__all__ = ["check", "run", "verify"]


def check(
    ctx: typer.Context,
    plan_file: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="A file of 'moeplan plan', or of 'moeplan offload'."),
    ],
    profile: ProfileOption = None,
    as_json: Json = False,
) -> int:
    """Check a plan with code that shares nothing with the solvers; print every violation."""
    from planner.check import Violation, check_plan

    reporter = reporter_of(ctx)
    if is_placement(plan_file):
        return check_placed(reporter, plan_file, profile)
    plan, broken_seal = load_with_seal(Plan, plan_file)
    folder = profile if profile is not None else Path(plan.locations.profile)
    loaded, missing = None, None
    try:
        loaded = load_profile(folder)
    except InputError as error:
        if profile is not None:
            raise
        missing = str(error)
        reporter.note(
            f"moeplan: memory and prediction were not recomputed, because the profile cannot be "
            f"read: {missing} (--profile DIR names another place)"
        )
    violations = check_plan(plan, loaded)
    if broken_seal is not None:
        violations.insert(0, Violation("edited", "content_hash", broken_seal))
    for violation in violations:
        reporter.show(Text(f"{violation.reason}: {violation.where}: {violation.message}"))
    against = f"against {folder}" if loaded is not None else "by itself"
    if not violations:
        reporter.show(Text(f"{plan_file}: checked {against}, no violation"))
    reporter.result(
        {
            "plan": str(plan_file),
            "profile": str(folder) if loaded is not None else None,
            "not_recomputed": missing,
            "violations": [violation._asdict() for violation in violations],
        }
    )
    return 1 if violations else 0


def run(
    ctx: typer.Context,
    plan_file: PlanFile,
    prompts: PromptsFile,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="New tokens for each (as planned)."),
    ] = None,
    out: OutputsFile = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="File for the trace.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="The checkpoint, if it has moved.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="The packed store, if it has moved.")
    ] = None,
    profile: ProfileOption = None,
    disk_bandwidth: Annotated[
        str | None,
        typer.Option("--disk-bandwidth", help="Slow the disk down (as when it was profiled)."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Draw tokens at it (the likeliest is taken)."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw among the k likeliest only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Draw among the likeliest with this probability together."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the drawing (0).")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="A text that ends an output (repeat for more)."),
    ] = None,
    stop_token: Annotated[
        list[int] | None, typer.Option("--stop-token", help="A token id that ends one, likewise.")
    ] = None,
    verify_reads: Annotated[
        bool,
        typer.Option("--verify", help="Hold all that is read from a store against its checksums."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Carry a plan out on prompts."""
    reporter = reporter_of(ctx)
    sampling = _sampling(temperature, top_k, top_p, seed)
    stops = (*(stop or ()), *(stop_token or ()))
    plan = load_plan(plan_file)
    asked = read_prompts(prompts)
    places = (plan.locations.checkpoint, plan.locations.store, plan.locations.profile)
    read = [plan_file, prompts, checkpoint, store, profile]
    read += [Path(place) for place in places if place]
    check_outputs({"--out": out, "--trace": trace}, read)
    pace = optional_pace(disk_bandwidth, "--disk-bandwidth")
    hardware, note = hardware_of(plan, profile), ""
    if hardware is not None:
        planned = disk_pace(hardware)
        if pace is None:
            # as it was profiled, so that a run is like its prediction
            pace = planned
        elif pace != planned:
            note = (
                f"moeplan: the plan was made for a disk {pace_words(planned)}; its prediction is "
                f"not for one {pace_words(pace)}"
            )
    from executor import Engine

    with reporter.steps("load") as progress:
        loaded = Engine.from_plan(
            plan,
            checkpoint=checkpoint,
            store=store,
            profile=profile,
            paced_bytes_per_second=pace,
            verify=verify_reads,
            progress=progress,
            prompts=asked,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stops,
        )
    if note:  # not before: a refusal is one line
        reporter.note(note)
    with loaded as engine:
        try:
            with reporter.steps("run") as progress:
                outputs = engine.generate(
                    asked, max_new_tokens, progress, sampling=sampling, stop=stops
                )
        except (MoeplanError, KeyboardInterrupt):
            _keep_finished(reporter, engine.outputs, out, trace)
            raise
        made = engine.trace()
    lines = _lines(outputs)
    try:
        give_outputs(reporter, lines, out, trace)
    finally:
        # what can be kept is, whatever else cannot
        if trace is not None:
            write_document(made, trace)
    say(reporter, explain_trace(made, plan, hardware))
    reporter.result(
        {
            **trace_summary(made, len(outputs)),
            "requests": len(outputs),
            "outputs": lines if out is None else str(out),
            "trace": str(trace) if trace is not None else None,
        }
    )


def _sampling(
    temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> Sampling | None:
    """How tokens are drawn, if at all.

    Raises
    ------
    OptionError
        If a value is out of range, or has no effect.
    """
    from executor import Sampling

    if temperature is not None:
        return Sampling(temperature, top_k, top_p, 0 if seed is None else seed)
    for option, value in (("--top-k", top_k), ("--top-p", top_p), ("--seed", seed)):
        if value is not None:
            raise OptionError(
                f"{option} has no effect without --temperature: the likeliest token is taken"
            )
    return None


def _lines(outputs: Sequence[Output]) -> list[dict[str, Any]]:
    return [
        {"prompt": output.prompt, "text": output.text, "token_ids": list(output.token_ids)}
        for output in outputs
    ]


def _keep_finished(
    reporter: Reporter, outputs: Sequence[Output], out: Path | None, trace: Path | None = None
) -> None:
    """What had ended when a run was stopped is not lost."""
    finished = [output for output in outputs if output.finished]
    if not finished:
        return
    try:
        give_outputs(reporter, _lines(finished), out, trace)
    except MoeplanError as error:
        # what ended the run is what is told in the end
        reporter.note(f"moeplan: {one_line(str(error))}")
        return
    if out is not None:
        reporter.note(
            f"moeplan: {len(finished)} of {counted(len(outputs), 'output')} had ended: see {out}"
        )


def verify(
    ctx: typer.Context,
    plan_file: PlanFile,
    trace_file: Annotated[Path, typer.Argument(metavar="TRACE", help="Its run's trace.")],
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            min=0.0,
            help="Exit with 1 if measured tokens/s is off by more of the predicted (0.2 is 20%).",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Hold measured against predicted: each operation kind, and the whole."""
    from profiler.verify import verify as compare_with

    reporter = reporter_of(ctx)
    if max_error is not None and not math.isfinite(max_error):
        raise OptionError(f"--max-error {max_error} is not a fraction")
    plan, trace = load_plan(plan_file), load_document(Trace, trace_file)
    found = compare_with(plan, trace, hardware_of(plan), costs_of(plan))
    if max_error is not None and found.not_comparable is not None:
        raise OptionError(
            f"--max-error cannot be judged: {found.not_comparable}; plan for the work that is run"
        )
    judged = found.not_comparable is None
    speed, decode = found.tokens_per_second, found.decode_tokens_per_second
    within = max_error is None or (speed.error is not None and abs(speed.error) <= max_error)
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("predicted", "measured", *(("measured / predicted",) if judged else ())):
        table.add_column(heading, justify="right")

    def add(name: Text | str, predicted: str, measured: str, ratio: float | None) -> None:
        told = [f"{ratio:.2f}" if ratio is not None else "–"] if judged else []
        table.add_row(name, predicted, measured, *told)

    for label, rate in (("tokens/s in all", speed), ("tokens/s in decode", decode)):
        ratio = 1 + rate.error if rate.error is not None else None
        add(Text(label, "bold"), range_words(rate.predicted), human_number(rate.measured), ratio)
    for row in (found.wall, found.prefill, found.decode, *found.kinds):
        if row.predicted or row.measured:
            name = row.name.replace("_", " ")
            add(name, human_time(row.predicted), human_time(row.measured), row.ratio)
    for row in (found.bytes_read, found.device_peak_bytes):
        name = row.name.replace("_", " ").removesuffix(" bytes")
        add(name, human_bytes(row.predicted), human_bytes(row.measured), row.ratio)
    reporter.show(table)
    for label, rate in (("in all", speed), ("in decode", decode)):
        if judged and rate.error is not None:
            lies = against_words(rate.predicted, rate.measured)
            reporter.show(Text(f"tokens/s {label}: {lies}"))
    reporter.show(Text(f"not accounted for: {human_time(found.unaccounted_ns)} of compute's time"))
    totals = trace.totals
    if found.embedding_bytes:
        rows = human_bytes(found.embedding_bytes)
        reporter.show(Text(f"rows of the embedding: {rows} read beside what was copied"))
    if totals.wasted_prefetch_bytes:
        vain, read = human_bytes(totals.wasted_prefetch_bytes), human_bytes(totals.bytes_read)
        reporter.show(Text(f"copied ahead in vain: {vain} of {read}"))
    if totals.served:
        reporter.show(Text(served_words(totals)))
    for note in found.notes:
        reporter.show(Text(note))
    if not within:
        off = "unknown" if speed.error is None else f"{100 * abs(speed.error):.1f}%"
        said = f"off by {off}, more than {100 * (max_error or 0):g}%"
        reporter.note(
            f"moeplan: tokens/s is {said}, {against_words(speed.predicted, speed.measured)}"
        )
    reporter.result({**plain(found), "max_error": max_error, "within": within if judged else None})
    return 0 if within else 1
