"""A plan's numbers, computed again from its inputs: memory, objective, bound and prediction.

Everything follows from the profile, the workload, the policy, the budget, the seed and the
``slowdown`` that the prediction states. What does not: the rivals' objectives and the notes, since
the rivals' policies are not in the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from planner.candidate import Candidate
from planner.documents import ModelSpec, Plan, Timeline
from planner.encode import DTYPE_BYTES, Encoding, schedule_of
from planner.factors import Factors
from planner.form_costs import copies_slowdown
from planner.memory import account_device
from planner.objectives import objective_named
from planner.overlap import most_beside_writes
from planner.profiles import Profile
from planner.scenarios import Sequences, split_sequences
from solvers.checker import Violation, check_schedule
from solvers.counting import counted
from solvers.errors import InputError

_KV_OTHERWISE = (
    "keys and values lie below, which earlier versions reckoned otherwise (what is copied and "
    "written, copies beside writes, bounds): plan again"
)
_LOOKS_OTHERWISE = (
    "layers look ahead, and earlier versions did not count what asking a router takes: plan again"
)

__all__ = ["candidate_of", "check_account", "check_prediction"]


def check_account(plan: Plan, model: ModelSpec) -> list[Violation]:
    """The account of device memory against the model's, purpose by purpose."""
    found, stated = [], plan.memory["device"]
    account = account_device(
        model, plan.policy, plan.workload, DTYPE_BYTES[plan.dtype], stated.capacity_bytes
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


def check_prediction(plan: Plan, profile: Profile) -> list[Violation]:
    """Objective, bound and prediction against a replay of the policy.

    Parameters
    ----------
    plan
        One whose policy, workload and memory have no violation.
    profile
        What it was made from.
    """
    costs, slowed = profile.costs, plan.predicted.slowdown
    compute, raw = costs.compute_slowdown.value, 1.0
    if costs.raw is not None:
        compute = max(compute, costs.raw.compute_slowdown.value)
        raw = costs.raw.copy_slowdown.value
    try:
        candidate = candidate_of(plan, profile)
    except InputError as error:
        return [Violation("not_recomputed", "predicted", str(error))]
    beside_writes = most_beside_writes(candidate.encoding, candidate.shapes("fit"))
    for name, value, most in (
        ("copy", slowed.copy, copies_slowdown(costs, plan.policy.expert_forms) + beside_writes),
        ("prefill", slowed.prefill, compute),
        ("decode", slowed.decode, compute),
        ("raw", slowed.raw, raw),
    ):
        if value > most:
            message = f"{value} times as long, {most} were measured at most"
            return [Violation("slowdown", f"predicted.slowdown.{name}", message)]
    try:
        schedule = schedule_of(plan.policy)
        problem = candidate.problem("judge")
        found = list(check_schedule(problem, schedule))
        if found:
            return found
        again = candidate.figures(schedule)
    except InputError as error:
        return [Violation("not_recomputed", "predicted", str(error))]
    pairs = [
        ("objective", plan.objective, again.objective),
        ("bound", plan.bound, again.bound),
        ("bound_class", plan.bound_class, again.bound_class),
        *_pairs("predicted", plan.predicted, again.predicted),
    ]
    found = [
        Violation("prediction", where, f"the plan says {stated}, the replay {computed}")
        for where, stated, computed in pairs
        if not _same(stated, computed)
    ]
    if plan.policy.kv is not None and found:
        # nothing tells an edit from what an earlier version reckoned: one line for either
        return [found[0]._replace(message=f"{found[0].message}; {_KV_OTHERWISE}")]
    if any(layer.predictor == "lookahead" for layer in plan.policy.layers) and found:
        return [found[0]._replace(message=f"{found[0].message}; {_LOOKS_OTHERWISE}")]
    return found


def candidate_of(plan: Plan, profile: Profile) -> Candidate:
    """The n and b of a plan, as they were while solving."""
    policy, workload = plan.policy, plan.workload
    raw = tuple(frozenset(layer.raw) for layer in policy.layers)
    error = plan.expert_error
    profile = replace(
        profile, forms=policy.expert_forms, allowed_ppb=0 if error is None else error.allowed_ppb
    )
    sequences = Sequences.of(profile.arrays, profile.routing.experts)
    slowed = plan.predicted.slowdown
    return Candidate(
        Encoding(
            profile,
            workload,
            policy.n_batches,
            policy.batch_size,
            plan.memory["device"].capacity_bytes,
            policy.chunk_bytes,
            policy.kv,
            raw if any(raw) else (),
        ),
        sequences,
        split_sequences(sequences.count, plan.seed),
        plan.seed,
        objective_named(plan.objective_name, workload),
        Factors(slowed.copy, slowed.prefill, slowed.decode, slowed.raw),
    )


def _pairs(where: str, stated: Any, computed: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each number of a prediction with its recomputed one; a timeline's first row that differs."""
    if isinstance(stated, Timeline):
        rows, ours = list(stated.events()), list(computed.events())
        if len(rows) != len(ours):
            yield where, counted(len(rows), "row"), counted(len(ours), "row")
        for index, (row, own) in enumerate(zip(rows, ours, strict=False)):
            if row != own:
                yield f"{where}.{index}", tuple(row), tuple(own)
                return
    elif is_dataclass(stated):
        for field in fields(stated):
            name = field.name
            yield from _pairs(f"{where}.{name}", getattr(stated, name), getattr(computed, name))
    elif isinstance(stated, dict):
        for key in sorted(stated.keys() | computed.keys()):
            yield f"{where}.{key}", stated.get(key), computed.get(key)
    else:
        yield where, stated, computed


def _same(stated: Any, computed: Any) -> bool:
    # floats of another machine's libraries may differ in their last digits
    if isinstance(stated, float) and isinstance(computed, float):
        return math.isclose(stated, computed, rel_tol=1e-9)
    return bool(stated == computed)
