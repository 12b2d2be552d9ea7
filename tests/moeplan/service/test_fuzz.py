"""Requests made up from the API's own description, and malformed ones: never a 5xx."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

Clients = Callable[..., TestClient]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 8


def test_every_route_answers_made_up_requests_as_it_describes(server: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen: set[str] = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        seen.add(operation.label)

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def answered(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        answered()
    assert len(seen) >= 30


def mutated(rng: random.Random, value: Any) -> Any:
    """A JSON value with one thing in it wrong."""
    odd = [None, True, -1, 1 << 63, 1e308, 0.5, "", "\x00", "\ud800", "../../etc/passwd", [], {}]
    odd += ["a" * 10_000, [[]] * 50, {"": {}}, "0" * 64, -(1 << 70), 10**400]
    made = copy.deepcopy(value)
    at = made
    while isinstance(at, dict | list) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.2:
            if rng.random() < 0.15:
                del at[key]
            elif rng.random() < 0.1 and isinstance(at, dict):
                at[f"{key}x"] = at.pop(key)
            else:
                at[key] = rng.choice(odd)
            return made
        at = at[key]
    return rng.choice(odd)


def bent(rng: random.Random, value: Any) -> bytes:
    """The bytes of a body, with values or bytes that do not belong there."""
    data = json.dumps(mutated(rng, value)).encode()
    if rng.random() < 0.3:
        cut = rng.randrange(len(data) + 1)
        noise = rng.choice([b"", b"\x00", b"\xff", b"}", b'"', b"NaN", b"1e999", b"\\ud800"])
        data = data[:cut] + noise + data[cut + rng.randrange(3) :]
    return data


@pytest.mark.parametrize("seed", range(2))
def test_malformed_bodies_are_refused(
    app_client: Clients,
    upload: dict[str, Any],
    plan_request: Callable[..., dict[str, Any]],
    seed: int,
) -> None:
    client = app_client(most_queued=3)
    profile = client.post("/v1/profiles", json=upload).json()["hash"]
    small = {**upload, "arrays_base64": upload["arrays_base64"][:400]}
    plan = plan_request(profile)
    search = {k: v for k, v in plan.items() if k != "solver"}
    bodies = {
        "/v1/hardware": upload["hardware"],
        "/v1/models": upload["model"],
        "/v1/profiles": small,
        "/v1/routings": {k: small[k] for k in ("routing", "arrays_base64")},
        "/v1/plans": plan,
        "/v1/compare": {**search, "solvers": ["lru", "lifo"], "objectives": ["bytes"]},
        "/v1/placements": {"routing": profile, "devices": 2},
        f"/v1/plans/{profile}/explanation": {"time_limit_seconds": 1.0},
    }
    rng = random.Random(seed)
    fates: dict[int, int] = {}
    for _ in range(1000):
        path = rng.choice(list(bodies))
        answer = client.post(
            path, content=bent(rng, bodies[path]), headers={"content-type": "application/json"}
        )
        fates[answer.status_code] = fates.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["field"]
    assert fates[422] > 300
    assert fates[400] > 100
