"""A store on each database (PostgreSQL in a cluster of its own), profiles, servers as processes."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.util
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from moeplan.service.app import AppSettings, create_app
from moeplan.service.guard import GuardSettings
from moeplan.service.store import Store
from planner.documents import document_hash, write_document
from planner.objectives import OBJECTIVES
from planner.profiles import Profile
from planner.routing import trace_bytes
from solvers.registry import names
from tests.several_forms import several

ROOT = Path(__file__).resolve().parents[3]
MEMORY_BYTES = 1_500_000
"""Enough for ``plan_request`` with ``profile_folder``."""


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
def postgres() -> Iterator[str]:
    # pytest's own folders are for its user alone, and the server runs as another
    folder = tempfile.TemporaryDirectory(prefix="moeplan-postgres-")
    with folder as name, cluster(Path(name)) as url:
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


# --- a profile as a folder, fabricated -----------------------------------------------------------


def loaded(path: str) -> ModuleType:
    """A file of this repository that is in no package."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(scope="session")
def benchmark() -> ModuleType:
    """``benchmarks/service.py``: it starts servers, and kills them."""
    return loaded("benchmarks/service.py")


def write_profile(profile: Profile, folder: Path) -> Path:
    """Write a profile's five documents and its arrays, the hashes made to fit."""
    data = trace_bytes(profile.arrays)
    digest = hashlib.sha256(data).hexdigest()
    model = document_hash(profile.model)
    routing = dataclasses.replace(profile.routing, arrays_hash=digest, model_hash=model)
    costs = dataclasses.replace(profile.costs, model_hash=model)
    index = dataclasses.replace(
        profile.index,
        model_hash=model,
        costs_hash=document_hash(costs),
        routing_hash=document_hash(routing),
    )
    folder.mkdir()
    (folder / "routing.npz").write_bytes(data)
    for name, document in (
        ("profile", index),
        ("hardware", profile.hardware),
        ("model", profile.model),
        ("costs", costs),
        ("routing", routing),
    ):
        write_document(document, folder / f"{name}.json")
    return folder


@pytest.fixture(scope="session")
def profile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of four experts, 12 recorded sequences; read only."""
    return write_profile(small_profile(), tmp_path_factory.mktemp("profiles") / "small")


def small_profile() -> Profile:
    made: Profile = loaded("tests/planner/conftest.py").make_profile(
        layers=2, experts=4, sequences=12, prompt=4, new=4
    )
    return made


@pytest.fixture(scope="session")
def several_forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a store that has experts in int8 and int4, too."""
    return write_profile(several(small_profile()), tmp_path_factory.mktemp("profiles") / "forms")


@pytest.fixture(scope="session")
def upload(profile_folder: Path) -> dict[str, Any]:
    """The body that uploads it."""
    parts = ("profile", "hardware", "model", "costs", "routing")
    body: dict[str, Any] = {
        part: json.loads((profile_folder / f"{part}.json").read_text()) for part in parts
    }
    arrays = (profile_folder / "routing.npz").read_bytes()
    return {**body, "arrays_base64": base64.b64encode(arrays).decode()}


@pytest.fixture(scope="session")
def plan_request() -> Callable[..., dict[str, Any]]:
    """Makes the body that asks for a plan, by a rule that takes a moment."""

    def made(profile: str, /, **changed: Any) -> dict[str, Any]:
        return {
            "profile": profile,
            "memory_bytes": MEMORY_BYTES,
            "workload": {"requests": 4, "prompt_tokens": 16, "new_tokens": 4},
            "solver": "lru",
            **changed,
        }

    return made


@pytest.fixture(scope="session")
def long_comparison() -> Callable[[str], dict[str, Any]]:
    """Makes the body of a comparison that takes far longer than a test waits: 60 plans."""

    def made(profile: str) -> dict[str, Any]:
        return {
            "profile": profile,
            "memory_bytes": MEMORY_BYTES,
            "workload": {"requests": 4096, "prompt_tokens": 16, "new_tokens": 16},
            "solvers": list(names()),
            "objectives": list(OBJECTIVES),
            "time_limit_seconds": 500.0,
        }

    return made


# --- the application in this process, and servers as processes -----------------------------------


@pytest.fixture
def app_client(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Makes clients of an application without workers; all of one test share a store."""
    opened: list[TestClient] = []
    url = f"sqlite:///{tmp_path / 'app.db'}"

    def made(*, token_required: bool = False, **options: Any) -> TestClient:
        guard = GuardSettings(token_required, 4 << 20, 8 << 20)
        app = create_app(Store(url), AppSettings(guard, **options))
        client = TestClient(app, base_url="http://127.0.0.1:1", raise_server_exceptions=False)
        opened.append(client.__enter__())
        return client

    yield made
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def server(benchmark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with one worker that all tests of a session share."""
    folder = tmp_path_factory.mktemp("server")
    url = f"sqlite:///{folder / 'moeplan.db'}"
    with benchmark.serving(url, folder / "log", "--lease", 5) as running:
        yield running
