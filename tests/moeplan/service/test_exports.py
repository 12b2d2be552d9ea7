"""Plans of the store for other engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from starlette.testclient import TestClient

from moeplan.service.entries import entry_of, plan_entry
from moeplan.service.routes.exports import TargetName
from planner.documents import Plan, Timeline, Trace, TraceTotals, Workload, document_hash
from planner.exports import TARGETS, Sources, export
from planner.profiles import Profile, load_profile
from planner.solve import make_plan

NONE = "0" * 64


@pytest.fixture(scope="module")
def planned(profile_folder: Path) -> tuple[Profile, Plan]:
    profile = load_profile(profile_folder)
    work = Workload(requests=4, prompt_tokens=16, new_tokens=4)
    return profile, make_plan(profile, work, memory_bytes=1_500_000, solver="on-demand")


@pytest.fixture
def client(
    app_client: Callable[..., TestClient], upload: dict[str, Any], planned: tuple[Profile, Plan]
) -> TestClient:
    """Of a store that has the profile and its plan."""
    profile, plan = planned
    client = app_client()
    kept = client.post("/v1/profiles", json=upload).json()["hash"]
    client.app.state.service.store.documents.put([plan_entry(plan, profile, kept)])  # type: ignore[attr-defined]
    return client


def test_every_target_has_its_place() -> None:
    assert get_args(TargetName) == tuple(TARGETS)


@pytest.mark.parametrize("target", ["accelerate", "llama.cpp", "perfetto"])
def test_it_is_the_file_of_the_command(
    client: TestClient, planned: tuple[Profile, Plan], target: str
) -> None:
    profile, plan = planned
    answer = client.get(f"/v1/plans/{document_hash(plan)}/export/{target}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].split(";")[0] == TARGETS[target].media_type
    assert answer.text == export(target, Sources(plan, profile.model, profile.hardware)).text


def test_a_run_goes_beside_its_plan(client: TestClient, planned: tuple[Profile, Plan]) -> None:
    _, plan = planned
    totals = TraceTotals(*(0,) * 10, {}, {}, (), 0, 0, 0)  # type: ignore[arg-type]
    trace = Trace(document_hash(plan), "cpu", None, 1, totals, Timeline.of([]))
    other = replace(trace, plan_hash=NONE)
    documents = client.app.state.service.store.documents  # type: ignore[attr-defined]
    documents.put([entry_of(one, "a run", {}) for one in (trace, other)])
    path = f"/v1/plans/{document_hash(plan)}/export/perfetto"
    body = client.get(path, params={"trace": document_hash(trace)}).json()
    names = [one["args"]["name"] for one in body["traceEvents"] if one["name"] == "process_name"]
    assert names == ["predicted", "measured"]
    answer = client.get(path, params={"trace": document_hash(other)})
    assert (answer.status_code, answer.json()["field"]) == (422, "query.trace")


@pytest.mark.parametrize(
    ("path", "status", "field", "words"),
    [
        (f"{NONE}/export/perfetto", 404, "path.digest", "no plan"),
        ("PLAN/export/gguf", 422, "path.target", "'accelerate', 'llama.cpp'"),
        ("PLAN/export/vllm", 422, "path.target", "plan for a GPU"),
        ("PLAN/export/ktransformers", 422, "path.target", "'mixtral' model is not known"),
        (f"PLAN/export/accelerate?trace={NONE}", 422, "query.trace", "has no effect"),
        (f"PLAN/export/perfetto?placement={NONE}", 422, "query.placement", "has no effect"),
        (f"PLAN/export/perfetto?trace={NONE}", 422, "query.trace", "no trace"),
        ("PLAN/export/perfetto?trace=x", 422, "query.trace", "must be 64 hexadecimal digits"),
    ],
)
def test_what_is_refused(
    client: TestClient,
    planned: tuple[Profile, Plan],
    path: str,
    status: int,
    field: str,
    words: str,
) -> None:
    answer = client.get(f"/v1/plans/{path.replace('PLAN', document_hash(planned[1]))}")
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (answer.status_code, body["field"]) == (status, field)
    assert words in body["detail"]


def test_it_is_described_with_examples(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    described = document["paths"]["/v1/plans/{digest}/export/{target}"]["get"]
    content = described["responses"]["200"]["content"]
    assert set(content) == {target.media_type for target in TARGETS.values()}
    assert all("example" in one for one in content.values())
    (target,) = [one for one in described["parameters"] if one["name"] == "target"]
    assert target["schema"]["enum"] == list(TARGETS)
