"""Experts computed in host memory by a worker: a CPU device that holds what streams stands in for
the GPU, so that the path runs everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import Engine, open_weights
from executor import engine as engine_module
from planner.documents import HostCompute, Plan, Workload
from planner.memory import smallest_policy
from solvers.errors import UnsupportedError
from tests.stand_in import StandIn

WORK = Workload(4, 6, 5)
PROMPTS = [[3, 5, 7, 9, 11, 13], [4, 6], [8, 10, 12], [14]]


class BrokenError(RuntimeError):
    """A failure of a stand-in."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "make_backend", lambda device, link: StandIn())


def planned(checkpoint: Path, helpers: Any, host: HostCompute | None) -> Plan:
    """Nothing resident but one expert a layer; everything else on demand."""
    with open_weights(checkpoint) as source:
        model = source.model
    least = smallest_policy(model, model.dtype_bytes)
    layers = tuple(
        replace(layer, resident=(0,) if spec.experts else ())
        for layer, spec in zip(least.layers, model.layers, strict=True)
    )
    changes: dict[str, Any] = {"n_batches": 2, "batch_size": 2, "slots": 2, "reserve": 1}
    plan: Plan = helpers.plan(checkpoint, replace(least, layers=layers, host=host, **changes), WORK)
    return plan


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("percent", [50, 100])
def test_tokens_are_the_same(
    family: str,
    percent: int,
    checkpoint_of: Callable[..., Path],
    helpers: Any,
    stand_in: None,
) -> None:
    folder = checkpoint_of(family)
    tokens = {}
    for host in (None, HostCompute(rows=100, percent=percent)):
        with Engine.from_plan(planned(folder, helpers, host)) as engine:
            tokens[host] = [output.token_ids for output in engine.generate(PROMPTS)]
            trace = engine.trace()
        served, counts = trace.totals.served, trace.totals.count_by_kind
        assert ("host_expert" in counts) == (host is not None)
        assert served.get("on_host", 0) == counts.get("host_expert", 0)
        if percent == 100 and host is not None:
            # nothing is demanded that the host does not take
            assert served.get("on_demand", 0) == 0
        events = [event for event in trace.timeline.events() if event.kind == "host_expert"]
        assert {event.channel for event in events} <= {"cpu"}
    first, second = tokens.values()
    assert first == second


def test_a_failure_on_the_host_ends_the_run(
    checkpoint_of: Callable[..., Path],
    helpers: Any,
    stand_in: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned(checkpoint_of("mixtral"), helpers, HostCompute(100, 100))
    with Engine.from_plan(plan) as engine:

        def broken(unit: Any) -> Any:
            raise BrokenError("the host is broken")

        monkeypatch.setattr(engine._device, "host_expert", broken)
        with pytest.raises(RuntimeError, match="the host is broken"):
            engine.generate(PROMPTS)
        assert helpers.freed(BrokenError, lambda: engine.generate(PROMPTS))


def test_a_device_without_host_memory_refuses(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    plan = planned(checkpoint_of("mixtral"), helpers, HostCompute(100, 100))
    with pytest.raises(UnsupportedError, match="none lies there"):
        Engine.from_plan(plan)
