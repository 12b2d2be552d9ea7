"""Experts on a CPU beside the device, measured, planned for, run and held against each other: a CPU
device that holds what streams stands in for the GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from executor import Engine
from executor import engine as engine_module
from planner.check import check_plan
from planner.documents import CostProfile, Curve, Event, HostExperts, Workload
from planner.host import host_stays, host_times
from planner.profiles import Profile, load_profile
from planner.solve import make_plan
from profiler import folder as folder_module
from profiler import profile_checkpoint
from profiler.effort import Effort
from profiler.host import refit_host
from profiler.refine import refine
from profiler.verify import verify
from tests.stand_in import StandIn

PROMPTS = [[3, 5, 7, 11] * 4, [4, 6, 8] * 5]
QUICK = Effort(
    cell_ns=1_000_000, rounds=2, fills=1, moment_ns=1_000_000, turns=1, passes=1, stream_ns=0
)


def stand_in(patch: pytest.MonkeyPatch, module: ModuleType, pause_s: float = 0.0) -> None:
    """Devices of a module are stand-ins, with links so slow."""
    patch.setattr(StandIn, "pause_s", pause_s)
    patch.setattr(module, "make_backend", lambda device, link="disk": StandIn())


@pytest.fixture(scope="module")
def measured(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Profile]:
    known: dict[tuple[str, float], Profile] = {}

    def made(family: str, pause_s: float = 0.0) -> Profile:
        if (family, pause_s) not in known:
            out = tmp_path_factory.mktemp("profiles") / family
            with pytest.MonkeyPatch.context() as patch:
                stand_in(patch, folder_module, pause_s)
                profile_checkpoint(
                    checkpoint(family),
                    out,
                    memory_bytes=64 << 20,
                    device="cuda",
                    host_memory_bytes=1 << 30,
                    prompts=PROMPTS,
                    effort=QUICK,
                )
            known[family, pause_s] = load_profile(out)
        return known[family, pause_s]

    return made


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_profile_with_host_memory_measures_the_host(
    family: str, measured: Callable[..., Profile]
) -> None:
    profile = measured(family)
    costs = profile.costs
    assert [one.name for one in profile.hardware.channels] == ["h2d"]
    assert costs.host_expert is not None
    assert costs.hosting is not None
    for curve in (costs.host_expert, costs.hosting.beside, costs.hosting.way):
        assert curve.source == "measured"
        # decode and prefill, by the rows that they give an expert
        assert curve.rows[0] == 1
        assert curve.rows[-1] >= 64
        assert min(curve.duration_ns) > 0
        assert min(curve.samples) >= 2
    assert costs.host_expert.held_out_error is not None
    assert host_stays(profile.hardware, costs) is None


def test_without_host_memory_no_host_is_measured(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"memory_bytes": 64 << 20, "prompts": PROMPTS, "effort": QUICK}
    profile_checkpoint(checkpoint("mixtral"), tmp_path / "p", **sizes)
    costs = load_profile(tmp_path / "p").costs
    assert (costs.host_expert, costs.hosting) == (None, None)


def test_measured_hosts_are_planned_for_run_and_verified(
    measured: Callable[..., Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a link so slow that the host is worth its while
    profile = measured("mixtral", 0.01)
    stand_in(monkeypatch, engine_module, 0.01)
    # which asks torch for a GPU
    monkeypatch.setattr(engine_module, "check_can_run", lambda plan, folder: None)
    work = Workload(requests=2, prompt_tokens=8, new_tokens=4)
    room = 3 * profile.model.layers[0].expert_bytes + (1 << 20)
    plan = make_plan(profile, work, memory_bytes=room, time_limit_seconds=0.2, cap_seconds=60.0)
    assert plan.policy.host is not None
    assert "fiddler" in (plan.solver, *plan.chosen_over)
    assert check_plan(plan, profile) == []
    predicted = plan.predicted.totals.duration_by_kind_ns["host_expert"]
    with Engine.from_plan(plan) as engine:
        engine.generate([[3, 5, 7, 11, 13, 17, 19, 23], [4, 6, 8, 10, 12, 14, 16, 18]])
        trace = engine.trace()
    found = {one.name: one for one in verify(plan, trace).kinds}
    assert found["host_expert"].predicted == predicted
    assert found["host_expert"].measured == trace.totals.duration_by_kind_ns["host_expert"]
    refined = refine(profile, trace)
    events = [one for one in trace.timeline.events() if one.kind == "host_expert"]
    (step,) = [one for one in refined.steps if one.kind == "host_expert"]
    assert step.events == len(events)
    assert step.measured_ns == sum(one.end_ns - one.start_ns for one in events)
    before, after = profile.costs.hosting, refined.costs.hosting
    assert before is not None
    assert after is not None
    assert after.way == before.way
    assert sum(after.beside.samples) == sum(before.beside.samples) + len(events)


def curve(*durations: int) -> Curve:
    """At 1, 2, 4, ... rows."""
    count = len(durations)
    rows = tuple(2**index for index in range(count))
    return Curve(rows, durations, (0,) * count, (8,) * count, "measured")


def with_host(costs: CostProfile) -> CostProfile:
    hosting = HostExperts(curve(30, 40, 60), curve(5, 6, 8))
    return dataclasses.replace(costs, host_expert=curve(10, 20, 40), hosting=hosting)


def test_times_by_hand(measured: Callable[..., Profile]) -> None:
    profile = measured("mixtral")
    costs = with_host(profile.costs)
    asked = np.array([[[1, 2, 0], [4, 0, 0]]], dtype=np.int32)
    # beside copies and with the way: 30 + 5, 40 + 6; the last stage is the head's
    times = host_times(profile.hardware, costs, asked)
    assert times is not None
    assert times.tolist() == [[[35, 46, 0], [0, 0, 0]]]
    # data sheets hold the way already
    sheets = dataclasses.replace(costs, hosting=None)
    times = host_times(profile.hardware, sheets, asked)
    assert times is not None
    assert times.tolist() == [[[10, 20, 0], [0, 0, 0]]]
    with pytest.raises(ValueError, match="hosting is there without host_expert"):
        dataclasses.replace(costs, host_expert=None)
    # a hundred events of twice what is said of two rows: both curves come near to twice theirs
    events = [Event("host_expert", "cpu", 0, 0, 1, 0, 80, 2, 0)] * 100
    refitted, step = refit_host(costs, events)
    assert step is not None
    assert (step.events, step.measured_ns, step.before_ns) == (100, 8_000, 4_000)
    assert step.held_out_ratio == pytest.approx(1, abs=0.15)
    assert refitted.host_expert is not None
    assert refitted.hosting is not None
    assert refitted.host_expert.duration_ns[1] == pytest.approx(40, rel=0.15)
    assert refitted.hosting.beside.duration_ns[1] == pytest.approx(80, rel=0.15)
    assert refit_host(sheets, events) == (sheets, None)
