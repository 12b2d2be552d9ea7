"""The independent check of a plan: every violation, each with its reason.

It recomputes memory from the model, rebuilds the solvers' problem and replays the policy on it
(``planner.recompute``); it shares no code with any solver.
"""

from __future__ import annotations

import math

from planner.documents import ModelSpec, Plan, Policy, document_hash
from planner.documents.timeline import on_compute
from planner.encode import DTYPE_BYTES
from planner.forms_check import check_allowed, check_forms
from planner.host import host_stays
from planner.kv import kv_stays
from planner.kv_check import PASSES_AHEAD, check_asked_place, check_batches, kv_regions
from planner.memory import default_head_tiling
from planner.objectives import OBJECTIVES
from planner.profiles import Profile
from planner.recompute import check_account, check_prediction
from planner.span import check_span
from planner.timeline_check import check_timeline
from solvers.checker import Violation
from solvers.counting import counted
from solvers.errors import MoeplanError
from solvers.registry import HOSTED, names

__all__ = ["Violation", "check_plan", "check_policy", "checked"]


def check_plan(
    plan: Plan, profile: Profile | None = None, *, replayed: bool = True
) -> list[Violation]:
    """All violations of a plan; an empty list where there is none.

    Parameters
    ----------
    plan
        A parsed plan.
    profile
        What it claims to be made from. Without it, memory and prediction are not recomputed and
        expert numbers are not held against the model.
    replayed
        Whether objective, bound and prediction are computed again, where nothing else is amiss.
    """
    found = check_policy(plan.policy)
    found += _check_workload(plan)
    found += _check_asked(plan)
    found += _check_numbers(plan)
    found += check_allowed(plan)
    found += check_timeline(plan, None if profile is None else profile.model)
    if profile is not None:
        found += _check_inputs(plan, profile)
        faults = check_forms(plan, profile)
        found += faults or _check_model(plan, profile.model)
        if profile.costs.raw is None and any(layer.raw for layer in plan.policy.layers):
            message = "experts are read as they are, and the store's are all compressed, or none"
            found.append(Violation("raw", "policy.layers", message))
        threads = profile.costs.threads
        if plan.policy.threads != (None if threads is None else threads.use):
            message = "not those that the profile was measured with"
            found.append(Violation("threads", "policy.threads", message))
        if replayed and not found:
            found += check_prediction(plan, profile)
    return found


def checked(plan: Plan, profile: Profile, who: str) -> Plan:
    """The same plan, of which a replay says what it said when it was made.

    Raises
    ------
    AssertionError
        If it has a violation, a fault of ``who`` made it.
    """
    violations = check_plan(plan, profile, replayed=False)
    if violations:
        raise AssertionError(f"the checker refuses a plan of {who}: {violations[0]}")
    return plan


def check_policy(policy: Policy) -> list[Violation]:
    """All violations that a policy alone gives away."""
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
            if layer.forms and max(experts, default=0) >= len(layer.forms):
                message = f"{name} expert {max(experts)}, and forms are of {len(layer.forms)}"
                found.append(Violation("item_range", where, message))
        if list(layer.resident) != sorted(layer.resident):
            found.append(Violation("resident_order", where, "resident experts do not ascend"))
        if list(layer.raw) != sorted(set(layer.raw)) or set(layer.raw) & set(layer.resident):
            message = "experts read as they are do not ascend, or are resident"
            found.append(Violation("raw", where, message))
        both = sorted(set(layer.resident) & set(layer.prefetch))
        if both:
            message = f"expert {both[0]} is resident and prefetched"
            found.append(Violation("resident_and_prefetch", where, message))
        if layer.predictor != "plan" and not layer.prefetch:
            message = f"{layer.predictor} has nothing to prefetch"
            found.append(Violation("predictor", where, message))
        if layer.waits and layer.predictor != "lookahead":
            message = "waits for names, and does not look ahead"
            found.append(Violation("predictor", where, message))
        if layer.predictor == "lookahead" and not layer.dense_resident:
            message = "the router that looks ahead is not resident"
            found.append(Violation("predictor", where, message))
    if policy.resident_head_tiles > policy.head_tiles:
        message = (
            f"{counted(policy.resident_head_tiles, 'resident tile')} of only {policy.head_tiles}"
        )
        found.append(Violation("head_tiles", "policy.resident_head_tiles", message))
    if policy.reserve > policy.slots:
        message = f"{counted(policy.reserve, 'slot')} reserved of only {policy.slots}"
        found.append(Violation("reserve", "policy.reserve", message))
    prefetches = any(layer.prefetch for layer in policy.layers)
    tiles_stream = policy.resident_head_tiles < policy.head_tiles
    if policy.slots < 1 and (prefetches or tiles_stream):
        message = "experts or head tiles stream, but have no slot"
        found.append(Violation("slots", "policy.slots", message))
    if policy.slots and policy.reserve < 1 and policy.eviction != "none":
        message = (
            f"with {policy.eviction} a copy on demand needs a slot that prefetches leave to it"
        )
        found.append(Violation("reserve_missing", "policy.reserve", message))
    if policy.dense_slots < 1 and not all(layer.dense_resident for layer in policy.layers):
        message = "dense parts stream, but have no slot"
        found.append(Violation("dense_slots", "policy.dense_slots", message))
    if policy.hold is not None and not policy.starts_stream:
        message = "copies ahead are held back, but no dense part streams"
        found.append(Violation("hold", "policy.hold", message))
    return [*found, *check_batches(policy)]


def _check_workload(plan: Plan) -> list[Violation]:
    """The group against the requests, and memory against what the policy keeps there."""
    policy, requests, found = plan.policy, plan.workload.requests, []
    n, b = policy.n_batches, policy.batch_size
    if b > requests or (n - 1) * b >= requests:
        message = (
            f"{counted(n, 'batch')} of {b:,} are never filled by {counted(requests, 'request')}"
        )
        found.append(Violation("group", "policy.n_batches", message))
    streamed = sum(not layer.dense_resident for layer in policy.layers)
    most = PASSES_AHEAD * len(policy.layers) + 1 if streamed else 0
    if policy.dense_slots > most:
        message = f"{counted(policy.dense_slots, 'slot')}, of which {most} could ever be used"
        found.append(Violation("dense_slots", "policy.dense_slots", message))
    if (plan.inputs.store_fingerprint is None) != (plan.locations.store is None):
        message = "a store's fingerprint and place: one is there without the other"
        found.append(Violation("store", "inputs.store_fingerprint", message))
    for tier in sorted(plan.memory.keys() - {"device"}):
        message = "no plan keeps anything there yet"
        found.append(Violation("memory_tier", f"memory.{tier}", message))
    stated = plan.memory["device"].by_purpose
    kept = {
        "dense": len(policy.layers) - streamed,
        "dense_slots": policy.dense_slots,
        "experts": sum(len(layer.resident) for layer in policy.layers),
        "slots": policy.slots,
        "kv": kv_regions(policy),
        **dict.fromkeys(("hidden", "workspace", "logits", "embedding"), 1),
    }
    for purpose, count in kept.items():
        if purpose in stated and (count > 0) != (stated[purpose] > 0):
            message = f"{purpose}: {stated[purpose]:,} bytes for {count} of them"
            found.append(Violation("memory_account", "memory.device", message))
    return found


def _check_asked(plan: Plan) -> list[Violation]:
    """How it was asked for against what it is."""
    asked, policy = plan.asked, plan.policy
    if asked is None:
        return []
    found: list[Violation] = []
    if asked.solver not in (*names(), *HOSTED):
        found.append(Violation("solver", "asked.solver", f"{asked.solver!r} is no solver"))
    found += check_asked_place(asked, policy)
    own = {layer.predictor for layer in policy.layers} - {"plan"}
    if own - ({"lookahead"} if asked.predictors is None else set()) and not asked.predictors:
        found.append(Violation("asked", "asked.predictors", "a layer has one, unasked"))
    seconds = {*OBJECTIVES} - {plan.objective_name}
    if asked.then is not None and asked.then not in seconds:
        message = f"{asked.then!r} is no second objective"
        found.append(Violation("asked", "asked.then", message))
    return found


def _check_numbers(plan: Plan) -> list[Violation]:
    """Objective, bound, gap, predicted totals and memory against each other."""
    found: list[Violation] = []
    for tier, account in plan.memory.items():
        if account.peak_bytes > account.capacity_bytes:
            message = f"needs {account.peak_bytes:,} bytes of {account.capacity_bytes:,}"
            found.append(Violation("memory_capacity", f"memory.{tier}", message))
    if plan.policy.host is not None and plan.device != "cuda":
        message = f"experts on a host, where the device is {plan.device}"
        found.append(Violation("host", "policy.host", message))
    known = (*names(), *HOSTED)
    for where, name in (("solver", plan.solver), *(("chosen_over", n) for n in plan.chosen_over)):
        if name not in known:
            found.append(Violation("solver", where, f"{name!r} is no solver"))
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
    return found + _check_totals(plan)


def _check_totals(plan: Plan) -> list[Violation]:
    """The sums of a prediction against each other, the workload and the objective."""
    found: list[Violation] = []
    totals, workload, where = plan.predicted.totals, plan.workload, "predicted.totals"
    if totals.prefill_ns + totals.decode_ns != totals.wall_ns:
        message = "prefill and decode do not add up to the wall time"
        found.append(Violation("totals_inconsistent", where, message))
    by_kind = totals.duration_by_kind_ns
    computed = sum(ns for kind, ns in by_kind.items() if on_compute(kind))
    # each kind is an average over runs and was cut to whole ns by itself
    if abs(computed - totals.wall_ns) > len(by_kind) + 2:
        message = "computation and waits do not add up to the wall time"
        found.append(Violation("totals_inconsistent", f"{where}.duration_by_kind_ns", message))
    for name, waits in (
        ("bubble_inter_layer_ns", by_kind.get("wait_dense", 0) + by_kind.get("wait_kv", 0)),
        ("bubble_intra_layer_ns", by_kind.get("wait_expert", 0) + by_kind.get("wait_head", 0)),
    ):
        if getattr(totals, name) != waits:
            message = f"{getattr(totals, name):,} ns, the waits of their kind {waits:,}"
            found.append(Violation("bubbles", f"{where}.{name}", message))
    tokens = workload.requests * workload.new_tokens
    for name, made, spent in (
        ("tokens_per_second", tokens, totals.wall_ns),
        ("decode_tokens_per_second", tokens - workload.requests, totals.decode_ns),
    ):
        rate = getattr(plan.predicted, name).value
        if not math.isclose(rate * spent, made * 1e9 if spent else 0.0, rel_tol=1e-6):
            message = "does not follow from the time and the workload"
            found.append(Violation("rate_inconsistent", f"predicted.{name}", message))
    counted = plan.predicted.objective
    name = "objective" if counted is None else "predicted.objective"
    if (counted is None) != (plan.predicted.credit_ns is None):
        # plans of earlier versions have the credit alone, which they were not chosen by
        message = "a link's credit and the objective that counts it go together: plan again"
        found.append(Violation("objective_credit", "predicted.objective", message))
    elif plan.objective_name == "throughput" and not math.isclose(
        plan.promised * tokens, totals.wall_ns, rel_tol=1e-6, abs_tol=2.0
    ):
        message = f"{plan.promised} ns a token do not make the wall time"
        found.append(Violation("objective_inconsistent", name, message))
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
    why = host_stays(profile.hardware, profile.costs)
    if plan.policy.host is not None and why is not None:
        found.append(Violation("host", "policy.host", why))
    if plan.device != profile.hardware.device:
        message = f"plans for {plan.device}, the profile is of {profile.hardware.device}"
        found.append(Violation("device", "device", message))
    return found


def _check_model(plan: Plan, model: ModelSpec) -> list[Violation]:
    """The policy against the model, and the account of memory, recomputed."""
    policy, found = plan.policy, []
    if len(policy.layers) != len(model.layers):
        message = f"{counted(len(policy.layers), 'layer')}, the model has {len(model.layers)}"
        return [Violation("layer_count", "policy.layers", message)]
    streams = False
    on_demand = any(layer.predictor != "plan" for layer in policy.layers)
    first = next((spec.index for spec in model.layers if spec.experts), 0)
    if policy.layers[first].predictor != "plan":
        message = "no router comes before the first"
        found.append(Violation("predictor", f"policy.layers.{first}", message))
    pairs = list(zip(policy.layers, model.layers, strict=True))
    for layer, spec in pairs:
        where = f"policy.layers.{spec.index}"
        if model.encoder and layer.predictor != "plan":
            message = "with an encoder prefetches follow the lists"
            found.append(Violation("predictor", where, message))
        for name in ("resident", "prefetch", "raw"):
            experts: tuple[int, ...] = getattr(layer, name)
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
    rows, tiles = default_head_tiling(model, DTYPE_BYTES[plan.dtype])
    if (policy.head_tile_rows, policy.head_tiles) != (rows, tiles):
        message = (
            f"{counted(policy.head_tiles, 'tile')} of {counted(policy.head_tile_rows, 'row')}; "
            f"{counted(model.vocab_size, 'row')} of vocabulary make {tiles} of {rows}"
        )
        found.append(Violation("head_tiles", "policy.head_tiles", message))
    most = PASSES_AHEAD * (sum(spec.experts for spec in model.layers) + tiles)
    if policy.slots > most:
        message = f"{counted(policy.slots, 'slot')}, of which {most:,} could ever be used"
        found.append(Violation("slots", "policy.slots", message))
    streamed = (len(layer.resident) < spec.experts for layer, spec in pairs)
    if policy.host is not None and not any(streamed):
        found.append(Violation("host", "policy.host", "no expert is left to compute there"))
    if policy.kv is not None and (why := kv_stays(model, plan.device)):
        found.append(Violation("kv", "policy.kv", why))
    context = plan.workload.prompt_tokens + plan.workload.new_tokens
    if context > model.max_context:
        message = f"{counted(context, 'token')} of a context of {model.max_context}"
        found.append(Violation("context", "workload", message))
    try:
        check_span(model, plan.workload)
    except MoeplanError as error:
        found.append(Violation("attention_window", "workload", str(error)))
    if not any(one.reason == "item_range" for one in found):  # who is not there has no bytes
        found += check_account(plan, model)
    return found
