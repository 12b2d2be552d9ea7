"""Experts computed on the CPU beside a GPU: costs, plans, the checker, and who is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from planner.catalogue import named_machine, parts_of
from planner.check import check_plan
from planner.documents import Channel, Figure, HostCompute, Workload
from planner.documents.machine import HostProcessor
from planner.drawn_routing import draw_routing
from planner.encode import schedule_of
from planner.explain import explain
from planner.host import check_hosted, host_stays
from planner.offline import offline_profile
from planner.profiles import Profile
from planner.roofline import CALLS, OperationCosts, Roofline
from planner.solve import make_plan
from solvers.errors import OptionError, UnsupportedError

WORK = Workload(requests=1, prompt_tokens=4, new_tokens=3)


def machine(link: float, host: bool = True) -> Any:
    """A GPU behind a link of so many bytes/s, with a CPU of 1 TFLOP/s and 50 GB/s."""
    cpu = HostProcessor("a CPU", {"float32": Figure(1e12, "measured")}, Figure(5e10, "measured"))
    return dataclasses.replace(
        named_machine("a100-80gb"),
        link_bytes_per_second=Figure(link, "measured"),
        host=cpu if host else None,
    )


def made(model: Any, one: Any) -> Profile:
    routing = draw_routing("zipf:1", model, prompt_tokens=8, seed=0)
    config = Path("some") / "config.json"
    return offline_profile(config, model, one, routing, dtype="float32", memory_bytes=1 << 20)


def planned(profile: Profile, solver: str = "cpsat") -> Any:
    room = 3 * profile.model.layers[0].expert_bytes + (1 << 20)
    return make_plan(
        profile, WORK, memory_bytes=room, solver=solver, time_limit_seconds=0.2, cap_seconds=60.0
    )


def test_behind_a_slow_link_the_cpu_computes(small_profile: Any) -> None:
    profile = made(small_profile.model, machine(1e7))
    plan = planned(profile)
    assert plan.policy.host is not None
    assert "fiddler" in (plan.solver, *plan.chosen_over)
    caches = plan.policy.eviction != "none"
    assert plan.bound_class == ("cache" if caches else "clairvoyant")
    assert plan.bound is not None
    assert 0 < plan.bound <= plan.objective
    assert check_plan(plan, profile) == []
    spent = plan.predicted.totals.duration_by_kind_ns
    assert spent["host_expert"] > 0
    hosted = [one for one in plan.predicted.timeline.events() if one.kind == "host_expert"]
    assert {one.channel for one in hosted} == {"cpu"}
    assert all(one.rows <= plan.policy.host.rows for one in hosted)
    assert "are computed on the CPU" in " ".join(plan.notes)
    told = explain(plan, profile, time_limit_seconds=0.1)
    assert told.hosting is not None
    assert told.hosting.without > plan.objective
    assert 0 < told.hosting.experts <= told.hosting.demanded
    # behind a link of 10 MB/s: an expert's bytes alone take so long, 100 ns each
    assert told.hosting.copy_ns > profile.model.layers[0].expert_bytes * 100
    assert 0 < told.hosting.host_ns < told.hosting.copy_ns
    assert told.host_busy > 0
    for price in (told.memory_price, told.bandwidth_price):
        assert price is not None
        # more never hurts a relaxation, which floating point solves to a millionth
        assert price.bound_after <= price.bound_before * (1 + 1e-6)
        # prices are of schedules without a cache
        assert caches or price.bound_before == pytest.approx(plan.bound, rel=1e-9)
    assert told.memory_price is not None
    assert told.memory_price.slope is not None
    assert told.memory_price.slope >= 0
    assert schedule_of(plan.policy).host == (plan.policy.host.rows, plan.policy.host.percent)


def test_the_checker_refuses_a_host_that_is_none(small_profile: Any) -> None:
    profile = made(small_profile.model, machine(1e7))
    plan = planned(profile, "fiddler")
    assert plan.policy.host is not None
    other = made(small_profile.model, machine(1e7, host=False))
    assert "host" in {one.reason for one in check_plan(plan, other)}
    on_cpu = dataclasses.replace(plan, device="cpu")
    assert "host" in {one.reason for one in check_plan(on_cpu)}
    less = dataclasses.replace(plan.policy, host=HostCompute(plan.policy.host.rows, 50))
    changed = dataclasses.replace(plan, policy=less)
    assert "prediction" in {one.reason for one in check_plan(changed, profile)}


def test_behind_a_fast_link_fiddler_copies(small_profile: Any) -> None:
    plan = planned(made(small_profile.model, machine(1e12)), "fiddler")
    assert plan.policy.host is None
    assert "host_expert" not in plan.predicted.totals.duration_by_kind_ns


def test_who_has_no_host_is_refused_by_name(small_profile: Any) -> None:
    for profile, why in (
        (small_profile, "the device is 'cpu'"),
        (made(small_profile.model, machine(1e9, host=False)), "name the CPU beside the GPU"),
    ):
        assert why in str(host_stays(profile.hardware, profile.costs))
        with pytest.raises(UnsupportedError, match="needs costs of a CPU beside the device"):
            planned(profile, "fiddler")
        check_hosted("frequency", profile)
    drive = dataclasses.replace(machine(1e9), host_memory_bytes=small_profile.model.total_bytes - 1)
    with pytest.raises(UnsupportedError, match="its CPU can compute no expert"):
        made(small_profile.model, drive)


def test_the_curve_by_hand(small_profile: Any) -> None:
    """Work on the host, then rows x hidden values there and float32 values back, in two copies."""
    one, model = machine(1e9), small_profile.model
    roofline = Roofline.of_host(one, "float32")
    assert roofline is not None
    assert roofline.bytes_per_second == 5e10
    costs = OperationCosts(roofline, model, 4, 1e9)
    link = Channel("h2d", Figure(1e9, "measured"), Figure(1_000.0, "measured"))
    alone = costs.row_ns("expert", 4)
    assert alone >= CALLS["expert"] * roofline.call_ns
    there_and_back = 2 * 1_000 + 4 * model.hidden_size * 8
    assert costs.host_curve(link)(4) == math.ceil(alone + there_and_back)
    assert Roofline.of_host(machine(1e9, host=False), "float32") is None
    # a type without a figure is computed as fast as float32
    assert Roofline.of_host(one, "bfloat16") == roofline


def test_a_gpu_with_a_cpu_of_the_catalogue() -> None:
    one = named_machine("rtx-3090+xeon-8358")
    assert one.device == "cuda"
    assert one.host is not None
    assert one.host.processor == "xeon-8358"
    assert one.host.bandwidth_bytes_per_second.value == 116.5e9
    assert ("cpu", "xeon-8358") in parts_of(one.name)
    for name in ("xeon-8358+rtx-3090", "rtx-3090+rtx-3090", "xeon-8358+xeon-8358"):
        with pytest.raises(OptionError, match="name a GPU, then the CPU"):
            named_machine(name)
    with pytest.raises(OptionError, match="'xeon-1' is not in the catalogue"):
        named_machine("rtx-3090+xeon-1")
    with pytest.raises(ValueError, match="its own host"):
        dataclasses.replace(named_machine("xeon-8358"), host=one.host)
