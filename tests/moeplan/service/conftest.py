"""A store on each database: SQLite in a folder, and a PostgreSQL cluster of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from moeplan.service.store import Store


def postgres_bin() -> Path | None:
    """Where Debian puts the newest PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A private cluster on the loopback; yields a URL without a database's name.

    PostgreSQL refuses to run as root, so there it runs as ``nobody``.
    """
    programs = postgres_bin()
    if programs is None:
        pytest.skip("PostgreSQL is not installed here (Debian: apt-get install postgresql)")
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    data, port = folder / "data", free_port()
    common: dict[str, Any] = {"check": True, "cwd": folder, "capture_output": True, **user}
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "moeplan", "-A", "trust", "-E", "UTF8", "-N"],
        **common,
    )
    options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories='' -c fsync=off"
    control = [programs / "pg_ctl", "-D", data, "-l", folder / "log"]
    subprocess.run([*control, "-w", "-o", options, "start"], **common)
    try:
        yield f"postgresql://moeplan@127.0.0.1:{port}"
    finally:
        subprocess.run([*control, "-w", "-m", "immediate", "stop"], **common)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("postgres")
    for parent in (folder.parent, folder.parent.parent):
        # the folders of a test run are for its user alone; the server's user must pass through
        parent.chmod(parent.stat().st_mode | 0o011)
    with cluster(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'moeplan.db'}"
        return
    server = request.getfixturevalue("postgres")
    name = f"test_{os.urandom(6).hex()}"
    admin = sa.create_engine(
        sa.make_url(f"{server}/postgres").set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
    )
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield f"{server}/{name}"
    with admin.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store(store_url)
    yield opened
    opened.close()
