"""What each command does, one file a kind, and the table of them.

``make`` and ``measure`` make documents, ``use`` carries a plan out, ``look`` shows what is there,
``versus`` and ``sweep`` compare, ``serve`` and ``token`` are the service's; ``common`` has options
and summaries that they share, ``inputs`` what they read.
"""

from __future__ import annotations

from typing import Annotated

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


app.command("synth")(make.synth)
app.command("pack")(make.pack)
app.command("profile")(measure.profile)
app.command("plan")(make.plan)
app.command("check")(use.check)
app.command("run")(use.run)
app.command("verify")(use.verify)
app.command("compare")(versus.compare)
app.command("sweep")(sweep.sweep)
app.command("explain")(explain.explain)
app.command("export")(export.export)
app.command("place")(place.place)
app.command("predictors")(predictors.predictors)
app.command("offload")(offload.offload)
app.command("parallel")(parallel.parallel)
app.command("simulate")(simulate.simulate)
app.command("show")(look.show)
app.command("catalog")(catalog.catalog)
app.command("serve")(serve.serve)
app.add_typer(token.app, name="token")
app.command("schema")(look.schema)
