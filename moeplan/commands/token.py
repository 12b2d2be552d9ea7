"""The commands ``token create``, ``token list`` and ``token revoke``."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from moeplan.commands.common import Json, plain, reporter_of
from moeplan.commands.serve import StoreUrl, open_store
from planner.documents import printable
from solvers.errors import OptionError

__all__ = ["app"]

app = typer.Typer(
    help="API tokens of a service: made, listed, revoked.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)

_MOST_NAME = 100


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, or what for.")],
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it: this once, since only its hash is kept."""
    if not name.strip() or len(name) > _MOST_NAME or not printable(name):
        raise OptionError(f"NAME {name[:40]!r}: give 1 to {_MOST_NAME} characters that show")
    reporter = reporter_of(ctx)
    with closing(open_store(store)) as kept:
        token, text = kept.tokens.create(name.strip())
    reporter.show_text(text)
    reporter.note(f"moeplan: keep it: it is not shown again ('moeplan token revoke {token.id}')")
    reporter.result({**plain(token), "token": text})


@app.command("list")
def list_tokens(ctx: typer.Context, store: StoreUrl = None, as_json: Json = False) -> None:
    """List all tokens, without their secrets."""
    reporter = reporter_of(ctx)
    with closing(open_store(store, existing=True)) as kept:
        found = kept.tokens.listed()
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "name", "made", "revoked"):
        table.add_column(heading)
    for token in found:
        table.add_row(token.id, Text(token.name), _day(token.created_at), _day(token.revoked_at))
    reporter.show(table)
    reporter.result({"tokens": [plain(token) for token in found]})


@app.command("revoke")
def revoke(
    ctx: typer.Context,
    identity: Annotated[str, typer.Argument(metavar="ID", help="As 'token list' shows it.")],
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Revoke a token: from now on it opens nothing."""
    reporter = reporter_of(ctx)
    with closing(open_store(store, existing=True)) as kept:
        revoked = kept.tokens.revoke(identity)
    if not revoked:
        raise OptionError(
            f"there is no token {identity[:40]!r} that could be revoked; 'moeplan token list' tells"
        )
    reporter.show(Text(f"{identity} is revoked"))
    reporter.result({"id": identity, "revoked": True})


def _day(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
