"""``sweep`` of many models on many machines: the same documents however it is carried out."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from moeplan import cli
from moeplan.commands import sweep_pairs
from moeplan.service.store import Store
from moeplan.service.store.tables import documents, jobs
from moeplan.service.work import carry_out
from moeplan.sweeps import local, task
from moeplan.sweeps.pairs import Asked, Prepared, pairs, read_models
from moeplan.sweeps.task import Packed, Task, answer, died
from planner.catalogue import named_machine
from planner.documents import Workload
from solvers.errors import UnsupportedError

CONFIG = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
WORK = ("--requests", 2, "--prompt-tokens", 8, "--new-tokens", 2)
WAIT_SECONDS = 300


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Configurations of four and of six experts, and one of a kind that is not known."""
    folder = tmp_path_factory.mktemp("models")
    made = []
    for name, more in (
        ("four", {}),
        ("six", {"num_local_experts": 6}),
        ("other", {"model_type": "dense-thing"}),
    ):
        (folder / name).mkdir()
        made.append(folder / name / "config.json")
        made[-1].write_text(json.dumps({**CONFIG, **more}))
    return made


@pytest.fixture(scope="module")
def argv(models: list[Path]) -> list[str]:
    """Three models, two machines, four budgets: too little, two that work, too much for a T4.

    Searches end with a proof, far below their time: no clock decides which plans are kept.
    """
    return [
        *("sweep", "--models", ",".join(map(str, models[:2])), "--models", str(models[2])),
        *("--hardware", "t4,l4", "--budgets", "1kB,23MB..24MB", "--budgets", "20GiB"),
        *("--steps", "2", "--routing", "uniform", "--time-limit", "60", *map(str, WORK)),
    ]


def contents(url: str) -> tuple[set[Any], set[Any]]:
    """Documents and jobs of a store, without their times."""
    store = Store(url)
    with store.database.read() as connection:
        kept = connection.execute(sa.select(documents.c.kind, documents.c.hash)).all()
        columns = (jobs.c.id, jobs.c.state, jobs.c.result_hash, jobs.c.error)
        ended = connection.execute(sa.select(*columns)).all()
    store.close()
    return set(kept), set(ended)


@pytest.fixture(scope="module")
def swept(
    argv: list[str], command_json: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """The sweep, carried out by two processes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('swept') / 'moeplan.db'}"
    said = command_json(*argv, "--workers", 2, "--store", url)
    return SimpleNamespace(url=url, said=said, contents=contents(url))


def test_each_pair_is_planned_or_refused_with_its_reason(swept: SimpleNamespace) -> None:
    said = swept.said
    # on a T4 20 GiB are too much, and 1 kB nowhere enough: 2 + 3 plans for each known model
    assert {key: said[key] for key in ("pairs", "planned", "found", "refused", "failed")} == {
        "pairs": 24,
        "planned": 10,
        "found": 0,
        "refused": 14,
        "failed": 0,
    }
    titles = [
        row["problem"]["title"] if "problem" in row else row["memory_bytes"] for row in said["rows"]
    ]
    least, most, not_known = (
        "The memory budget is too small",
        "Not a valid value",
        "Not supported",
    )
    works = [23_000_000, 24_000_000]
    assert titles == 2 * [least, *works, most, least, *works, 20 << 30] + 8 * [not_known]
    kinds = [kind for kind, _ in swept.contents[0]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "plan": 10,
        "profile": 4,
        "costs": 4,
        # what the drive holds is the model
        "hardware": 4,
        "model": 2,
        "routing": 2,
        "sweep": 1,
    }


def test_assumptions_are_told_once_with_whose_they_are(
    models: list[Path],
    argv: list[str],
    swept: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = Path(swept.url.removeprefix("sqlite:///")).parent
    # of its own: other tests compare what the first sweep left
    url = f"sqlite:///{shutil.copytree(kept, tmp_path / 'kept') / 'moeplan.db'}"
    t4, l4 = (named_machine(name).assumed for name in ("t4", "l4"))
    assert "it is taken to have 64 GiB of memory (--host-memory)" in t4
    assert cli.main([*argv, "--store", url]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for what in {*t4, *l4}:
        whose = [name for name, own in (("t4", t4), ("l4", l4)) if what in own]
        who = "every machine" if len(whose) == 2 else whose[0]
        assert said.count(f"assumed of {who}: {what}") == 1
    # where memory is given it is not assumed
    few = ["sweep", "--models", str(models[0]), "--hardware", "t4,l4", "--budgets", "23MB"]
    few += ["--routing", "uniform", "--solver", "lru", *map(str, WORK)]
    assert cli.main([*few, "--store", url, "--host-memory", "64GiB"]) == 0
    assert "--host-memory" not in capsys.readouterr().out


def test_figures_are_those_of_the_plan_and_the_record_is_kept(swept: SimpleNamespace) -> None:
    store = Store(swept.url)
    row = next(row for row in swept.said["rows"] if "plan" in row)
    plan = json.loads(store.documents.get("plan", row["plan"]) or b"")
    assert row["tokens_per_second"] == plan["predicted"]["tokens_per_second"]["value"]
    assert row["memory_bytes"] == plan["memory"]["device"]["capacity_bytes"]
    assert row["n_batches"] == plan["policy"]["n_batches"]
    record = json.loads(store.documents.get("sweep", swept.said["sweep"]) or b"")
    assert record["rows"] == swept.said["rows"]
    store.close()


def test_what_is_in_the_store_is_not_planned_again(
    swept: SimpleNamespace,
    argv: list[str],
    command_json: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_to_do(tasks: Iterator[Task], workers: int) -> Iterator[Any]:
        assert list(tasks) == []
        return iter(())

    monkeypatch.setattr(local, "run_local", nothing_to_do)
    again = command_json(*argv, "--store", swept.url)
    assert (again["planned"], again["found"], again["refused"]) == (0, 10, 14)
    assert again["rows"] == swept.said["rows"]
    assert contents(swept.url) == swept.contents


def test_a_server_makes_the_same_document(
    models: list[Path], command_json: Callable[..., Any], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'moeplan.db'}"
    said = command_json(
        *("sweep", "--models", models[0], "--hardware", "l4", "--budgets", "23MB"),
        *("--routing", "zipf:1", "--solver", "lru", *WORK, "--store", url),
    )
    store = Store(url)
    (job,) = store.jobs.listed()
    _, result = carry_out(store, job, lambda _: None)
    store.close()
    assert (job.state, job.result_hash) == ("done", result)
    assert said["rows"][0]["plan"] == result


def test_interrupted_it_keeps_what_is_done(
    swept: SimpleNamespace, argv: list[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'moeplan.db'}"
    process = started(argv, "--store", url, "--workers", "1")
    wait_for_some(url, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    lines = [line for line in said.splitlines() if line.startswith("moeplan: ")]
    assert "pairs done and kept in sqlite:///" in lines[0]
    assert lines[1:] == ["moeplan: interrupted; nothing half-written was left"]
    kept, ended = contents(url)
    assert kept < swept.contents[0]
    assert ended < swept.contents[1]


# Runs the program, but of the work of its sweep only the first plans are handed out: it is never
# over before somebody has ended it, however slow who does that is.
HELD = """
import itertools, time
from moeplan.cli import entry
from moeplan.commands import sweep_pairs
real = sweep_pairs._carrier
def first(tasks):
    yield from itertools.islice(tasks, 7)
    time.sleep(3600)
sweep_pairs._carrier = lambda *asked: lambda tasks: real(*asked)(first(tasks))
entry()
"""


def started(
    argv: list[str], *more: str, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """The sweep, in a process of its own that does not come to its end."""
    return subprocess.Popen(
        [sys.executable, "-c", HELD, *argv, *more],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_some(url: str, process: subprocess.Popen[str]) -> None:
    """Until two plans are in the store."""
    until = time.monotonic() + WAIT_SECONDS
    store = Store(url)
    while store.documents.counts().get("plan", 0) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    store.close()


# --- workers that die ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tasks(models: list[Path]) -> list[Task]:
    """Three that work."""
    budgets = (23_000_000, 24_000_000, 25_000_000)
    asked = Asked(
        read_models((models[0],)), (named_machine("l4"),), budgets, "uniform", None, None,
        Workload(2, 8, 2), "lru", "throughput", None, 0,
    )  # fmt: skip
    made = []
    for pair in pairs(asked):
        assert isinstance(pair.prepared, Prepared)
        made.append(Task(pair.index, pair.prepared.packed, pair.inputs))
    return made


def kill_workers(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Kill the first so many workers, each as soon as it is there."""
    started, left = local._started, iter(range(times))

    def start() -> tuple[SpawnProcess, Connection]:
        process, pipe = started()
        if next(left, None) is not None:
            process.kill()
        return process, pipe

    monkeypatch.setattr(local, "_started", start)


def test_another_worker_does_what_one_died_of(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_workers(monkeypatch, task.ATTEMPTS - 1)
    found = list(local.run_local(iter(tasks), 1))
    assert [task.index for task, _ in found] == [0, 1, 2]
    assert [set(said) for _, said in found] == 3 * [{"plan"}]
    assert multiprocessing.active_children() == []


def test_a_pair_that_kills_all_workers_is_given_up(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_workers(monkeypatch, task.ATTEMPTS)
    ((_, said),) = local.run_local(iter(tasks[:1]), 1)
    assert said["problem"]["detail"].startswith("its worker died 3 times (exit code -9)")


def test_a_failed_pair_ends_the_command_with_1_and_is_tried_again(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    argv = ["sweep", "--models", str(models[0]), "--hardware", "l4", "--budgets", "23MB"]
    argv += ["--routing", "uniform", "--solver", "lru", "--json", *map(str, WORK)]
    argv += ["--store", f"sqlite:///{tmp_path / 'moeplan.db'}"]
    with monkeypatch.context() as patch:
        dying = lambda tasks: ((task, died("exit code -9")) for task in tasks)  # noqa: E731
        patch.setattr(sweep_pairs, "_carrier", lambda *_: dying)
        assert cli.main(argv) == 1
    said, errors = capsys.readouterr()
    assert json.loads(said)["failed"] == 1
    assert json.loads(said)["sweep"] is None
    assert "1 pair failed, to be tried again by the same command" in errors
    assert cli.main(argv) == 0
    assert json.loads(capsys.readouterr().out)["planned"] == 1


def test_a_bug_ends_one_pair_and_says_where(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(task, "plan_of", broken)
    said = json.loads(answer(tasks[0].packed, tasks[0].inputs))["problem"]
    assert said["status"] == 500
    place = rf"{Path(__file__).name}:{broken.__code__.co_firstlineno + 1}"
    assert said["detail"] == f"a bug in moeplan: ZeroDivisionError at {place}: by nought"


def test_a_profile_that_was_changed_on_the_way_is_refused(tasks: list[Task]) -> None:
    packed = tasks[0].packed
    parts = (packed.parts[0], packed.parts[1].replace('"l4"', '"l5"'), *packed.parts[2:])
    changed = Packed(packed.digest, parts, packed.arrays)  # type: ignore[arg-type]
    said = json.loads(answer(changed, tasks[0].inputs))["problem"]
    assert "the hardware document was changed" in said["detail"]


# --- Ray -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_env() -> dict[str, str]:
    """The environment of a cluster and of those that use it."""
    return {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}


@pytest.fixture(scope="module")
def cluster(
    ray_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """A Ray of two cores, started once: its address and its first process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=2", "--num-gpus=0", "--include-dashboard=false"]
    command += [
        "--node-ip-address=127.0.0.1",
        "--disable-usage-stats",
        f"--object-store-memory={128 << 20}",
    ]
    log = tmp_path_factory.mktemp("ray") / "log"
    # the names of its sockets must be short
    folder = tempfile.TemporaryDirectory(prefix="moeplan-ray-", ignore_cleanup_errors=True)
    command.append(f"--temp-dir={folder.name}")
    with log.open("w") as said:
        process = subprocess.Popen(
            command, env=ray_env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + WAIT_SECONDS
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        yield SimpleNamespace(address=f"127.0.0.1:{port}", pid=process.pid)
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
        folder.cleanup()


def kill_ray_worker(pid: int) -> None:
    """Kill the first process of this Ray that carries out a task."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.cmdline()[:1] == ["ray::answer"]:
                    one.kill()
                    return
        time.sleep(0.01)
    pytest.fail("no worker of Ray was seen at work")


def test_killed_on_ray_it_goes_on_and_ends_in_the_same_documents(
    swept: SimpleNamespace,
    argv: list[str],
    cluster: SimpleNamespace,
    ray_env: dict[str, str],
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'moeplan.db'}"
    on_ray = ("--store", url, "--engine", "ray", "--ray-address", cluster.address)
    process = started(argv, *on_ray, env=ray_env)
    kill_ray_worker(cluster.pid)  # which it survives
    wait_for_some(url, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = contents(url)
    assert before[0] < swept.contents[0]
    # on a Ray that starts here
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "moeplan", *argv, "--engine", "ray", "--workers", "2", "--json"],
        env={**env, "HOME": str(tmp_path), "MOEPLAN_STORE": url},
        capture_output=True, text=True, check=True, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert all(line.startswith("sweep: ") for line in done.stderr.splitlines()), done.stderr
    said = json.loads(done.stdout)
    assert said["found"] == sum(kind == "plan" for kind, _ in before[0])
    assert said["planned"] == 10 - said["found"]
    assert said["rows"] == swept.said["rows"]
    assert contents(url) == swept.contents
    # Ray keeps nothing of its own in the user's home
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".db"] == []


# --- what is refused -----------------------------------------------------------------------------

RIGHT = {
    "--models": "four",
    "--hardware": "l4",
    "--budgets": "23MB",
    "--routing": "uniform",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (dict.fromkeys(RIGHT), "give a PROFILE_DIR that 'moeplan profile' made, or --models"),
        ({"--routing": None}, "needs --routing, too (uniform says that nothing is known)"),
        ({"--models": None, "--budgets": None}, "needs --models and --budgets, too"),
        ({"--routing": "zipf:nan"}, "zipf:nan"),
        ({"--routing": "nofile"}, "nofile"),
        ({"--series": "x"}, "--series"),
        ({"--dtype": "float99"}, "--dtype 'float99' is unknown; choose from"),
        ({"--models": " , "}, "--models names nothing"),
        ({"--models": "nowhere/config.json"}, "nowhere/config.json: no such file"),
        ({"--hardware": "l44"}, "nearest are l4"),
        ({"--budgets": "2GiB..1GiB"}, "does not ascend"),
        ({"--budgets": "8G"}, "is ambiguous"),
        ({"--steps": "3"}, "--steps has no effect without a range in --budgets"),
        ({"--memory": "1GiB..2GiB"}, "--memory is for a sweep of a PROFILE_DIR"),
        ({"--html": "x.html"}, "--html is for a sweep of a PROFILE_DIR"),
        ({"--engine": "spark"}, "--engine 'spark' is unknown; choose from local, ray"),
        ({"--ray-address": "auto"}, "--ray-address has no effect without --engine ray"),
        ({"--engine": "ray", "--ray-address": "auto", "--workers": "2"}, "--workers has no effect"),
        ({"--time-limit": "601"}, "--time-limit must be at most 600, not 601.0"),
        ({"--store": "mysql://h/d"}, "is neither sqlite: nor postgresql:"),
        ({"PROFILE_DIR": "here"}, "--models has no effect on a sweep of here"),
        ({**dict.fromkeys(RIGHT), "PROFILE_DIR": "here"}, "--memory is missing"),
        (
            {**dict.fromkeys(RIGHT), "PROFILE_DIR": "here", "--ray-address": "auto"},
            "--ray-address has no effect on a sweep of here",
        ),
    ],
)
def test_what_is_refused_is_one_line_and_makes_no_store(
    changed: dict[str, str | None],
    words: str,
    models: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, str | None] = {**RIGHT, **changed}
    if options["--models"] == "four":
        options["--models"] = str(models[0])
    folder = options.pop("PROFILE_DIR", None)
    argv = ["sweep", *([folder] if folder else [])]
    argv += [part for name, value in options.items() if value for part in (name, value)]
    assert cli.main(argv) == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_ray_it_says_what_to_install(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main([*argv, "--engine", "ray"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "moeplan: --engine ray needs ray, which is not installed: pip install 'moeplan[cluster]'\n"
    )


@pytest.mark.parametrize(
    ("address", "words", "code"),
    [
        ("127.0.0.1:1", "--ray-address 127.0.0.1:1 cannot be reached: Connection refused", 1),
        ("nonsense", "--ray-address nonsense: Invalid address format", 2),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(
    argv: list[str], address: str, words: str, code: int, tmp_path: Path, capsys: Any
) -> None:
    store = f"sqlite:///{tmp_path / 'moeplan.db'}"
    ray = ("--store", store, "--engine", "ray", "--ray-address", address)
    assert cli.main([*argv, *ray]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_model_of_an_unknown_kind_keeps_its_name(models: list[Path]) -> None:
    (other,) = read_models((models[2],))
    assert isinstance(other.found, UnsupportedError)
    assert other.name == "other"


def test_a_sweep_asks_for_what_it_was_asked_for(models: list[Path]) -> None:
    work = Workload(2, 8, 2, attention_window=3, attention_sinks=1)
    plain = Asked(
        read_models(tuple(models[:1])),
        (named_machine("t4"),),
        (1 << 20,),
        "uniform",
        None,
        None,
        work,
        "lru",
        "throughput",
        None,
        0,
    )
    inputs = plain.inputs("0" * 64, 1 << 20)
    assert inputs["workload"] == {
        "requests": 2,
        "prompt_tokens": 8,
        "new_tokens": 2,
        "attention_window": 3,
        "attention_sinks": 1,
    }
    assert not {"kv", "predictors"} & set(inputs)
    more = replace(plain, kv="below", predictors=True).inputs("0" * 64, 1 << 20)
    assert more == {**inputs, "kv": "below", "predictors": True}
