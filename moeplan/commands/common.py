"""What several commands share: the reporter of a call, and options that mean the same."""

from __future__ import annotations

from typing import Annotated

import typer

from moeplan.output import Reporter

__all__ = ["Json", "reporter_of"]

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]


def reporter_of(ctx: typer.Context) -> Reporter:
    """The reporter that ``main`` made for this call."""
    reporter: Reporter = ctx.obj
    return reporter
