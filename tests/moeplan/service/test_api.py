"""What the API takes and refuses: each refusal is a problem document that names the field.

No worker is needed: nothing here is solved.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from moeplan import cli
from moeplan.service.guard import is_loopback
from moeplan.service.requests import CompareRequest, PlanRequest
from moeplan.service.store import Store

ROOT = Path(__file__).resolve().parents[3]
NONE = "0" * 64
Clients = Callable[..., TestClient]
Body = dict[str, Any]


def refused(answer: Any, status: int, field: str) -> str:
    """It is a problem of this status and field; its words."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert (answer.status_code, body["status"], body["field"]) == (status, status, field), body
    assert set(body) >= {"type", "title", "detail"}
    assert "\n" not in body["detail"]
    detail: str = body["detail"]
    return detail


@pytest.fixture
def client(app_client: Clients) -> TestClient:
    return app_client()


@pytest.fixture
def profile(client: TestClient, upload: Body) -> str:
    """Hash of the uploaded profile."""
    answer = client.post("/v1/profiles", json=upload)
    assert answer.status_code == 201, answer.text
    digest: str = answer.json()["hash"]
    return digest


def test_a_profile_is_kept_as_five_documents(
    client: TestClient, profile: str, upload: Body
) -> None:
    again = client.post("/v1/profiles", json=upload)
    assert (again.status_code, again.json()["hash"]) == (200, profile)
    assert again.headers["location"] == f"/v1/profiles/{profile}"
    for path, part in (
        ("hardware", "hardware"),
        ("models", "model"),
        ("costs", "costs"),
        ("routings", "routing"),
        ("profiles", "profile"),
    ):
        (listed,) = client.get(f"/v1/{path}").json()["items"]
        assert client.get(listed["href"]).json() == upload[part]
    arrays = client.get(f"{client.get('/v1/routings').json()['items'][0]['href']}/arrays")
    assert arrays.content == base64.b64decode(upload["arrays_base64"])
    # each alone is the same document
    assert client.post("/v1/hardware", json=upload["hardware"]).status_code == 200
    assert client.post("/v1/models", json=upload["model"]).status_code == 200
    parts = {name: upload[name] for name in ("routing", "arrays_base64")}
    assert client.post("/v1/routings", json=parts).status_code == 200


def changed(body: Body, way: str, value: Any) -> Body:
    made = copy.deepcopy(body)
    *parents, last = way.split(".")
    at: Any = made
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return made


def npz(**arrays: Any) -> str:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(
    ("way", "value", "field"),
    [
        ("model", None, "body.model"),
        ("extra", 1, "body.extra"),
        ("hardware.threads", "2", "body.hardware.threads"),
        ("hardware.tiers.0.capacity_bytes", -1, "body.hardware.tiers.0.capacity_bytes"),
        ("hardware.kind", "model", "body.hardware"),
        ("costs.version", 99, "body.costs"),
        ("model.name", "bad\x1b[31m", "body.model.name"),
        ("model.name", "another", "body.model"),
        ("routing.arrays_file", "other.npz", "body.routing"),
        ("profile.costs_hash", NONE, "body.costs"),
        ("arrays_base64", "a", "body.arrays_base64"),
        ("arrays_base64", "*", "body.arrays_base64"),
        ("arrays_base64", "AAAA", "body.arrays_base64"),
        ("arrays_base64", npz(experts=np.array([{}], dtype=object)), "body.arrays_base64"),
    ],
)
def test_a_profile_that_is_not_whole_is_refused_and_nothing_kept(
    client: TestClient, upload: Body, way: str, value: Any, field: str
) -> None:
    refused(client.post("/v1/profiles", json=changed(upload, way, value)), 422, field)
    assert client.get("/v1/hardware").json()["items"] == []


def test_a_path_in_an_upload_reaches_no_file(client: TestClient, upload: Body) -> None:
    # the name goes into the document, which is another one then; nothing opens it
    body = changed(upload, "routing.arrays_file", "../../../etc/passwd")
    del body["profile"], body["hardware"], body["model"], body["costs"]
    kept = client.post("/v1/routings", json=body)
    assert kept.status_code == 201
    arrays = client.get(f"{kept.json()['href']}/arrays")
    assert arrays.content == base64.b64decode(upload["arrays_base64"])


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"profile": "x"}, "body.profile"),
        ({"profile": NONE}, "body.profile"),
        ({"profile": NONE + "\n"}, "body.profile"),
        ({"memory_bytes": "1"}, "body.memory_bytes"),
        ({"memory_bytes": 1.5}, "body.memory_bytes"),
        ({"memory_bytes": True}, "body.memory_bytes"),
        ({"memory_bytes": 0}, "body.memory_bytes"),
        ({"memory_bytes": 1 << 70}, "body.memory_bytes"),
        ({"workload": []}, "body.workload"),
        ({"workload": {"requests": 1, "prompt_tokens": 1}}, "body.workload.new_tokens"),
        (
            {
                "workload": {
                    "requests": 1,
                    "prompt_tokens": 1,
                    "new_tokens": 1,
                    "attention_sinks": 1,
                }
            },
            "body.workload",
        ),
        ({"solver": "belady"}, "body.solver"),
        ({"objective": "speed"}, "body.objective"),
        ({"time_limit_seconds": 1.0}, "body.time_limit_seconds"),
        ({"solver": "cpsat", "time_limit_seconds": 601.0}, "body.time_limit_seconds"),
        ({"solver": "cpsat", "tolerance": 0.1}, "body.tolerance"),
        ({"solver": "cpsat", "then": "throughput"}, "body.then"),
        ({"then": "bytes"}, "body.then"),
        ({"seed": -1}, "body.seed"),
        ({"kv": "auto"}, "body.kv"),
        ({"predictors": False}, "body.predictors"),
        ({"predictors": "no"}, "body.predictors"),
        ({"allow_error": -0.1}, "body.allow_error"),
        ({"allow_error": 1.5}, "body.allow_error"),
        ({"allow_error": 1e-12}, "body.allow_error"),
        ({"allow_error": "1%"}, "body.allow_error"),
        ({"profile_folder": ""}, "body.profile_folder"),
        ({"profile_folder": "a\x1b[2J"}, "body.profile_folder"),
        ({"profile_folder": "a" * 4097}, "body.profile_folder"),
        ({"unknown": 1}, "body.unknown"),
    ],
)
def test_plans_that_are_not_asked_for_well(
    client: TestClient, profile: str, plan_request: Any, values: Body, field: str
) -> None:
    refused(client.post("/v1/plans", json=plan_request(profile, **values)), 422, field)
    assert client.get("/v1/jobs").json()["items"] == []


def test_a_request_that_leaves_a_later_option_out_is_the_job_that_it_was(plan_request: Any) -> None:
    asked = PlanRequest.model_validate(plan_request("0" * 64))
    assert not {"kv", "predictors", "allow_error", "profile_folder"} & set(asked.inputs())
    there = {"profile_folder": "/home/me/profile"}
    assert asked.model_copy(update=there).inputs() == {**asked.inputs(), **there}
    later = {"kv": "below", "predictors": True, "allow_error": 0.01}
    assert asked.model_copy(update=later).inputs() == {**asked.inputs(), **later}
    body = plan_request("0" * 64)
    body["solvers"] = [body.pop("solver")]
    compared = CompareRequest.model_validate(body)
    assert not {"kv", "predictors", "allow_error"} & set(compared.inputs())
    assert compared.model_copy(update=later).inputs() == {**compared.inputs(), **later}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"routing": NONE}, "body.routing"),
        ({"devices": 0}, "body.devices"),
        ({"memory_bytes": 1}, "body.model"),
        ({"model": NONE, "memory_bytes": 1}, "body.model"),
        ({"inter_bandwidth": 1.0}, "body.intra_bandwidth"),
        ({"inter_bandwidth": 1.0, "intra_bandwidth": 1.0}, "body.inter_bandwidth"),
        ({"method": "greedy", "time_limit_seconds": 1.0}, "body.time_limit_seconds"),
    ],
)
def test_placements_that_are_not_asked_for_well(
    client: TestClient, profile: str, values: Body, field: str
) -> None:
    routing = client.get("/v1/routings").json()["items"][0]["hash"]
    body = {"routing": routing, "devices": 2, **values}
    refused(client.post("/v1/placements", json=body), 422, field)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "body: is missing"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"seed": NaN}', "NaN is no JSON number"),
        (b'{"seed": -Infinity}', "no JSON number"),
        (b'{"seed": 1, "seed": 2}', "'seed' stands twice"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"null", "body"),
        (b"[]", "body"),
        (b'"text"', "body"),
    ],
)
def test_bodies_that_are_no_objects(client: TestClient, body: bytes, part: str) -> None:
    answer = client.post("/v1/plans", content=body, headers={"content-type": "application/json"})
    status = 400 if "JSON" in part or "twice" in part else 422
    assert part in refused(answer, status, "body")


def test_other_types_and_too_large_ones_are_not_read(client: TestClient) -> None:
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-pickle", ""):
        answer = client.post("/v1/plans", content=b"{}", headers={"content-type": kind})
        refused(answer, 415, "header.content-type")
    json_type = {"content-type": "application/json"}
    large = b'"' + b"a" * (4 << 20) + b'"'
    refused(client.post("/v1/plans", content=large, headers=json_type), 413, "body")
    # announced by nobody: counted as it comes
    parts = (large[i : i + 100_000] for i in range(0, len(large), 100_000))
    refused(client.post("/v1/plans", content=parts, headers=json_type), 413, "body")
    over = b"a" * ((8 << 20) + 1)
    refused(client.post("/v1/profiles", content=over, headers=json_type), 413, "body")


@pytest.mark.parametrize(
    ("method", "path", "status", "field"),
    [
        ("GET", "/v1/nothing", 404, "path"),
        ("GET", "/v1/plans/", 404, "path"),
        ("PUT", "/v1/plans", 405, "method"),
        ("GET", f"/v1/plans/{NONE}", 404, "path.digest"),
        ("GET", f"/v1/hardware/{NONE}", 404, "path.digest"),
        ("GET", f"/v1/plans/{NONE}/explanation", 404, "path.digest"),
        ("POST", f"/v1/plans/{NONE}/explanation", 404, "path.digest"),
        ("GET", f"/v1/plans/{NONE}/timeline", 404, "path.digest"),
        ("GET", f"/v1/routings/{NONE}/arrays", 404, "path.digest"),
        ("GET", f"/v1/jobs/{NONE}", 404, "path.digest"),
        ("GET", f"/v1/jobs/{NONE}/events", 404, "path.digest"),
        ("POST", f"/v1/jobs/{NONE}/cancel", 404, "path.digest"),
        ("GET", "/v1/plans/..%2f..%2fetc%2fpasswd", 404, "path"),
        ("GET", "/v1/plans/ABC", 422, "path.digest"),
        ("GET", "/v1/plans?limit=0", 422, "query.limit"),
        ("GET", "/v1/plans?limit=x", 422, "query.limit"),
        ("GET", "/v1/plans?after=x", 422, "query.after"),
        ("GET", "/v1/plans?search=%00", 422, "query.search"),
        ("GET", f"/v1/plans?search={'a' * 201}", 422, "query.search"),
        ("GET", "/v1/jobs?state=odd", 422, "query.state"),
    ],
)
def test_paths_and_queries(
    client: TestClient, method: str, path: str, status: int, field: str
) -> None:
    refused(client.request(method, path), status, field)


def test_the_queue_has_an_end(
    app_client: Clients, upload: Body, plan_request: Callable[..., Body]
) -> None:
    client = app_client(most_queued=2)
    profile = client.post("/v1/profiles", json=upload).json()["hash"]
    first, second, third = (
        client.post("/v1/plans", json=plan_request(profile, seed=seed)) for seed in range(3)
    )
    assert (first.status_code, second.status_code) == (202, 202)
    refused(third, 429, "server")
    assert int(third.headers["retry-after"]) > 0
    # what waits already is no further job
    again = client.post("/v1/plans", json=plan_request(profile, seed=1))
    assert (again.status_code, again.json()["id"]) == (202, second.json()["id"])
    assert again.headers["location"] == second.json()["href"]
    # a place is free again
    href = first.json()["href"]
    assert client.post(f"{href}/cancel").json()["state"] == "cancelled"
    assert client.post("/v1/plans", json=plan_request(profile, seed=2)).status_code == 202
    pages = [client.get("/v1/jobs?limit=2").json()]
    pages.append(client.get(f"/v1/jobs?limit=2&after={pages[0]['next']}").json())
    seeds = [job["inputs"]["seed"] for page in pages for job in page["items"]]
    assert seeds == [2, 1, 0]
    assert pages[1]["next"] is None


def test_events_of_a_job_that_has_ended(
    client: TestClient, profile: str, plan_request: Callable[..., Body]
) -> None:
    href = client.post("/v1/plans", json=plan_request(profile)).json()["href"]
    client.post(f"{href}/cancel")
    answer = client.get(f"{href}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    event, identity, data = answer.text.strip().split("\n")
    assert (event, identity) == ("event: job", "id: 2")
    assert json.loads(data.removeprefix("data: "))["state"] == "cancelled"
    assert client.get(f"{href}/events", headers={"Last-Event-ID": "2"}).text == ""


@pytest.mark.parametrize(
    ("path", "part", "key"),
    [
        ("hardware", "hardware", "processor"),
        ("hardware", "hardware", "name"),
        ("models", "model", "name"),
    ],
)
def test_names_are_as_long_as_those_of_files(
    client: TestClient, upload: Body, path: str, part: str, key: str
) -> None:
    longest = {**upload[part], key: "n" * 255}
    assert client.post(f"/v1/{path}", json=longest).status_code == 201
    longest[key] += "n"
    said = refused(client.post(f"/v1/{path}", json=longest), 422, f"body.{key}")
    assert "at most 255 characters" in said


def test_methods_are_those_of_all_routes_of_a_path(client: TestClient) -> None:
    for path in ("/v1/plans", "/v1/traces"):
        answer = client.put(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    answer = client.post("/openapi.json")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    # a stream has no end: its head is refused, and not offered
    for path in ("/jobs/events", f"/v1/jobs/{'0' * 64}/events"):
        answer = client.head(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    for path in ("/healthz", "/v1/plans", "/plans"):
        head, whole = client.head(path), client.get(path)
        assert (head.status_code, head.headers["content-type"]) == (
            200,
            whole.headers["content-type"],
        )


def test_pages_elsewhere_are_not_answered(client: TestClient) -> None:
    refused(client.get("/v1/plans", headers={"host": "evil.example"}), 403, "header.host")
    refused(client.get("/v1/plans", headers={"host": "127.0.0.1@evil"}), 403, "header.host")
    for host in ("[::1", "[x]", "127.0.0.1:x"):
        refused(client.get("/healthz", headers={"host": host}), 403, "header.host")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:2", "http://[", "http://[::1"):
        answer = client.post("/v1/plans", json={}, headers={"origin": origin})
        refused(answer, 403, "header.origin")
    own = {"origin": "http://127.0.0.1:1"}
    refused(client.post("/v1/plans", json={}, headers=own), 422, "body.profile")


def test_every_answer_has_safe_headers(client: TestClient) -> None:
    for path in ("/healthz", "/v1/plans", "/nothing", "/openapi.json", "/v1/plans?limit=0"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


def test_a_token_is_asked_for(app_client: Clients, tmp_path: Path) -> None:
    client = app_client(token_required=True)
    tokens = Store(f"sqlite:///{tmp_path / 'app.db'}").tokens
    token, text = tokens.create("test")
    for given in (None, "", text, f"Basic {text}", "Bearer", f"Bearer {text}x", "Bearer \xe9"):
        headers = {} if given is None else {"authorization": given.encode("latin-1")}
        for path in ("/v1/plans", "/openapi.json", "/metrics", "/nothing"):
            answer = client.get(path, headers=headers)
            refused(answer, 401, "header.authorization")
            assert answer.headers["www-authenticate"] == "Bearer"
    headers = {"authorization": f"Bearer {text}", "host": "service.example"}
    assert client.get("/v1/plans", headers=headers).status_code == 200
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    tokens.revoke(token.id)
    refused(client.get("/v1/plans", headers=headers), 401, "header.authorization")


def test_a_store_that_fails_is_told_without_details_of_the_machine(
    client: TestClient, tmp_path: Path
) -> None:
    client.get("/readyz")
    for path in tmp_path.glob("app.db*"):
        path.write_bytes(b"no database " * 500)
    assert "cannot be used" in refused(client.get("/readyz"), 503, "server")


def test_the_description_names_every_route_and_has_examples(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/plans", "/v1/profiles", "/v1/jobs/{digest}/events", "/metrics"} <= set(
        document["paths"]
    )
    asked = document["paths"]["/v1/plans"]["post"]
    examples = asked["requestBody"]["content"]["application/json"]["examples"]
    assert examples["throughput"]["value"]["memory_bytes"] == 600 << 20
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert "application/problem+json" in operation["responses"]["422"]["content"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.evil", False),
        ("127.0.0.1.evil", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_what_is_the_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(list(argv))
    told = capsys.readouterr()
    return code, told.out, told.err


def test_serving_to_others_needs_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", f"sqlite:///{tmp_path / 'moeplan.db'}")
    code, _, error = command(capsys, "serve", "--host", "0.0.0.0", "--port", "0", *store)
    assert code == 2
    assert "make one with 'moeplan token create'" in error


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (("--store", "nonsense"), "cannot be read"),
        (("--upload", "0"), "no room at all"),
        (("--workers", "0", "--worker-memory", "2GiB"), "no effect with --workers 0"),
        (("--worker-memory", "1MiB"), "1GiB at least"),
    ],
)
def test_options_of_serve(
    argv: tuple[str, ...],
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = command(capsys, "serve", *argv)
    assert code == 2
    assert part in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ("serve", "--port", "0"),
        ("token", "create", "laptop"),
        (
            *("sweep", "--models", str(ROOT / "examples/pycode-moe"), "--hardware", "t4"),
            *("--budgets", "1GiB", "--routing", "uniform"),
        ),
    ],
)
def test_a_store_that_cannot_be_opened(
    argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'none' / 'moeplan.db'}"
    code, _, error = command(capsys, *argv, "--store", url)
    assert code == 2
    (line,) = error.strip().splitlines()
    assert "cannot be used: unable to open" in line
    assert line.endswith("--store or MOEPLAN_STORE names another")
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        store = ("--store", f"sqlite:///{tmp_path / 'moeplan.db'}")
        code, _, error = command(capsys, "serve", "--port", port, *store)
    assert code == 2
    assert "cannot be served on: Address already in use" in error


@pytest.mark.parametrize("argv", [("token", "list"), ("token", "revoke", "x")])
def test_a_store_that_is_only_looked_into_is_not_made(
    argv: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'moeplan.db'}"
    code, _, error = command(capsys, *argv, "--store", url)
    assert code == 2
    assert f"there is no store {url}" in error
    assert list(tmp_path.iterdir()) == []


def test_tokens_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'moeplan.db'}"
    code, text, _ = command(capsys, "token", "create", "laptop", "--store", url)
    assert code == 0
    assert Store(url).tokens.valid(text.strip())
    code, listed, _ = command(capsys, "token", "list", "--store", url, "--json")
    (token,) = json.loads(listed)["tokens"]
    assert (token["name"], token["revoked_at"]) == ("laptop", None)
    assert text.strip().rpartition("_")[2] not in listed
    assert command(capsys, "token", "revoke", token["id"], "--store", url)[0] == 0
    assert not Store(url).tokens.valid(text.strip())
    code, _, error = command(capsys, "token", "revoke", token["id"], "--store", url)
    assert code == 2
    assert "no token" in error
    assert command(capsys, "token", "create", "bad\x1b", "--store", url)[0] == 2
