"""The independent check of a plan: every violation, each with its reason.

It recomputes memory from the model and rebuilds the solvers' problem; it shares no code with any
solver.
"""

from __future__ import annotations

import math

from planner.documents import ModelSpec, Plan, Policy, document_hash
from planner.encode import DTYPE_BYTES
from planner.memory import account_device
from planner.profiles import Profile
from solvers.checker import Violation

__all__ = ["Violation", "check_plan"]


def check_plan(plan: Plan, profile: Profile | None = None) -> list[Violation]:
    """All violations of a plan; an empty list where there is none.

    Parameters
    ----------
    plan
        A parsed plan.
    profile
        What it claims to be made from. Without it, memory is not recomputed and expert numbers are
        not held against the model.
    """
    found = _check_policy(plan.policy)
    found += _check_numbers(plan)
    if profile is not None:
        found += _check_inputs(plan, profile)
        found += _check_model(plan, profile.model)
    return found


def _check_policy(policy: Policy) -> list[Violation]:
    """What the policy alone gives away."""
    found: list[Violation] = []
    for index, layer in enumerate(policy.layers):
        where = f"policy.layers.{index}"
        for name, experts in (("resident", layer.resident), ("prefetch", layer.prefetch)):
            if len(set(experts)) != len(experts):
                found.append(
                    Violation(f"{name}_duplicate", where, f"an expert stands twice in {name}")
                )
            if any(expert < 0 for expert in experts):
                found.append(Violation("item_range", where, f"{name} has a negative expert"))
        if list(layer.resident) != sorted(layer.resident):
            found.append(Violation("resident_order", where, "resident experts do not ascend"))
        both = sorted(set(layer.resident) & set(layer.prefetch))
        if both:
            message = f"expert {both[0]} is resident and prefetched"
            found.append(Violation("resident_and_prefetch", where, message))
    if policy.resident_head_tiles > policy.head_tiles:
        message = f"{policy.resident_head_tiles} resident tiles of only {policy.head_tiles}"
        found.append(Violation("head_tiles", "policy.resident_head_tiles", message))
    if policy.reserve > policy.slots:
        message = f"{policy.reserve} slots reserved of only {policy.slots}"
        found.append(Violation("reserve", "policy.reserve", message))
    prefetches = any(layer.prefetch for layer in policy.layers)
    tiles_stream = policy.resident_head_tiles < policy.head_tiles
    if policy.slots < 1 and (prefetches or tiles_stream):
        message = "experts or head tiles stream, but have no slot"
        found.append(Violation("slots", "policy.slots", message))
    if policy.slots and policy.reserve < 1 and policy.eviction != "none":
        message = f"with {policy.eviction} a copy on demand needs a slot that prefetches leave to it"
        found.append(Violation("reserve_missing", "policy.reserve", message))
    if policy.dense_slots < 1 and not all(layer.dense_resident for layer in policy.layers):
        message = "dense parts stream, but have no slot"
        found.append(Violation("dense_slots", "policy.dense_slots", message))
    return found


def _check_numbers(plan: Plan) -> list[Violation]:
    """Objective, bound, gap, predicted totals and memory against each other."""
    found: list[Violation] = []
    for tier, account in plan.memory.items():
        if account.peak_bytes > account.capacity_bytes:
            message = f"needs {account.peak_bytes:,} bytes of {account.capacity_bytes:,}"
            found.append(Violation("memory_capacity", f"memory.{tier}", message))
    if plan.objective < 0:
        found.append(Violation("negative", "objective", f"objective is {plan.objective}"))
    told = (plan.bound is None, plan.bound_class is None, plan.gap is None)
    if plan.bound is None:
        if not all(told):
            found.append(Violation("bound_missing", "bound", "a gap or class without a bound"))
    else:
        if plan.bound_class is None or (plan.gap is None and plan.objective > 0):
            found.append(Violation("bound_incomplete", "bound", "a bound without class or gap"))
        if plan.bound > plan.objective:
            message = f"bound {plan.bound} exceeds objective {plan.objective}"
            found.append(Violation("bound_above_objective", "bound", message))
        elif plan.gap is not None and plan.objective > 0:
            gap = (plan.objective - plan.bound) / plan.objective
            if not math.isclose(gap, plan.gap, rel_tol=1e-6, abs_tol=1e-9):
                message = f"gap is {plan.gap}, objective and bound say {gap}"
                found.append(Violation("gap_inconsistent", "gap", message))
    totals = plan.predicted.totals
    if totals.prefill_ns + totals.decode_ns != totals.wall_ns:
        message = "prefill and decode do not add up to the wall time"
        found.append(Violation("totals_inconsistent", "predicted.totals", message))
    tokens = plan.workload.requests * plan.workload.new_tokens
    rate = plan.predicted.tokens_per_second.value
    if totals.wall_ns and not math.isclose(rate * totals.wall_ns, tokens * 1e9, rel_tol=1e-6):
        message = "tokens per second do not follow from the wall time and the workload"
        found.append(Violation("rate_inconsistent", "predicted.tokens_per_second", message))
    waits = totals.bubble_inter_layer_ns + totals.bubble_intra_layer_ns
    if waits > totals.wall_ns:
        found.append(Violation("bubbles", "predicted.totals", "bubbles exceed the wall time"))
    return found


def _check_inputs(plan: Plan, profile: Profile) -> list[Violation]:
    index = profile.index
    pairs = (
        ("model", plan.inputs.model, document_hash(profile.model)),
        ("hardware", plan.inputs.hardware, document_hash(profile.hardware)),
        ("costs", plan.inputs.costs, document_hash(profile.costs)),
        ("routing", plan.inputs.routing, document_hash(profile.routing)),
        ("checkpoint", plan.inputs.checkpoint_fingerprint, index.checkpoint_fingerprint),
        ("store", plan.inputs.store_fingerprint, index.store_fingerprint),
    )
    found = [
        Violation(f"stale_{name}", f"inputs.{name}", f"made from another {name} than the profile's")
        for name, ours, theirs in pairs
        if ours != theirs
    ]
    if plan.dtype != profile.costs.dtype:
        message = f"plans for {plan.dtype}, the profile measured {profile.costs.dtype}"
        found.append(Violation("dtype", "dtype", message))
    if plan.device != profile.hardware.device:
        message = f"plans for {plan.device}, the profile is of {profile.hardware.device}"
        found.append(Violation("device", "device", message))
    return found


def _check_model(plan: Plan, model: ModelSpec) -> list[Violation]:
    """The policy against the model, and the account of memory, recomputed."""
    policy, found = plan.policy, []
    if len(policy.layers) != len(model.layers):
        message = f"{len(policy.layers)} layers, the model has {len(model.layers)}"
        return [Violation("layer_count", "policy.layers", message)]
    streams = on_demand = False
    for layer, spec in zip(policy.layers, model.layers, strict=True):
        where = f"policy.layers.{spec.index}"
        for name, experts in (("resident", layer.resident), ("prefetch", layer.prefetch)):
            outside = [expert for expert in experts if expert >= spec.experts]
            if outside:
                message = f"{name} expert {outside[0]} of only {spec.experts}"
                found.append(Violation("item_range", where, message))
        streams = streams or len(layer.resident) < spec.experts
        served = set(layer.resident) | set(layer.prefetch)
        on_demand = on_demand or len(served) < spec.experts
    if policy.slots < 1 and streams:
        found.append(Violation("slots", "policy.slots", "experts stream, but have no slot"))
    if policy.slots and policy.reserve < 1 and on_demand and policy.eviction == "none":
        message = "copies on demand need a slot that prefetches leave to them"
        found.append(Violation("reserve_missing", "policy.reserve", message))
    rows, tiles, vocabulary = policy.head_tile_rows, policy.head_tiles, model.vocab_size
    if not (tiles - 1) * rows < vocabulary <= tiles * rows:
        message = f"{tiles} tiles of {rows} rows do not cover {vocabulary} rows of vocabulary"
        found.append(Violation("head_tiles", "policy.head_tiles", message))
    context = plan.workload.prompt_tokens + plan.workload.new_tokens
    if context > model.max_context:
        message = f"{context} tokens of a context of {model.max_context}"
        found.append(Violation("context", "workload", message))
    stated = plan.memory["device"]
    account = account_device(
        model, policy, plan.workload, DTYPE_BYTES[plan.dtype], stated.capacity_bytes
    )
    for purpose in sorted(stated.by_purpose.keys() | account.by_purpose.keys()):
        ours, theirs = account.by_purpose.get(purpose), stated.by_purpose.get(purpose)
        if ours != theirs:
            message = f"{purpose}: the plan says {theirs} bytes, the model {ours}"
            found.append(Violation("memory_account", "memory.device", message))
    if account.peak_bytes > stated.capacity_bytes:
        message = f"needs {account.peak_bytes:,} bytes of {stated.capacity_bytes:,}"
        found.append(Violation("memory_overflow", "memory.device", message))
    return found
