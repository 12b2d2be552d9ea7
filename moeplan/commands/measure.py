"""The command ``profile``: measure a machine and a model, or one of them, or correct by a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import Json, plain, reporter_of
from moeplan.commands.profiled import doubts, measured_table, spreads
from moeplan.options import (
    check_new_folder,
    check_outputs,
    optional_pace,
    parse_size,
    read_prompts,
)
from moeplan.output import Reporter, human_bytes, human_time
from planner.documents import (
    Figure,
    Machine,
    ProfileIndex,
    Trace,
    document_hash,
    load_document,
    write_document,
)
from planner.profiles import Profile, load_profile
from solvers.counting import counted
from solvers.errors import OptionError

if TYPE_CHECKING:
    from profiler.refine import Refined

__all__ = ["profile"]

_DEVICES = ("cpu", "cuda")


def profile(
    ctx: typer.Context,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder for the profile (or its routing); FILE.json of --hardware-only."
        ),
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Argument(metavar="CHECKPOINT", help="A checkpoint; a PROFILE_DIR with --refine."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Device budget: 600MiB, 1.5GB or bytes.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="What computes: cpu (default) or cuda.")
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option("--host-memory", help="With cuda: keep the weights in so much host memory."),
    ] = None,
    disk_bandwidth: Annotated[
        str | None,
        typer.Option("--disk-bandwidth", help="Slow the disk down to this, as in 1GB/s."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="A store that was packed from CHECKPOINT.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="Prompts to record routing on, .txt or .jsonl (bundled ones)."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of what is random (0)."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", help="Threads that compute, on a CPU (as many as measure best)."),
    ] = None,
    refine: Annotated[
        Path | None,
        typer.Option("--refine", help="Correct the profile PROFILE_DIR by a run's trace."),
    ] = None,
    hardware_only: Annotated[
        bool,
        typer.Option(
            "--hardware-only", help="Measure the machine alone, for plan --model --hardware FILE."
        ),
    ] = False,
    routing_only: Annotated[
        bool,
        typer.Option("--routing-only", help="Record routing alone, for plan and place --routing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure this machine with this checkpoint, and record which experts its tokens choose."""
    reporter = reporter_of(ctx)
    given = {
        "CHECKPOINT": checkpoint,
        "--memory": memory,
        "--device": device,
        "--host-memory": host_memory,
        "--disk-bandwidth": disk_bandwidth,
        "--store": store,
        "--prompts": prompts,
        "--seed": seed,
        "--threads": threads,
    }
    modes = {
        "--refine": refine is not None,
        "--hardware-only": hardware_only,
        "--routing-only": routing_only,
    }
    chosen = [option for option, wanted in modes.items() if wanted]
    if len(chosen) > 1:
        raise OptionError(f"{chosen[0]} and {chosen[1]} are different commands: give one of them")
    if device is not None and device not in _DEVICES:
        raise OptionError(f"--device {device!r} is unknown; choose cpu or cuda")
    if hardware_only:
        _check_unused("--hardware-only", given, ("--device",))
        _hardware_only(reporter, out, device or "cpu")
        return
    if checkpoint is None:
        what = "PROFILE_DIR, which --refine corrects," if refine else "CHECKPOINT"
        raise OptionError(f"{what} is missing")
    if refine is not None:
        _check_unused("--refine", given, ("CHECKPOINT",))
        _refine(reporter, checkpoint, refine, out)
        return
    if routing_only:
        used = ("CHECKPOINT", "--memory", "--device", "--store", "--prompts", "--seed")
        _check_unused("--routing-only", given, used)
    if memory is None:
        raise OptionError("--memory is missing: give the device budget, as in 600MiB")
    memory_bytes = parse_size(memory, "--memory")
    pace = optional_pace(disk_bandwidth, "--disk-bandwidth")
    if host_memory is not None and device != "cuda":
        raise OptionError(
            "--host-memory keeps weights for a GPU: it needs --device cuda, or leave it out"
        )
    held = None if host_memory is None else parse_size(host_memory, "--host-memory")
    texts = read_prompts(prompts) if prompts is not None else None
    check_new_folder(out, "--out", [checkpoint, store, prompts])
    shared: dict[str, Any] = {
        "memory_bytes": memory_bytes,
        "device": device or "cpu",
        "store": store,
        "prompts": texts,
        "seed": seed or 0,
    }
    if routing_only:
        _routing_only(reporter, checkpoint, out, shared)
        return
    from profiler import profile_checkpoint

    busy = os.getloadavg()[0]
    with reporter.steps("profile") as progress:
        index = profile_checkpoint(
            checkpoint,
            out,
            host_memory_bytes=held,
            paced_bytes_per_second=pace,
            threads=threads,
            progress=progress,
            **shared,
        )
    _say_profile(reporter, load_profile(out), index, busy)


def _check_unused(mode: str, given: Mapping[str, object], used: tuple[str, ...]) -> None:
    for option, value in given.items():
        if value is not None and option not in used:
            raise OptionError(f"{option} has no effect with {mode}: leave one of them out")


def _say_profile(reporter: Reporter, made: Profile, index: ProfileIndex, busy: float) -> None:
    reporter.show(
        Text(
            f"{made.folder}: {made.model.name}, {human_bytes(made.model.total_bytes)} of weights, "
            f"on {made.hardware.processor}; routing of {counted(made.routing.tokens, 'token')} in "
            f"{counted(made.routing.sequences, 'sequence')}"
        )
    )
    reporter.show(measured_table(made))
    from executor.allocator import usable_cores

    # the notes of what has just been measured: that others had the cores
    reasons = [*doubts(made, busy, usable_cores()), *index.notes]
    _say_doubts(reporter, reasons)
    reporter.result(
        {
            "profile": str(made.folder),
            "hash": document_hash(index),
            "weights_bytes": made.model.total_bytes,
            "channels": plain(made.hardware.channels),
            "routing_tokens": made.routing.tokens,
            "spread": spreads(made),
            "threads": plain(made.costs.threads),
            **plain(index),
            "doubts": reasons,
        }
    )


def _say_doubts(reporter: Reporter, reasons: Sequence[str]) -> None:
    if reasons:
        reporter.note(
            f"moeplan: numbers may be off: {'; '.join(reasons)}; other programs were busy, or the "
            "machine is not steady: measure again when it is quiet"
        )


# --- the machine alone ---------------------------------------------------------------------------


def _hardware_only(reporter: Reporter, out: Path, device: str) -> None:
    if out.suffix != ".json":
        raise OptionError(f"--out {out}: --hardware-only writes one document: name a FILE.json")
    check_outputs({"--out": out}, made=Machine.kind)
    from profiler.others import moment, taken, taken_words
    from profiler.speeds import measure_machine

    before = moment()
    with reporter.steps("profile") as progress:
        machine = measure_machine(out.absolute().parent, device=device, progress=progress)
    busy = taken_words(taken(before, moment()), "the machine")
    write_document(machine, out)
    table = Table(box=None, pad_edge=False)
    table.add_column("measured", no_wrap=True)
    table.add_column("", justify="right")
    table.add_column("spread", justify="right")

    def add(name: str, figure: Figure | None, scale: float, unit: str) -> None:
        if figure is not None:
            share = (figure.spread or 0.0) / figure.value
            table.add_row(name, f"{figure.value / scale:,.3g} {unit}", f"± {share:.0%}")

    for dtype, figure in machine.compute_flops_per_second.items():
        add(f"products in {dtype}", figure, 1e12, "TFLOP/s")
    add("memory", machine.device_bandwidth_bytes_per_second, 1e9, "GB/s")
    add("link", machine.link_bytes_per_second, 1e9, "GB/s")
    add("reads from the drive", machine.disk_bytes_per_second, 1e9, "GB/s")
    reporter.show(Text(f"{machine.name}: {machine.processor}"))
    reporter.show(table)
    reporter.show(Text(f"For 'moeplan plan --model CONFIG --hardware {out} --routing STATS'"))
    reasons = [] if busy is None else [busy]
    _say_doubts(reporter, reasons)
    told = {"machine": str(out), "hash": document_hash(machine), "doubts": reasons}
    reporter.result({**told, **plain(machine)})


# --- routing alone -------------------------------------------------------------------------------


def _routing_only(reporter: Reporter, checkpoint: Path, out: Path, shared: dict[str, Any]) -> None:
    from profiler.folder import record_checkpoint

    with reporter.steps("profile") as progress:
        trace = record_checkpoint(checkpoint, out, progress=progress, **shared)
    file = out / "routing.json"
    reporter.show(
        Text(
            f"{file}: routing of {counted(trace.tokens, 'token')} in "
            f"{counted(trace.sequences, 'sequence')}, for 'moeplan plan --routing', "
            "'place --routing' and 'show'"
        )
    )
    reporter.result({"routing": str(file), "hash": document_hash(trace), **plain(trace)})


# --- correcting by a run -------------------------------------------------------------------------


def _refine(reporter: Reporter, folder: Path, trace_file: Path, out: Path) -> None:
    from profiler.refine import refine
    from profiler.written import check_out, write_refined

    loaded = load_profile(folder)
    check_new_folder(out, "--out", [folder, trace_file])
    check_out(out)
    found = refine(loaded, load_document(Trace, trace_file))
    index = write_refined(loaded, found, out)
    reporter.show(_steps_table(found))
    reporter.show(
        Text(
            "Ratios are measured / predicted, with the routing and the waits of the run as they "
            "were. 'after' has seen what it is held against; 'unseen' was corrected by every other "
            "operation and held against the rest."
        )
    )
    reporter.show(Text(f"The corrected profile is in {out}; plan from it anew"))
    reporter.result(
        {
            "profile": str(out),
            "hash": document_hash(index),
            "refined_from": str(trace_file),
            "drift": found.drift,
            "steps": [
                {**plain(step), "before_ratio": step.before_ratio, "after_ratio": step.after_ratio}
                for step in found.steps
            ],
            **plain(index),
        }
    )


def _steps_table(found: Refined) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("corrected", no_wrap=True)
    for heading in ("events", "measured", "before", "after", "unseen"):
        table.add_column(heading, justify="right")
    for step in found.steps:
        unseen = "–" if step.held_out_ratio is None else f"{step.held_out_ratio:.2f}"
        table.add_row(
            step.kind.replace("_", " "),
            f"{step.events:,}",
            human_time(step.measured_ns),
            f"{step.before_ratio:.2f}",
            f"{step.after_ratio:.2f}",
            unseen,
        )
    return table
