"""Answers that are kept are those that would be given again; parameters are strict."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.testclient import TestClient

from moeplan.service.answers import Answers
from moeplan.service.app import _ROUTERS
from moeplan.service.routes.common import StrictRoute
from moeplan.service.store import Store
from moeplan.service.store.documents import Entry

Clients = Callable[..., TestClient]


def entry(name: str) -> Entry:
    return Entry("hardware", name, {}, {"kind": "hardware", "name": name})


def names(client: TestClient) -> list[str]:
    return [item["name"] for item in client.get("/v1/hardware").json()["items"]]


def test_what_has_not_changed_is_not_looked_up_again(
    app_client: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = app_client()
    other = Store(f"sqlite:///{tmp_path / 'app.db'}")
    ((digest, _),) = other.documents.put([entry("a")])
    document = client.get(f"/v1/hardware/{digest}")
    assert names(client) == ["a"]
    store = client.app.state.service.store  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(store, "documents", None)
        assert names(client) == ["a"]
        again = client.get(f"/v1/hardware/{digest}")
        assert (again.content, again.headers) == (document.content, document.headers)
        tag = {"If-None-Match": document.headers["etag"]}
        same = client.get(f"/v1/hardware/{digest}", headers=tag)
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", f'"{digest}"')
        assert client.head(f"/v1/hardware/{digest}").status_code == 200
    # what another process keeps is in the list at once; the document needs no second look
    other.documents.put([entry("b")])
    other.close()
    assert sorted(names(client)) == ["a", "b"]
    monkeypatch.setattr(store, "documents", None)
    assert client.get(f"/v1/hardware/{digest}").content == document.content


def test_what_was_asked_for_with_its_tag_is_kept_whole(
    app_client: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = app_client()
    store = client.app.state.service.store  # type: ignore[attr-defined]
    ((digest, _),) = store.documents.put([entry("a")])
    tag = {"If-None-Match": f'"{digest}"'}
    same = client.get(f"/v1/hardware/{digest}", headers=tag)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", f'"{digest}"')
    assert "immutable" in same.headers["cache-control"]
    monkeypatch.setattr(store, "documents", None)
    assert client.get(f"/v1/hardware/{digest}").json()["name"] == "a"


def test_a_job_is_told_as_it_is(
    app_client: Clients, tmp_path: Path, upload: Any, plan_request: Callable[..., Any]
) -> None:
    client = app_client()
    profile = client.post("/v1/profiles", json=upload).json()["hash"]
    href = client.post("/v1/plans", json=plan_request(profile)).json()["href"]
    assert client.get(href).json()["state"] == "queued"
    other = Store(f"sqlite:///{tmp_path / 'app.db'}")
    job = other.jobs.claim("one", lease_seconds=60, most_attempts=1)
    assert job is not None
    assert client.get(href).json()["state"] == "running"
    other.jobs.beat(job, lease_seconds=60, progress={"stage": "x"})
    assert client.get(href).json()["progress"] == {"stage": "x"}
    other.close()
    client.post(f"{href}/cancel")
    assert client.get(href).json()["cancelling"]


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (lambda: Response(b"x"), 2),  # it may change, and this store cannot say when it has
        (lambda: Response(b"x", headers={"Cache-Control": "private, immutable"}), 1),
        (lambda: Response(b"x" * (4 << 20), headers={"Cache-Control": "immutable"}), 1),
        (lambda: Response(b"x" * ((4 << 20) + 1), headers={"Cache-Control": "immutable"}), 2),
        (lambda: Response(b"x", 500, headers={"Cache-Control": "immutable"}), 2),
        (lambda: StreamingResponse(iter("x"), headers={"Cache-Control": "immutable"}), 2),
    ],
)
def test_what_is_kept_without_a_version(make: Callable[[], Response], times: int) -> None:
    made = ask(Answers(versions(None)), make, "/a", "/a")
    assert len(made) == times


def versions(*values: int | None) -> Any:
    """A store that says what a test wants, the last value again and again."""
    left = list(values)

    def version() -> int | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return SimpleNamespace(database=SimpleNamespace(version=version))


def ask(answers: Answers, make: Callable[[], Response], *paths: str) -> list[str]:
    """The paths whose answers were made, in order."""
    made = []

    async def all_of_them() -> None:
        for path in paths:
            headers = [(b"host", b"a")]
            scope = {
                "type": "http",
                "method": "GET",
                "path": path,
                "query_string": b"",
                "headers": headers,
            }

            async def one(path: str = path) -> Response:
                made.append(path)
                return make()

            await answers.of(Request(scope), one)

    asyncio.run(all_of_them())
    return made


def test_what_was_made_from_an_older_store_is_made_again() -> None:
    assert ask(Answers(versions(1, 1, 2, 2)), lambda: Response(b"x"), *"aaaa") == ["a", "a"]


def test_room_is_bounded_and_the_longest_unasked_goes_first() -> None:
    # three do not fit, for each takes 4 KiB beside its body: c takes the place of b, since a was
    # asked for after it
    answers = Answers(versions(1), most_bytes=10_000)
    assert ask(answers, lambda: Response(b"x" * 10), *"abacab") == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("address", "field", "said"),
    [
        ("/v1/plans?limt=2", "query.limt", "it knows after, limit, search"),
        ("/v1/plans?limit=2&limit=3", "query.limit", "given twice"),
        (f"/v1/jobs/{'0' * 64}?a=1", "query.a", "it knows none"),
        (f"/v1/plans/{'0' * 64}/export/vllm?Trace=1", "query.Trace", "placement, trace"),
        ("/healthz?x", "query.x", "it knows none"),
        ("/openapi.json?x", "query.x", "it knows none"),
        ("/plans?limt=2", "query.limt", "it knows after, limit, search"),
        ("/jobs?state=queued&state=done", "query.state", "given twice"),
        ("/assets/style.css?w=1", "query.w", "it knows v"),
        ("/?page=2", "query.page", "it knows none"),
    ],
)
def test_unknown_parameters_are_refused(
    app_client: Clients, address: str, field: str, said: str
) -> None:
    answer = app_client().get(address)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert said in answer.json()["detail"]
    posted = app_client().post("/v1/hardware?force=1", json={})
    assert (posted.status_code, posted.json()["field"]) == (422, "query.force")


def test_every_route_is_strict(app_client: Clients) -> None:
    routes = [route for router in _ROUTERS for route in router.routes]
    assert {"/openapi.json", "/plans", "/login", "/v1/plans"} <= {route.path for route in routes}  # type: ignore[attr-defined]
    assert not [route for route in routes if not isinstance(route, StrictRoute)]
    # and the application has no others
    assert len(app_client().app.routes) == len(_ROUTERS)  # type: ignore[attr-defined]


def test_what_a_page_names_is_there(app_client: Clients) -> None:
    client = app_client()
    page = client.get("/plans", headers={"Accept": "text/html"}).text
    named = re.findall(r'(?:href|src)="(/[^"#]*)"', page)
    assert sum(address.startswith("/assets/") for address in named) == 4
    assert {address: client.get(address).status_code for address in named} == dict.fromkeys(
        named, 200
    )


def test_a_parameter_that_is_a_list_may_stand_twice(app_client: Clients) -> None:
    chosen = "&".join(f"plan={letter * 64}" for letter in "ab")
    assert app_client().get(f"/beside?{chosen}").status_code == 404  # no such plans


def test_workers_give_way_as_a_session_too(server: Any) -> None:
    # where Linux weighs sessions, a worker's nice value counts for nothing outside of its own
    for pid in server.workers():
        group = Path(f"/proc/{pid}/autogroup")
        if not group.exists():
            pytest.skip("this kernel does not weigh sessions")
        assert group.read_text().split()[-2:] == ["nice", "10"]
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
