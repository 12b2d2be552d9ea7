"""The command ``serve``: the planner as a service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from moeplan.commands.common import Json, reporter_of
from moeplan.options import parse_size
from solvers.errors import OptionError

if TYPE_CHECKING:
    from moeplan.service.store import Store

__all__ = ["StoreUrl", "open_store", "serve", "store_url"]

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="sqlite:///FILE or postgresql://USER@HOST/NAME; MOEPLAN_STORE says it without showing "
        "a password to others (sqlite:///moeplan.db).",
    ),
]


def store_url(given: str | None) -> str:
    """The store that is meant: the option, the environment, or a file in this folder."""
    return given or os.environ.get("MOEPLAN_STORE") or "sqlite:///moeplan.db"


def open_store(given: str | None, *, existing: bool = False) -> Store:
    """The store that is meant, for a command.

    Parameters
    ----------
    given
        What ``--store`` says.
    existing
        It has to be there: what only looks into a store makes none.

    Raises
    ------
    OptionError
        If it cannot be used: then what was asked for is at fault, and nothing has begun.
    StoreFullError
        If its disk is full.
    """
    from moeplan.service.store import Store, StoreError, StoreFullError

    try:
        return Store(store_url(given), existing=existing)
    except StoreFullError:
        raise
    except StoreError as error:
        raise OptionError(f"{error}; --store or MOEPLAN_STORE names another") from error


def serve(
    ctx: typer.Context,
    host: Annotated[
        str,
        typer.Option("--host", help="Address; any but the loopback's asks everybody for a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 takes one that is free.")
    ] = 8000,
    store: StoreUrl = None,
    workers: Annotated[
        int,
        typer.Option("--workers", min=0, max=64, help="Processes that solve; 0: others do it."),
    ] = 1,
    worker_memory: Annotated[
        str | None, typer.Option("--worker-memory", help="Address space of each (8GiB).")
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", min=1, max=100_000, help="Jobs that may wait.")
    ] = 64,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            min=0.5,
            max=3600,
            help="Seconds after which a silent worker's job is taken up.",
        ),
    ] = 30.0,
    attempts: Annotated[
        int, typer.Option("--attempts", min=1, max=1000, help="Workers that may die of one job.")
    ] = 3,
    upload: Annotated[str, typer.Option("--upload", help="The largest upload.")] = "64MiB",
    as_json: Json = False,
) -> None:
    """Serve the planner over HTTP: plans, jobs, comparisons and placements, kept in a store.

    Control-C ends it; jobs that run then are taken up by the next server of this store.
    """
    reporter = reporter_of(ctx)
    if worker_memory is not None and not workers:
        raise OptionError("--worker-memory has no effect with --workers 0")
    memory_bytes = parse_size(worker_memory or "8GiB", "--worker-memory")
    if memory_bytes < 1 << 30:
        raise OptionError(f"--worker-memory {worker_memory}: a worker needs 1GiB at least")
    upload_bytes = parse_size(upload, "--upload")
    from moeplan.service.run import ServeSettings
    from moeplan.service.run import serve as serve_until_ended
    from moeplan.service.worker import WorkerSettings

    settings = ServeSettings(
        host=host,
        port=port,
        workers=workers,
        worker=WorkerSettings(
            store_url=store_url(store),
            lease_seconds=lease,
            most_attempts=attempts,
            memory_bytes=memory_bytes,
        ),
        most_queued=queue,
        upload_bytes=upload_bytes,
    )

    def ready(url: str) -> None:
        reporter.show(Text(f"moeplan serves at {url}; its API is told at {url}/openapi.json"))
        reporter.result({"url": url, "workers": workers})

    serve_until_ended(settings, open_store(store), ready)
