"""What each command does: ``look`` at documents, and the table of all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from moeplan.commands import look

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


app.command("show")(look.show)
app.command("schema")(look.schema)
