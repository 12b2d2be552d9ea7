"""Running the service: a socket, the application under uvicorn, and its workers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from moeplan.service.app import AppSettings, create_app
from moeplan.service.guard import GuardSettings, is_loopback
from moeplan.service.store import Store
from moeplan.service.supervisor import Supervisor
from moeplan.service.worker import WorkerSettings
from solvers.errors import OptionError

__all__ = ["ServeSettings", "serve"]

_SHUTDOWN_SECONDS = 3
"""Open connections (watchers of jobs) are closed after so long."""
_BACKLOG = 512
_SWITCH_SECONDS = 0.0005
"""The loop waits at most so long for a thread that makes an answer (Python's own 5 ms add up)."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to serve, and how.

    Attributes
    ----------
    host, port
        Address; port 0 is any that is free.
    workers
        Worker processes of this server; none where others do the work.
    worker
        How they work.
    most_queued
        Jobs that may wait.
    upload_bytes
        The largest upload.
    """

    host: str
    port: int
    workers: int
    worker: WorkerSettings
    most_queued: int = 64
    upload_bytes: int = 64 << 20


def serve(settings: ServeSettings, store: Store, ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it.

    Parameters
    ----------
    settings
        What to serve.
    store
        Of ``settings.worker.store_url``; closed in the end.
    ready
        Called with the URL once the socket listens.

    Raises
    ------
    OptionError
        If the address cannot be used, or is not the loopback and there is no token yet.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    for noisy in ("alembic", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    open_to_others = not is_loopback(settings.host)
    if open_to_others and not store.tokens.any_valid():
        store.close()
        raise OptionError(
            f"--host {settings.host} can be reached by others, and there is no API token yet: make "
            "one with 'moeplan token create', or serve on 127.0.0.1"
        )
    try:
        listening = _listen(settings.host, settings.port)
    except OptionError:
        store.close()
        raise
    supervisor = Supervisor(settings.worker, settings.workers) if settings.workers else None
    guard = GuardSettings(open_to_others, upload_bytes=settings.upload_bytes)
    app = create_app(store, AppSettings(guard, settings.most_queued), supervisor)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
    )
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    ready(f"http://{host}:{port}")
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Control-C is how a server is meant to end
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        # its own words name the address once more
        code = getattr(error, "errno", None)
        reason = os.strerror(code) if code is not None and code > 0 else str(error)
        raise OptionError(f"--host {host} --port {port} cannot be served on: {reason}") from error
