"""The command ``offload``: what each device of a placement keeps, and what it copies when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import (
    Json,
    NewTokens,
    ProfileFolder,
    PromptTokens,
    Requests,
    Seed,
    SolverName,
    TimeLimit,
    plain,
    reporter_of,
    search_seconds,
)
from moeplan.commands.look import kind_of
from moeplan.options import check_outputs, parse_size, split_names
from moeplan.output import Reporter, SearchSteps, human_bytes, human_time
from planner.documents import (
    ExpertPlacement,
    Offload,
    Workload,
    document_hash,
    load_document,
    write_document,
)
from planner.profiles import load_profile
from solvers.counting import counted
from solvers.errors import InputError, OptionError
from solvers.registry import BACK_ENDS

__all__ = ["check_placed", "is_placement", "offload", "offload_summary"]


def offload(
    ctx: typer.Context,
    profile: ProfileFolder,
    placement: Annotated[
        Path, typer.Option("--placement", help="A file of 'moeplan place', for this model.")
    ],
    memory: Annotated[str, typer.Option("--memory", help="Memory for experts on each device.")],
    out: Annotated[
        Path, typer.Option("--out", help="Write the placement here, with its devices' plans.")
    ],
    requests: Requests = 64,
    prompt_tokens: PromptTokens = 64,
    new_tokens: NewTokens = 16,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, help="Sequences that a device runs at a time (all its own)."
        ),
    ] = None,
    solver: SolverName = "cpsat",
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Choose which experts stay on each device of a placement and which are copied ahead.

    'moeplan parallel' carries it out. Costs are the profile's, alike on every device.
    """
    from planner.offload import make_offload
    from planner.offload_check import check_placement_plan

    reporter = reporter_of(ctx)
    (solver,) = split_names(solver, tuple(BACK_ENDS), "--solver", most=1)
    check_outputs({"--out": out}, [profile, placement], made="placement")
    limit = search_seconds((solver,), time_limit)
    memory_bytes = parse_size(memory, "--memory")
    found, document = load_profile(profile), load_document(ExpertPlacement, placement)
    with reporter.steps("offload") as steps:
        made = make_offload(
            found,
            document,
            Workload(requests, prompt_tokens, new_tokens),
            memory_bytes=memory_bytes,
            batch_size=batch_size,
            solver=solver,
            time_limit_seconds=limit,
            seed=seed,
            progress=SearchSteps(steps, limit, "time used, of that for all devices"),
        )
        steps(0, 0, "checking, by code that shares nothing with the search")
        faults = check_placement_plan(made, found)
    if faults or made.offload is None:
        # its maker and the checker disagree: a bug, which must not leave as a plan
        raise RuntimeError(f"the checker refuses the new plan: {faults}")
    write_document(made, out)
    reporter.show(_table(made, made.offload))
    slowest = max(one.predicted.wall_ns for one in made.offload.devices)
    reporter.show(
        Text(
            f"The slowest device takes {human_time(slowest)} for "
            f"{counted(requests, 'sequence')}, without exchanges and waits for others' copies. "
            "What each device does was chosen on other "
            f"sequences than these times are of.{_ahead(made.offload)} The placement with its plan "
            f"is in {out}"
        )
    )
    reporter.result(
        {**offload_summary(made, made.offload), "hash": document_hash(made), "out": str(out)}
    )


def _ahead(offload: Offload) -> str:
    """Nothing where the link is never ahead of the rate that lasts."""
    if all(one.predicted.credit_ns is None for one in offload.devices):
        return ""
    return " What the link is ahead after a rest counts, as if each device had one for itself."


def offload_summary(placement: ExpertPlacement, offload: Offload) -> dict[str, Any]:
    """What scripts ask of an offload plan: everything but the lists of experts."""
    body = {name: value for name, value in plain(offload).items() if name != "devices"}
    body["workload"] = {k: v for k, v in body["workload"].items() if v is not None}
    return {
        **body,
        "devices": [
            {
                **{name: value for name, value in plain(policy).items() if name != "layers"},
                "experts": sum(map(len, placement.held(device))),
                "resident_experts": sum(len(layer.resident) for layer in policy.layers),
                "prefetched_experts": sum(len(layer.prefetch) for layer in policy.layers),
            }
            for device, policy in enumerate(offload.devices)
        ],
    }


def _table(placement: ExpertPlacement, offload: Offload) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("device", "experts", "stay", "ahead", "slots"):
        table.add_column(heading, justify="right")
    table.add_column("by")
    for heading in ("predicted", "waits", "copied", "best rule"):
        table.add_column(heading, justify="right")
    for device, policy in enumerate(offload.devices):
        taken = policy.predicted
        rival = min(policy.chosen_over.items(), key=lambda one: one[1], default=None)
        table.add_row(
            str(device),
            str(sum(map(len, placement.held(device)))),
            str(sum(len(layer.resident) for layer in policy.layers)),
            str(sum(len(layer.prefetch) for layer in policy.layers)),
            str(policy.slots),
            policy.solver,
            human_time(taken.wall_ns),
            human_time(taken.wait_ns),
            human_bytes(taken.copied_bytes),
            "–" if rival is None else f"{human_time(rival[1])} ({rival[0]})",
        )
    return table


def is_placement(path: Path) -> bool:
    """Whether a file holds a placement; what cannot be read is for others to refuse."""
    try:
        return bool(kind_of(path) == ExpertPlacement.kind)
    except InputError:
        return False


def check_placed(reporter: Reporter, path: Path, profile: Path | None) -> int:
    """``check`` of a placement: its offload plan, with ``profile`` memory and predictions, too.

    Raises
    ------
    OptionError
        If a profile is given and there is no plan to hold it against.
    """
    from planner.offload_check import check_placement_plan

    placement = load_document(ExpertPlacement, path)
    if placement.offload is None and profile is not None:
        raise OptionError(f"--profile has no effect: {path} is a placement without an offload plan")
    loaded = None if profile is None else load_profile(profile)
    violations = check_placement_plan(placement, loaded)
    for violation in violations:
        reporter.show(Text(f"{violation.reason}: {violation.where}: {violation.message}"))
    against = "by itself" if profile is None else f"against {profile}"
    missing = None
    if placement.offload is not None and profile is None:
        missing = "no profile was given"
        reporter.note(
            "moeplan: memory and prediction were not recomputed: give the profile with --profile"
        )
    if not violations:
        reporter.show(Text(f"{path}: checked {against}, no violation"))
    reporter.result(
        {
            "placement": str(path),
            "profile": None if profile is None else str(profile),
            "not_recomputed": missing,
            "violations": [violation._asdict() for violation in violations],
        }
    )
    return 1 if violations else 0
