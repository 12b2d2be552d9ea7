"""The command ``export``: a plan in the words of another engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from moeplan.commands.common import Json, PlanFile, ProfileOption, reporter_of
from moeplan.commands.inputs import check_is_there, load_plan
from moeplan.options import check_outputs
from planner.documents import (
    Document,
    ExpertPlacement,
    Hardware,
    ModelSpec,
    Trace,
    document_hash,
    load_document,
    write_atomic,
)
from planner.exports import MADE, TARGETS, Sources
from planner.exports import export as make
from solvers.errors import OptionError, StaleError

__all__ = ["export"]

D = TypeVar("D", bound=Document)


def export(
    ctx: typer.Context,
    plan_file: PlanFile,
    to: Annotated[str, typer.Option("--to", help=f"The engine: {', '.join(TARGETS)}.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write it here, not to stdout.")] = None,
    profile: ProfileOption = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="For perfetto: a run's, beside the prediction.")
    ] = None,
    placement: Annotated[
        Path | None, typer.Option("--placement", help="For vllm: experts on several devices.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a plan for another engine, and say what of it that one cannot do."""
    reporter = reporter_of(ctx)
    target = TARGETS.get(to)
    if target is None:
        raise OptionError(f"--to {to!r} is unknown; choose from {', '.join(TARGETS)}")
    for option, value, needed in (
        ("--profile", profile, "model"),
        ("--trace", trace, "trace"),
        ("--placement", placement, "placement"),
    ):
        if value is not None and needed not in target.reads:
            raise OptionError(f"{option} has no effect on an export to {to}; leave it out")
    plan = load_plan(plan_file)
    folder = profile if profile is not None else Path(plan.locations.profile)
    check_outputs({"--out": out}, [plan_file, folder, trace, placement], made=MADE)
    known = "model" in target.reads
    if known:
        check_is_there(folder)
    made = make(
        to,
        Sources(
            plan,
            _of_the_plan(ModelSpec, folder / "model.json", plan.inputs.model) if known else None,
            _of_the_plan(Hardware, folder / "hardware.json", plan.inputs.hardware)
            if known
            else None,
            load_document(Trace, trace) if trace is not None else None,
            load_document(ExpertPlacement, placement) if placement is not None else None,
        ),
    )
    if out is not None:
        write_atomic(out, made.text.encode())
        reporter.show(Text(f"The plan for {to} is in {out}. What {to} cannot do of it:"))
        for line in made.cannot_express:
            reporter.show(Text(f"- {line}"))
    else:
        reporter.show_text(made.text.removesuffix("\n"))
        if not as_json:
            # stdout may be on its way into a file
            reporter.note(f"moeplan: what {to} cannot do of the plan:")
            for line in made.cannot_express:
                reporter.note(f"- {line}")
    reporter.result(
        {
            "target": to,
            "plan": document_hash(plan),
            "out": str(out) if out is not None else None,
            "export": made.body if out is None else None,
            "cannot_express": list(made.cannot_express),
        }
    )


def _of_the_plan(cls: type[D], path: Path, wanted: str) -> D:
    """A document of the plan's profile.

    Raises
    ------
    DocumentError
        If it cannot be read.
    StaleError
        If the plan was made from another one.
    """
    document = load_document(cls, path)
    if document_hash(document) != wanted:
        raise StaleError(
            cls.kind,
            f"{path}: the plan was made from another {cls.kind} document; give its profile "
            "(--profile DIR), or plan again",
        )
    return document
