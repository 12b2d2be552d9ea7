"""A server and its worker as processes: from an upload to plans, comparisons and placements."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from moeplan import cli
from moeplan.client import Client
from planner.documents import Plan, Trace, Workload, document_hash, load_document
from planner.forms import allowing
from planner.profiles import load_profile
from planner.solve import make_plan
from solvers.errors import BudgetError, InputError, OptionError, RunError

WORK = Workload(requests=4, prompt_tokens=16, new_tokens=4)
MEMORY = 1_500_000  # between the least that works and what holds everything


@pytest.fixture
def client(server: Any) -> Any:
    with Client(server.url) as opened:
        yield opened


@pytest.fixture
def profile_hash(client: Client, profile_folder: Path) -> str:
    return client.upload_profile(load_profile(profile_folder))


def test_a_plan_made_there_is_the_plan_made_here(
    client: Client, profile_hash: str, profile_folder: Path
) -> None:
    profile = load_profile(profile_folder)
    job = client.ask_plan(profile_hash, WORK, memory_bytes=MEMORY, solver="lifo")
    done = client.wait(job.id)
    there = client.plan(done.result)
    here = make_plan(profile, WORK, memory_bytes=MEMORY, solver="lifo")
    assert there.locations.profile == f"profile-{profile_hash}"
    assert replace(there, locations=here.locations) == here
    # the same inputs, one of them a default: the same job, which is done
    again = client.ask_plan(profile_hash, WORK, memory_bytes=MEMORY, solver="lifo", seed=0)
    assert (again.id, again.state, again.result) == (job.id, "done", done.result)


def test_a_search_tells_how_far_it_is(client: Client, profile_hash: str) -> None:
    told: list[dict[str, Any]] = []
    searched: list[dict[str, Any]] = []
    # who asks now and then may miss a short search on a busy machine, but not each of many
    for requests in range(2, 10):
        work = replace(WORK, requests=requests)
        job = client.ask_plan(profile_hash, work, memory_bytes=MEMORY, time_limit_seconds=2.0)
        assert client.plan(client.wait(job.id, told.append).result).bound is not None
        searched = [step for step in told if step["incumbent"] is not None]
        if searched:
            break
    assert searched
    for step in told:
        if step not in searched:
            # before or after the search
            assert (step["bound"], step["gap"]) == (None, None)
    for step in searched:
        assert step["stage"].startswith("cpsat, n x b = ")
        assert step["bound"] <= step["incumbent"]
        assert step["gap"] == pytest.approx(1 - step["bound"] / step["incumbent"])


def test_what_a_plan_says(client: Client, server: Any, profile_hash: str) -> None:
    job = client.ask_plan(profile_hash, WORK, memory_bytes=MEMORY, solver="lru")
    digest = client.wait(job.id).result
    plan = client.plan(digest)
    said = client.get(f"plans/{digest}/explanation")
    assert "4 requests" in said["words"][0]
    assert said["notes"] == list(plan.notes)
    timeline = client.get(f"plans/{digest}/timeline")
    assert timeline["totals"]["wall_ns"] == plan.predicted.totals.wall_ns
    (listed,) = [one for one in client.get("plans", search="LRU")["items"] if one["hash"] == digest]
    assert listed["summary"]["solver"] == "lru"
    raw = httpx.get(f"{server.url}{listed['href']}")
    assert raw.json()["content_hash"] == digest == document_hash(plan)
    tag = {"If-None-Match": raw.headers["etag"]}
    assert httpx.get(f"{server.url}{listed['href']}", headers=tag).status_code == 304


def test_explanation_comparison_and_placement(client: Client, profile_hash: str) -> None:
    job = client.ask(
        "compare",
        profile=profile_hash,
        memory_bytes=MEMORY,
        workload={"requests": 4, "prompt_tokens": 16, "new_tokens": 4},
        solvers=["lru", "lifo"],
        objectives=["bytes"],
    )
    compared = client.get(f"compare/{client.wait(job.id).result}")
    pairs = [(row["solver"], row["objective"]) for row in compared["rows"]]
    assert sorted(pairs) == [("lifo", "bytes"), ("lru", "bytes")]
    for row in compared["rows"]:
        assert client.plan(row["plan"]).objective == row["objective_value"]
    digest = compared["rows"][0]["plan"]
    job = client.ask(f"plans/{digest}/explanation", time_limit_seconds=0.05)
    explained = client.get(f"explanations/{client.wait(job.id).result}")
    assert explained["plan"] == digest
    assert any(text.startswith("What binds") for text in explained["words"])
    routing = client.get("routings")["items"][0]["hash"]
    job = client.ask("placements", routing=routing, devices=2, method="greedy", scenarios=8)
    placed = client.placement(client.wait(job.id).result)
    assert (placed.devices, placed.routing_hash) == (2, routing)


def test_a_job_that_cannot_work_is_the_error_that_it_would_be_here(
    client: Client, profile_hash: str
) -> None:
    job = client.ask_plan(profile_hash, WORK, memory_bytes=1000, solver="lru")
    with pytest.raises(BudgetError, match="smallest that works is") as caught:
        client.wait(job.id)
    smallest = caught.value.smallest_bytes
    job = client.ask_plan(profile_hash, WORK, memory_bytes=smallest, solver="lru")
    assert client.plan(client.wait(job.id).result).memory["device"].capacity_bytes == smallest
    with pytest.raises(InputError, match="no profile 0000"):
        client.ask_plan("0" * 64, WORK, memory_bytes=1)
    with pytest.raises(InputError, match="no plan 0000"):
        client.plan("0" * 64)


def test_cancelling_what_runs(
    client: Client,
    profile_hash: str,
    server: Any,
    long_comparison: Callable[[str], dict[str, Any]],
) -> None:
    job = client.ask("compare", **long_comparison(profile_hash))
    for status in client.watch(job.id):
        if status.state == "running":
            client.cancel(job.id)
    assert status.state == "cancelled"
    with pytest.raises(RunError, match="was cancelled"):
        client.wait(job.id)
    # the search has ended at its next word, or is gone with its worker: the only one works again
    job = client.ask_plan(profile_hash, WORK, memory_bytes=MEMORY, solver="lifo")
    assert client.wait(job.id).state == "done"
    assert len(server.workers()) == 1


def test_metrics_and_health(client: Client, server: Any) -> None:
    client.get("jobs")
    text = httpx.get(f"{server.url}/metrics").text
    assert 'moeplan_jobs{state="queued"} 0.0' in text
    assert 'moeplan_requests_total{method="GET",route="/v1/jobs",status="200"}' in text
    assert "moeplan_workers 1.0" in text
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/readyz").json() == {"status": "ready"}


def run(*argv: Any) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main([*map(str, argv)])
    return code, out.getvalue()


def test_the_command_prints_and_writes_the_same_there_and_here(
    made: SimpleNamespace, server: Any, tmp_path: Path
) -> None:
    argv = ("plan", made.profile, "--memory", made.memory, "--requests", 4, "--prompt-tokens", 14)
    argv += ("--new-tokens", 4, "--solver", "lru", "--out", tmp_path / "plan.json")
    results = []
    for more in ((), ("--server", server.url)):
        code, text = run(*argv, *more)
        assert code == 0
        results.append((text, (tmp_path / "plan.json").read_bytes()))
        (tmp_path / "plan.json").unlink()
    assert results[0] == results[1]


def test_a_plan_that_was_made_there_is_known_there_by_the_hash_of_its_file(
    made: SimpleNamespace, client: Client, tmp_path: Path
) -> None:
    """So that the trace of its run is taken, and its page is found."""
    file, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    argv = ("plan", made.profile, "--memory", made.memory, "--requests", 4, "--prompt-tokens", 14)
    argv += ("--new-tokens", 4, "--solver", "fifo", "--out", file, "--server", client.url)
    assert run(*argv)[0] == 0
    plan = load_document(Plan, file)
    assert plan.locations.profile == str(made.profile)
    assert client.plan(document_hash(plan)) == plan
    assert run("run", file, "--prompts", made.prompts, "--trace", trace)[0] == 0
    digest = client.upload_trace(load_document(Trace, trace))
    (listed,) = client.get("traces", search=document_hash(plan))["items"]
    assert listed["hash"] == digest


def test_forms_of_experts_are_chosen_there_as_here(
    client: Client, server: Any, several_forms: Path, profile_hash: str, tmp_path: Path
) -> None:
    """The same bytes on stdout and in the file; comparisons and explanations keep to the error."""
    out, memory = tmp_path / "plan.json", 1_300_000
    argv = ("plan", several_forms, "--memory", memory, "--requests", 4, "--prompt-tokens", 16)
    argv += ("--new-tokens", 4, "--solver", "on-demand", "--out", out)
    results = {}
    for error in (None, 0, 0.05):
        for where in ((), ("--server", server.url)):
            code, text = run(*argv, *(() if error is None else ("--allow-error", error)), *where)
            assert code == 0
            results[error, bool(where)] = (text, out.read_bytes())
            out.unlink()
        assert results[error, False] == results[error, True]
    assert results[None, True] == results[0, True]
    plan = load_profile(several_forms)
    digest = client.upload_profile(plan)
    asked = {"memory_bytes": memory, "solver": "on-demand", "allow_error": 0.05}
    made = client.plan(client.wait(client.ask_plan(digest, WORK, **asked).id).result)
    here = make_plan(allowing(plan, 0.05), WORK, memory_bytes=memory, solver="on-demand")
    assert replace(made, locations=here.locations) == here
    assert made.expert_error is not None
    assert 0 < made.expert_error.mean_ppb <= made.expert_error.allowed_ppb == 50_000_000
    work = {"requests": 4, "prompt_tokens": 16, "new_tokens": 4}
    body = {"memory_bytes": memory, "workload": work, "solvers": ["on-demand"]}
    job = client.ask("compare", profile=digest, allow_error=0.05, **body)
    (row,) = client.get(f"compare/{client.wait(job.id).result}")["rows"]
    assert client.plan(row["plan"]) == made
    page = httpx.get(f"{server.url}/compare/{client.job(job.id).result}").text
    assert "Experts may be 5.000% off on average" in page
    with pytest.raises(OptionError, match="has its experts in one form; pack the checkpoint"):
        client.wait(client.ask_plan(profile_hash, WORK, **asked).id)


@pytest.mark.parametrize(
    ("url", "code", "part"),
    [
        ("http://127.0.0.1:1", 1, "cannot be reached"),
        ("ftp://host", 2, "no address of a service"),
        ("http://[", 2, "no address of a service"),
        ("http://user@host", 2, "no address of a service"),
    ],
)
def test_a_server_that_is_not_there(
    profile_folder: Path,
    url: str,
    code: int,
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "plan.json"
    argv = ["plan", str(profile_folder), "--memory", "1500kB", "--server", url, "--out", str(out)]
    assert cli.main(argv) == code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert part in line
    assert not out.exists()


def test_a_service_that_is_lost_and_found_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(changes=3, ended=True, state="done", progress=None, error=None)
    left = [httpx.ConnectError("refused"), httpx.ReadError("reset"), ended]
    heard: list[str] = []

    def events(identity: str, headers: dict[str, str]) -> Iterator[Any]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield answer

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with Client("http://127.0.0.1:1") as client:
        monkeypatch.setattr(client, "_events", events)
        assert client.wait("0" * 64, lost=lambda: heard.append("lost")) is ended
    assert heard == ["lost", "lost"]


def test_an_answer_that_is_none_of_moeplans(
    profile_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = load_profile(profile_folder)
    for answer in ("<html>", "[]", '{"state": "done"}'):
        with Client("http://127.0.0.1:1") as client:
            transport = httpx.MockTransport(lambda _, text=answer: httpx.Response(200, text=text))
            monkeypatch.setattr(
                client, "_http", httpx.Client(transport=transport, base_url="http://x")
            )
            with pytest.raises(RunError, match=r"is no moeplan service|of another version"):
                client.job("0" * 64)
            if answer != '{"state": "done"}':
                with pytest.raises(RunError):
                    client.upload_profile(profile)


ASKED = "http://127.0.0.1:1 asks for an API token, given as MOEPLAN_TOKEN; "
MADE = "'moeplan token create' makes one there"


@pytest.mark.parametrize(
    ("url", "required", "token", "said"),
    [
        ("http://127.0.0.1:1", True, None, ASKED + MADE),
        ("http://127.0.0.1:1", True, "", ASKED + MADE),
        (
            "http://127.0.0.1:1",
            True,
            "wrong",
            f"MOEPLAN_TOKEN: http://127.0.0.1:1 does not know this API token; {MADE}",
        ),
        ("http://127.0.0.1:1", True, "wröng", "MOEPLAN_TOKEN: holds characters that no API token"),
        (
            "http://other:1",
            False,
            None,
            "http://other:1 refuses this: host 'other:1' is not this machine's loopback",
        ),
    ],
)
def test_a_refusal_is_told_by_what_the_user_gave(
    profile_folder: Path,
    app_client: Callable[..., Any],
    url: str,
    required: bool,
    token: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not by the header that it went into, which no user of the command has seen."""
    there = app_client(token_required=required)

    def connect(*, base_url: str, headers: dict[str, str], timeout: float) -> Any:
        there.base_url = base_url
        there.headers.update(headers)
        return there

    monkeypatch.setattr(httpx, "Client", connect)
    monkeypatch.delenv("MOEPLAN_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("MOEPLAN_TOKEN", token)
    argv = ["plan", str(profile_folder), "--memory", "1500kB", "--server", url]
    assert cli.main([*argv, "--out", str(tmp_path / "plan.json")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"moeplan: {said}")
    assert "header" not in line


def test_a_value_that_is_refused_is_named_as_it_was_given(client: Client, server: Any) -> None:
    with pytest.raises(InputError, match=r"^memory_bytes: "):
        client.ask_plan("0" * 64, WORK, memory_bytes=0)
    called = {"memory_bytes": "--memory"}
    with (
        Client(server.url, called=called) as command,
        pytest.raises(InputError, match=r"^--memory: "),
    ):
        command.ask_plan("0" * 64, WORK, memory_bytes=0)
