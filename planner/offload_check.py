"""The independent check of a placement's offload plan: every violation, each with its reason."""

from __future__ import annotations

import math

from planner.balance_simulator import check_fits
from planner.check import check_policy
from planner.documents import (
    BalanceFigures,
    DevicePolicy,
    ExpertPlacement,
    LayerPolicy,
    ModelSpec,
    Offload,
    Policy,
)
from planner.factors import Factors
from planner.memory import default_head_tiling, held_expert_bytes, slot_bytes
from planner.offload import offload_group, predict_device, rank_batch
from planner.offload_problem import DeviceCandidate
from planner.profiles import Profile
from planner.solve import inputs_of
from solvers.checker import Violation, check_schedule
from solvers.counting import counted
from solvers.errors import InputError
from solvers.outcome import Schedule
from solvers.registry import names

__all__ = ["check_offload", "check_placement_plan"]


def check_placement_plan(
    placement: ExpertPlacement, profile: Profile | None = None
) -> list[Violation]:
    """All violations of a placement and its offload plan, if it has one; an empty list where there
    is none.

    Parameters
    ----------
    placement
        A parsed placement.
    profile
        What its plan claims to be made from. Without it, memory and prediction are not recomputed.
    """
    offload, stated = placement.offload, _check_stated(placement)
    if offload is None:
        return stated
    if profile is None:
        return stated + check_offload(placement)
    try:
        check_fits(placement, profile.model)
    except InputError as error:
        return [*stated, Violation("model", "layers", str(error))]
    found, made_from = stated + check_offload(placement, profile.model), inputs_of(profile)
    for name in ("model", "hardware", "costs", "routing", "checkpoint", "store"):
        field = f"{name}_fingerprint" if name in ("checkpoint", "store") else name
        if getattr(offload.inputs, field) != getattr(made_from, field):
            message = f"made from another {name} than the profile's"
            found.append(Violation(f"stale_{name}", f"offload.inputs.{field}", message))
    return found or _check_predictions(placement, offload, profile)


def _check_stated(placement: ExpertPlacement) -> list[Violation]:
    """What a placement says of itself, as far as it can be known without the statistics."""
    found = []
    if not placement.method:
        found.append(Violation("method", "method", "nothing is said of what made it"))
    mean = placement.fitted.average_max_load
    gap = max(1 - placement.bound / mean, 0.0) if mean else 0.0
    if not math.isclose(placement.gap, gap, abs_tol=1e-9):
        message = f"{placement.gap:.4f} is not (average_max_load - bound) / average_max_load"
        found.append(Violation("gap", "gap", f"{message}, {gap:.4f}"))
    for name in ("fitted", "held_out"):
        figures: BalanceFigures = getattr(placement, name)
        mean, most = figures.average_max_load, figures.max_load
        # the fullest of D devices has a D-th of the load at least, and no mean is above its largest
        if not 1 / placement.devices - 1e-9 <= mean <= most + 1e-9:
            on = counted(placement.devices, "device")
            message = f"average_max_load {mean:.4f}, max_load {most:.4f} on {on}"
            found.append(Violation("load", name, f"{message} contradict each other"))
    return found


def check_offload(placement: ExpertPlacement, model: ModelSpec | None = None) -> list[Violation]:
    """What the document alone gives away, and with a model of the placement's layers, whether
    memory holds what the plan keeps there."""
    offload = placement.offload
    if offload is None:
        return []
    found = []
    try:
        rank_batch(placement, offload.workload, offload.batch_size)
    except InputError as error:
        found.append(Violation("group", "offload.batch_size", str(error)))
    for device, policy in enumerate(offload.devices):
        where = f"offload.devices.{device}"
        for one in check_policy(_alone(policy, offload)):
            place = one.where.removeprefix("policy.")
            found.append(Violation(one.reason, f"{where}.{place}", one.message))
        found += _check_own(placement.held(device), policy, where)
        if model is not None:
            found += _check_memory(policy, offload, model, where)
        for name in (policy.solver, *policy.chosen_over):
            if name not in names():
                found.append(Violation("solver", where, f"{name!r} is no solver"))
    return found


def _alone(policy: DevicePolicy, offload: Offload) -> Policy:
    """A device's policy as that of a model without anything but its MoE layers' experts."""
    layers = tuple(LayerPolicy(True, one.resident, one.prefetch) for one in policy.layers)
    return Policy(
        n_batches=1,
        batch_size=offload.batch_size,
        layers=layers,
        head_tile_rows=1,
        head_tiles=1,
        resident_head_tiles=1,
        slots=policy.slots,
        dense_slots=0,
        reserve=policy.reserve,
        eviction=policy.eviction,
        chunk_bytes=offload.chunk_bytes,
    )


def _check_own(
    held: tuple[tuple[int, ...], ...], policy: DevicePolicy, where: str
) -> list[Violation]:
    """A device's lists against the experts that are placed on it."""
    found, streams, on_demand = [], False, False
    for index, (experts, layer) in enumerate(zip(held, policy.layers, strict=True)):
        listed = {*layer.resident, *layer.prefetch}
        foreign = sorted(listed - set(experts))
        if foreign:
            message = f"expert {foreign[0]} is not placed on this device"
            found.append(Violation("foreign_expert", f"{where}.layers.{index}", message))
        streams = streams or len(layer.resident) < len(experts)
        on_demand = on_demand or len(listed) < len(experts)
    if streams and policy.slots < 1:
        found.append(Violation("slots", f"{where}.slots", "experts stream, but have no slot"))
    if on_demand and policy.slots and policy.reserve < 1:
        message = "copies on demand need a slot that prefetches leave to them"
        found.append(Violation("reserve_missing", f"{where}.reserve", message))
    return found


def _check_memory(
    policy: DevicePolicy, offload: Offload, model: ModelSpec, where: str
) -> list[Violation]:
    rows, _ = default_head_tiling(model, model.dtype_bytes)
    need = policy.slots * slot_bytes(model, rows, model.dtype_bytes)
    moe = [spec for spec in model.layers if spec.experts]
    for layer, spec in zip(policy.layers, moe, strict=True):
        need += len(layer.resident) * held_expert_bytes(spec)
    if need <= offload.memory_bytes:
        return []
    message = f"residents and slots need {need:,} bytes of {offload.memory_bytes:,}"
    return [Violation("memory_capacity", where, message)]


def _check_predictions(
    placement: ExpertPlacement, offload: Offload, profile: Profile
) -> list[Violation]:
    """What each device is said to take, against a replay of its policy."""
    costs, found = profile.costs, []
    try:
        group = offload_group(
            profile,
            placement,
            offload.workload,
            offload.memory_bytes,
            offload.batch_size,
            offload.chunk_bytes,
            offload.seed,
        )
    except InputError as error:
        return [Violation("not_recomputed", "offload.workload", str(error))]
    for device, policy in enumerate(offload.devices):
        where, slowed = f"offload.devices.{device}", policy.slowdown
        compute = max(slowed.prefill, slowed.decode)
        if slowed.copy > costs.copy_slowdown.value or compute > costs.compute_slowdown.value:
            message = "longer beside each other than was measured at most"
            found.append(Violation("slowdown", f"{where}.slowdown", message))
            continue
        candidate = DeviceCandidate(group, device)
        candidate.factors = Factors(slowed.copy, slowed.prefill, slowed.decode)
        choices = candidate.own.choices(policy.layers)
        schedule = Schedule(choices, policy.slots, 0, policy.reserve, policy.eviction)
        broken = list(check_schedule(candidate.problem("judge"), schedule))
        if broken:
            found += [Violation(one.reason, where, one.message) for one in broken]
            continue
        again = predict_device(candidate, schedule)
        if again != policy.predicted:
            message = f"the plan says {policy.predicted}, the replay {again}"
            found.append(Violation("prediction", f"{where}.predicted", message))
    return found
