"""``Dockerfile`` and ``compose.yaml``: what they name is there, and what they start serves.

There need be no Docker here: the files are read, and the very command of the image is started with
its environment against a real PostgreSQL; only addresses and the places of programs are others.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
WAIT_SECONDS = 300


def instructions() -> list[tuple[str, str]]:
    """(name, arguments) of the Dockerfile's, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    split = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return [(name, re.sub(r"\s+", " ", rest)) for name, rest in split]


FILE = instructions()
BUILD, IMAGE = (
    FILE[start:end]
    for starts in [[i for i, (name, _) in enumerate(FILE) if name == "FROM"]]
    for start, end in zip(starts, [*starts[1:], None], strict=True)
)


def of(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for found, rest in stage if found == name]


def only(stage: list[tuple[str, str]], name: str) -> str:
    (rest,) = of(stage, name)
    return rest


ENTRYPOINT: list[str] = json.loads(only(IMAGE, "ENTRYPOINT"))
COMMAND: list[str] = json.loads(only(IMAGE, "CMD"))
HEALTH: list[str] = json.loads(only(IMAGE, "HEALTHCHECK").partition(" CMD ")[2])
ENV = dict(pair.split("=", 1) for pair in only(IMAGE, "ENV").split())


def test_the_build_copies_what_the_install_needs() -> None:
    sources = [part for rest in of(BUILD, "COPY") for part in rest.split()[:-1]]
    packages = [
        one.rstrip("*") for one in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    ]
    assert set(sources) == {*packages, "pyproject.toml", "constraints.txt", "README.md"}
    assert PROJECT["project"]["readme"] in sources
    assert all((ROOT / one).exists() for one in sources)
    # all else is kept from the build
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    assert {one.removeprefix("!") for one in rest if one.startswith("!")} == set(sources)


def test_the_image_is_slim_and_has_what_serving_needs() -> None:
    bases = [of(stage, "FROM")[0].split()[0] for stage in (BUILD, IMAGE)]
    assert bases[0] == bases[1]
    version = re.fullmatch(r"python:(\d+\.\d+)-slim-bookworm", bases[0])
    assert version is not None
    assert PROJECT["project"]["requires-python"] == f">={version[1]}"
    installs = [rest for rest in of(BUILD, "RUN") if "pip install" in rest]
    assert [re.findall(r"'\.\[(.*?)\]'", rest) for rest in installs] == [["service"]]
    assert "service" in PROJECT["project"]["optional-dependencies"]
    assert "-c constraints.txt" in installs[0]
    # of the first stage nothing but the environment is kept, and it is found first
    (kept,) = of(IMAGE, "COPY")
    venv = kept.split()[-1]
    assert kept == f"--from=build {venv} {venv}"
    assert f"python -m venv {venv}" in of(BUILD, "RUN")
    assert ENV["PATH"].split(":")[0] == f"{venv}/bin"
    assert ENTRYPOINT[0] in PROJECT["project"]["scripts"]


def test_nothing_runs_as_root_or_writes_into_its_image() -> None:
    user, group = only(IMAGE, "USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"useradd --uid {user} " in only(IMAGE, "RUN")
    order = [name for name, _ in IMAGE]
    assert order.index("USER") > order.index("RUN")
    for service in COMPOSE["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
    assert COMPOSE["services"]["db"]["user"] == "postgres"
    # where the image writes there is room in memory, or a volume
    writable = {one.partition(":")[0] for one in COMPOSE["services"]["moeplan"]["tmpfs"]}
    assert {only(IMAGE, "WORKDIR"), "/tmp"} <= writable


def test_ports_and_names_are_the_same_everywhere() -> None:
    port = COMMAND[COMMAND.index("--port") + 1]
    assert only(IMAGE, "EXPOSE") == port
    assert f":{port}/readyz" in HEALTH[-1]
    service, database = COMPOSE["services"]["moeplan"], COMPOSE["services"]["db"]
    # published for this machine alone
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert "ports" not in database
    assert service["depends_on"] == {"db": {"condition": "service_healthy"}}
    made, at = database["environment"], service["environment"]["MOEPLAN_STORE"]
    password = "${POSTGRES_PASSWORD:?set it in .env}"
    assert at == f"postgresql://{made['POSTGRES_USER']}:{password}@db:5432/{made['POSTGRES_DB']}"
    assert made["POSTGRES_PASSWORD"] == password
    assert f"--username={made['POSTGRES_USER']}" in database["healthcheck"]["test"]
    for one in COMPOSE["services"].values():
        assert set(one["networks"]) <= set(COMPOSE["networks"])
    assert set(service["networks"]) & set(database["networks"]) == {"store"}
    assert COMPOSE["networks"]["store"] == {"internal": True}
    (volume,) = database["volumes"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]


def readiness(port: str, path: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_the_images_command_serves_with_composes_environment(
    store_url: str, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    published = COMMAND[COMMAND.index("--port") + 1]
    bin_folder = str(Path(sys.executable).parent)
    wanted = COMPOSE["services"]["moeplan"]["environment"]
    assert set(wanted) == {"MOEPLAN_STORE"}
    env = {**ENV, "MOEPLAN_STORE": store_url, "PATH": f"{bin_folder}:{ENV['PATH']}"}
    home = tmp_path / "data"
    home.mkdir()

    def start(argv: list[str]) -> subprocess.Popen[str]:
        argv = [
            port if one == published else one.replace(f":{published}/", f":{port}/") for one in argv
        ]
        program = str(Path(bin_folder) / argv[0])
        return subprocess.Popen(
            [program, *argv[1:]], cwd=home, env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    # open to others, it does not serve before there is a token
    refused = start([*ENTRYPOINT, *COMMAND])
    assert "make one with 'moeplan token create'" in refused.communicate(timeout=WAIT_SECONDS)[1]
    assert refused.returncode == 2
    (line,) = re.findall(
        r"docker compose run --rm moeplan (.*)", (ROOT / "compose.yaml").read_text()
    )
    made = start([*ENTRYPOINT, *line.split()])
    token = made.communicate(timeout=WAIT_SECONDS)[0].strip()
    assert made.returncode == 0
    server = start([*ENTRYPOINT, *COMMAND])
    try:
        until = time.monotonic() + WAIT_SECONDS
        while (health := start(HEALTH)).wait(WAIT_SECONDS) != 0:
            health.communicate()
            assert server.poll() is None
            assert time.monotonic() < until
        health.communicate()
        assert [readiness(port, "/v1/plans"), readiness(port, "/v1/plans", token)] == [401, 200]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=WAIT_SECONDS)
    assert server.returncode in (0, -signal.SIGTERM)
    # nothing was written but to the database
    assert os.listdir(home) == []
