"""What each command does, one file a kind, and the table of them.

``make`` and ``measure`` make documents, ``use`` carries a plan out, ``look`` shows what is there,
``versus`` and ``sweep`` compare, ``serve`` and ``token`` are the service's; ``common`` has options
and summaries that they share, ``inputs`` what they read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from moeplan.commands import (
    catalog,
    explain,
    export,
    look,
    make,
    measure,
    offload,
    parallel,
    place,
    predictors,
    serve,
    simulate,
    sweep,
    token,
    use,
    versus,
)

__all__ = ["app"]

app = typer.Typer(
    name="moeplan",
    help="Plan and run Mixture-of-Experts language models that do not fit in fast memory.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("moeplan"))
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Plan and run Mixture-of-Experts language models that do not fit in fast memory."""


def _flowing(function: Callable[..., Any]) -> str:
    """Its docstring with each paragraph on one line: what is shown has a width of its own."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _add(name: str, function: Callable[..., Any]) -> None:
    app.command(name, help=_flowing(function))(function)


_add("synth", make.synth)
_add("pack", make.pack)
_add("profile", measure.profile)
_add("plan", make.plan)
_add("check", use.check)
_add("run", use.run)
_add("verify", use.verify)
_add("compare", versus.compare)
_add("sweep", sweep.sweep)
_add("explain", explain.explain)
_add("export", export.export)
_add("place", place.place)
_add("predictors", predictors.predictors)
_add("offload", offload.offload)
_add("parallel", parallel.parallel)
_add("simulate", simulate.simulate)
_add("show", look.show)
_add("catalog", catalog.catalog)
_add("serve", serve.serve)
app.add_typer(token.app, name="token")
_add("schema", look.schema)
