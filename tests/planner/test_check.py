"""Every fault that is edited into a valid plan is found, with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.check import check_plan
from planner.documents import (
    Event,
    LayerPolicy,
    MemoryAccount,
    Plan,
    Range,
    Slowdown,
    Timeline,
    Workload,
    parse_document,
    to_json,
)
from planner.smallest import smallest_budget_bytes
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


def predicted(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, predicted=replace(plan.predicted, **changes))


def row(plan: Plan, kind: str, **changes: Any) -> Plan:
    """The first row of a kind, with changes."""
    events = list(plan.predicted.timeline.events())
    index = next(i for i, event in enumerate(events) if event.kind == kind)
    events[index] = events[index]._replace(**changes)
    return predicted(plan, timeline=Timeline.of(events))


def later(plan: Plan) -> list[Event]:
    """Its rows, a nanosecond later."""
    rows = plan.predicted.timeline.events()
    return [row._replace(start_ns=row.start_ns + 1, end_ns=row.end_ns + 1) for row in rows]


def copies(plan: Plan) -> list[Event]:
    """Its rows of the link."""
    return [row for row in plan.predicted.timeline.events() if row.channel != "compute"]


def first_half(plan: Plan) -> list[Event]:
    """As if less had been recorded."""
    rows = list(plan.predicted.timeline.events())
    return rows[: len(rows) // 2]


def without_kind(plan: Plan, kind: str) -> Plan:
    """Totals in which a kind takes no time."""
    known = plan.predicted.totals.duration_by_kind_ns
    left = {name: spent for name, spent in known.items() if name != kind}
    changed = replace(plan.predicted.totals, duration_by_kind_ns=left)
    return predicted(plan, totals=changed)


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
    ("hold", lambda p: policy(p, hold=1)),
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
    ("group", lambda p: policy(p, n_batches=10**6)),
    ("group", lambda p: policy(p, batch_size=p.workload.requests + 1)),
    ("group", lambda p: replace(p, workload=replace(p.workload, requests=1))),
    ("rate_inconsistent", lambda p: replace(p, workload=replace(p.workload, requests=10**6))),
    ("dense_slots", lambda p: policy(p, dense_slots=99_999)),
    ("slots", lambda p: policy(p, slots=99_999)),
    ("memory_account", lambda p: account(p, workspace=0)),
    ("memory_tier", lambda p: replace(p, memory={**p.memory, "host": MemoryAccount(9, {})})),
    ("store", lambda p: inputs(p, store_fingerprint=OTHER)),
    ("solver", lambda p: replace(p, solver="magic")),
    ("solver", lambda p: replace(p, chosen_over={"magic": 1.0})),
    ("objective_inconsistent", lambda p: replace(p, objective=p.objective * 1.1)),
    ("timeline_layer", lambda p: row(p, "attention", layer=99_999)),
    ("timeline_layer", lambda p: row(p, "sample", layer=0)),
    ("timeline_layer", lambda p: row(p, "embed", layer=0)),
    ("timeline_item", lambda p: row(p, "expert", item=8)),
    ("timeline_item", lambda p: row(p, "router", item=0)),
    ("timeline_pass", lambda p: row(p, "head", pass_index=10**6)),
    ("timeline_channel", lambda p: row(p, "copy_demand", channel="compute")),
    ("timeline_channel", lambda p: row(p, "router", channel="h2d")),
    ("timeline_size", lambda p: row(p, "copy_demand", size_bytes=0)),
    ("timeline_size", lambda p: row(p, "attention", size_bytes=1)),
    ("timeline_order", lambda p: row(p, "attention", start_ns=0)),
    ("timeline_gap", lambda p: predicted(p, timeline=Timeline.of(later(p)))),
    ("timeline_empty", lambda p: predicted(p, timeline=Timeline.of([]))),
    ("timeline_empty", lambda p: predicted(p, timeline=Timeline.of(copies(p)))),
    ("timeline_totals", lambda p: without_kind(p, "copy_demand")),
    ("slowdown", lambda p: predicted(p, slowdown=Slowdown(copy=2.0))),
    # sound in themselves: the replay alone can tell
    ("prediction", lambda p: predicted(p, time_to_first_token_ns=1)),
    ("prediction", lambda p: predicted(p, timeline=Timeline.of(first_half(p)))),
    ("prediction", lambda p: totals(p, bytes_read=p.predicted.totals.bytes_read - 1)),
    ("prediction", lambda p: replace(p, bound=p.bound / 2, gap=1 - p.bound / 2 / p.objective)),
    ("prediction", lambda p: replace(p, bound=None, bound_class=None, gap=None)),
    ("prediction", lambda p: faster(p, 2)),
]


def faster(plan: Plan, times: int) -> Plan:
    """A promise of shorter passes that agrees with itself."""
    all_ns = plan.predicted.totals
    halves = {kind: ns // times for kind, ns in all_ns.duration_by_kind_ns.items()}
    prefill = all_ns.prefill_ns // times
    wall = sum(ns for kind, ns in halves.items() if not kind.startswith("copy_"))
    rates = {}
    tokens = plan.workload.requests * plan.workload.new_tokens
    for name, made, spent in (
        ("tokens_per_second", tokens, wall),
        ("decode_tokens_per_second", tokens - plan.workload.requests, wall - prefill),
    ):
        rates[name] = Range(*(made * 1e9 / spent,) * 3)
    quick = predicted(
        plan,
        **rates,
        totals=replace(
            all_ns,
            wall_ns=wall,
            prefill_ns=prefill,
            decode_ns=wall - prefill,
            duration_by_kind_ns=halves,
            bubble_inter_layer_ns=halves.get("wait_dense", 0),
            bubble_intra_layer_ns=halves.get("wait_expert", 0) + halves.get("wait_head", 0),
        ),
    )
    return replace(
        quick,
        objective=wall / tokens,
        bound=plan.bound / times,
        gap=1 - plan.bound / times * tokens / wall,
    )


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


def test_a_promise_that_agrees_with_itself_is_caught_by_the_replay_alone(
    small_profile: Any, plan: Plan
) -> None:
    promise = faster(plan, 2)
    assert check_plan(promise) == []
    assert {one.reason for one in check_plan(promise, small_profile)} == {"prediction"}


@pytest.mark.parametrize(
    ("solver", "objective"),
    [
        ("cpsat", "time-per-token"),
        ("lru", "throughput"),
        ("klotski", "bytes"),
        ("all-experts", "first-token"),
        ("on-demand", "bubble"),
    ],
)
def test_what_is_planned_is_what_the_replay_says(
    profile_factory: Any, solver: str, objective: str
) -> None:
    """Also where copies and computation slow each other down, in groups with a smaller last one,
    after a way through JSON."""
    profile = profile_factory(
        layers=2, sequences=9, copy_slowdown=1.4, compute_slowdown=1.2, dtype_bytes=2
    )
    workload = Workload(requests=7, prompt_tokens=5, new_tokens=3)
    budget = smallest_budget_bytes(profile, workload) + profile.model.expert_bytes // 3
    made = make_plan(
        profile,
        workload,
        memory_bytes=budget,
        solver=solver,
        objective=objective,
        time_limit_seconds=0.5,
        seed=3,
    )
    read = parse_document(Plan, json.loads(json.dumps(to_json(made))), "here")
    assert check_plan(read) == []
    assert check_plan(read, profile) == []


def test_all_violations_are_listed(small_profile: Any, plan: Plan) -> None:
    broken = policy(layer(plan, prefetch=(9,)), reserve=0)
    reasons = {violation.reason for violation in check_plan(broken, small_profile)}
    assert reasons >= {"item_range", "reserve_missing"}


def test_without_a_profile_the_plan_itself_is_checked(plan: Plan) -> None:
    layers = (LayerPolicy(True, (1, 1), ()), *plan.policy.layers[1:])
    found = check_plan(policy(plan, layers=layers))
    assert [violation.reason for violation in found] == ["resident_duplicate"]
