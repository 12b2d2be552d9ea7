"""Every fault that is edited into a valid plan is found, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.check import check_plan
from planner.documents import LayerPolicy, MemoryAccount, Plan, Workload
from planner.groups import smallest_budget_bytes
from planner.solve import make_plan

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=4)


@pytest.fixture(scope="module")
def plan(small_profile: Any) -> Plan:
    """On demand, so that layers hold residents, and other experts are neither."""
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    budget = smallest + small_profile.model.expert_bytes // 2
    made = make_plan(small_profile, WORKLOAD, memory_bytes=budget, solver="on-demand")
    assert made.policy.layers[0].resident
    assert len(made.policy.layers[0].resident) < 8
    return made


def layer(plan: Plan, **changes: Any) -> Plan:
    layers = list(plan.policy.layers)
    layers[0] = replace(layers[0], **changes)
    return policy(plan, layers=tuple(layers))


def policy(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, policy=replace(plan.policy, **changes))


def account(plan: Plan, **changes: int) -> Plan:
    stated = plan.memory["device"]
    by_purpose = {**stated.by_purpose, **changes}
    return replace(plan, memory={"device": MemoryAccount(stated.capacity_bytes, by_purpose)})


def totals(plan: Plan, **changes: int) -> Plan:
    predicted = replace(plan.predicted, totals=replace(plan.predicted.totals, **changes))
    return replace(plan, predicted=predicted)


def inputs(plan: Plan, **changes: str) -> Plan:
    return replace(plan, inputs=replace(plan.inputs, **changes))


OTHER = "f" * 64
MUTATIONS: list[tuple[str, Callable[[Plan], Plan]]] = [
    ("item_range", lambda p: layer(p, prefetch=(8,))),
    ("item_range", lambda p: layer(p, prefetch=(-1,))),
    ("resident_duplicate", lambda p: layer(p, resident=(0, 0))),
    ("prefetch_duplicate", lambda p: layer(p, resident=(), prefetch=(5, 5))),
    ("resident_order", lambda p: layer(p, resident=(1, 0))),
    ("resident_and_prefetch", lambda p: layer(p, prefetch=(0,))),
    ("reserve", lambda p: policy(p, reserve=p.policy.slots + 1)),
    ("reserve_missing", lambda p: policy(p, reserve=0)),
    ("slots", lambda p: policy(p, slots=0, reserve=0)),
    ("dense_slots", lambda p: policy(layer(p, dense_resident=False), dense_slots=0)),
    ("head_tiles", lambda p: policy(p, resident_head_tiles=p.policy.head_tiles + 1)),
    ("head_tiles", lambda p: policy(p, head_tiles=p.policy.head_tiles + 1)),
    ("head_tiles", lambda p: policy(p, head_tile_rows=1)),
    ("layer_count", lambda p: policy(p, layers=p.policy.layers[1:])),
    ("memory_overflow", lambda p: policy(p, slots=p.policy.slots + 500)),
    ("memory_account", lambda p: layer(p, resident=())),
    ("memory_account", lambda p: account(p, kv=0)),
    ("memory_account", lambda p: account(p, other=4096)),
    ("memory_capacity", lambda p: account(p, kv=1 << 40)),
    ("context", lambda p: replace(p, workload=replace(p.workload, new_tokens=5000))),
    ("negative", lambda p: replace(p, objective=-1.0)),
    ("bound_above_objective", lambda p: replace(p, bound=p.objective * 1.01)),
    ("bound_missing", lambda p: replace(p, bound=None)),
    ("bound_incomplete", lambda p: replace(p, bound_class=None)),
    ("gap_inconsistent", lambda p: replace(p, gap=0.999)),
    ("totals_inconsistent", lambda p: totals(p, wall_ns=p.predicted.totals.wall_ns + 1)),
    ("rate_inconsistent", lambda p: totals(p, wall_ns=1, prefill_ns=1, decode_ns=0)),
    ("bubbles", lambda p: totals(p, bubble_inter_layer_ns=1 << 60)),
    ("stale_model", lambda p: inputs(p, model=OTHER)),
    ("stale_hardware", lambda p: inputs(p, hardware=OTHER)),
    ("stale_costs", lambda p: inputs(p, costs=OTHER)),
    ("stale_routing", lambda p: inputs(p, routing=OTHER)),
    ("stale_checkpoint", lambda p: inputs(p, checkpoint_fingerprint=OTHER)),
    ("stale_store", lambda p: inputs(p, store_fingerprint=OTHER)),
    ("dtype", lambda p: replace(p, dtype="bfloat16")),
    ("device", lambda p: replace(p, device="cuda")),
]


def test_a_valid_plan_has_no_violations(small_profile: Any, plan: Plan) -> None:
    assert check_plan(plan, small_profile) == []
    assert check_plan(plan) == []


@pytest.mark.parametrize(("reason", "mutate"), MUTATIONS)
def test_each_fault_is_found(
    small_profile: Any, plan: Plan, reason: str, mutate: Callable[[Plan], Plan]
) -> None:
    found = check_plan(mutate(plan), small_profile)
    assert reason in {violation.reason for violation in found}
    assert all(violation.message and violation.where for violation in found)


def test_all_violations_are_listed(small_profile: Any, plan: Plan) -> None:
    broken = policy(layer(plan, prefetch=(9,)), reserve=0)
    reasons = {violation.reason for violation in check_plan(broken, small_profile)}
    assert reasons >= {"item_range", "reserve_missing"}


def test_without_a_profile_the_plan_itself_is_checked(plan: Plan) -> None:
    layers = (LayerPolicy(True, (1, 1), ()), *plan.policy.layers[1:])
    found = check_plan(policy(plan, layers=layers))
    assert [violation.reason for violation in found] == ["resident_duplicate"]
