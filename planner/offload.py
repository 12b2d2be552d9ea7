"""From a profile and a placement to one plan for all of its devices.

Each device is a problem of its own (``planner.offload_problem``): which of its experts stay, which
are copied ahead, in how many slots. As for one device the best of a solver's and the rules'
policies wins on the sequences that choose, and what is said of it comes from those that judge, both
with the credit of a link that has one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from planner.balance_simulator import check_fits
from planner.credit import credit_of
from planner.documents import (
    DevicePolicy,
    DevicePrediction,
    ExpertPlacement,
    Offload,
    Slowdown,
    Workload,
)
from planner.encode import Encoding
from planner.entries import BASELINES, Entry, run_solver, stage
from planner.factors import Factors
from planner.offload_problem import DeviceCandidate, DeviceGroup
from planner.profiles import Profile
from planner.scenarios import Sequences, split_sequences
from planner.sizes import typed_size
from planner.solve import inputs_of
from solvers.counting import counted
from solvers.errors import BudgetError, OptionError, UnsupportedError
from solvers.layout import smallest_capacity
from solvers.outcome import Schedule, StageChoice, Stop
from solvers.registry import Feature, Limits, Progress, load_runnable
from solvers.replay import replay

__all__ = ["make_offload", "offload_group", "predict_device", "rank_batch"]

_CHUNK_BYTES = 1 << 20
_WORK_PER_SECOND = 0.1
"""CP-SAT's deterministic work for each second of the time limit, over all devices."""


def make_offload(
    profile: Profile,
    placement: ExpertPlacement,
    workload: Workload,
    *,
    memory_bytes: int,
    batch_size: int | None = None,
    solver: str = "cpsat",
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExpertPlacement:
    """The placement with what each device keeps and copies.

    Parameters
    ----------
    profile
        Machine, model, costs and routing; every device is like its machine.
    placement
        Where experts lie; an ``offload`` of its own is replaced.
    workload
        On all devices together.
    memory_bytes
        For experts, on each device.
    batch_size
        Sequences that one device runs at a time; None: all of its own.
    solver, time_limit_seconds, seed, progress
        As for ``planner.solve.make_plan``; the limit is for all devices together.

    Raises
    ------
    DocumentError
        If the placement is not for the profile's model.
    BudgetError
        If the memory is too small for a device; it names the smallest that works for all.
    OptionError
        If an option is unknown or out of range, the workload exceeds the model's context, or the
        profile allows experts an error.
    UnsupportedError
        If the model does not run on several devices.
    """
    backend = load_runnable(solver)
    if profile.allowed_ppb:
        raise OptionError(
            "an allowed error has no effect on several devices: their experts are as in the "
            "checkpoint; plan with the profile as it was loaded"
        )
    if time_limit_seconds <= 0:
        raise OptionError(f"the time limit is {time_limit_seconds} seconds; give a positive one")
    batch = rank_batch(placement, workload, batch_size)
    group = offload_group(profile, placement, workload, memory_bytes, batch, _CHUNK_BYTES, seed)
    _check_memory(group, memory_bytes)
    began = time.monotonic()
    policies = []
    for device in range(placement.devices):
        candidate = DeviceCandidate(group, device)
        # what earlier devices left of their shares is the later ones'
        share = (device + 1) / placement.devices * time_limit_seconds
        limits = Limits(
            time_limit_seconds * _WORK_PER_SECOND / placement.devices,
            max(share - (time.monotonic() - began), 0.1),
            seed,
        )
        told = None if progress is None else _told(progress, device, placement.devices)
        searching = Feature.BOUND in backend.features
        policies.append(_policy(candidate, solver, limits, told, searching=searching))
    return replace(
        placement,
        offload=Offload(
            inputs=inputs_of(profile),
            workload=workload,
            batch_size=batch,
            memory_bytes=memory_bytes,
            chunk_bytes=_CHUNK_BYTES,
            devices=tuple(policies),
            seed=seed,
        ),
    )


def rank_batch(placement: ExpertPlacement, workload: Workload, batch_size: int | None) -> int:
    """Sequences that one device runs at a time.

    Raises
    ------
    OptionError
        If they are more than any device gets.
    """
    most = -(-workload.requests // placement.devices)
    if batch_size is not None and batch_size > most:
        raise OptionError(
            f"batches of {counted(batch_size, 'sequence')} have no effect: a device gets at most "
            f"{most}"
        )
    return batch_size or most


def offload_group(
    profile: Profile,
    placement: ExpertPlacement,
    workload: Workload,
    memory_bytes: int,
    batch_size: int,
    chunk_bytes: int,
    seed: int,
) -> DeviceGroup:
    """The devices of a placement, ready to be solved or judged.

    Raises
    ------
    DocumentError, OptionError, UnsupportedError
        As ``make_offload``.
    """
    model = profile.model
    check_fits(placement, model)
    if model.encoder:
        raise UnsupportedError(
            f"{model.name}: an encoder-decoder cannot run on several devices yet"
        )
    context = workload.prompt_tokens + workload.new_tokens
    if context > model.max_context:
        raise OptionError(
            f"{workload.prompt_tokens} prompt and {counted(workload.new_tokens, 'new token')} "
            f"exceed the model's context of {model.max_context}"
        )
    if workload.attention_window is not None:
        raise UnsupportedError("an attention window cannot be had on several devices yet")
    sequences = Sequences.of(profile.arrays, profile.routing.experts)
    return DeviceGroup(
        placement,
        Encoding(profile, workload, placement.devices, batch_size, memory_bytes, chunk_bytes),
        sequences,
        split_sequences(sequences.count, seed),
        seed,
    )


def _check_memory(group: DeviceGroup, memory_bytes: int) -> None:
    encoding = group.encoding
    whole = encoding.stages(Factors())
    least = [smallest_capacity(own.stages(whole), encoding.slot_bytes) for own in group.own]
    if memory_bytes < max(least):
        raise BudgetError(
            f"{memory_bytes:,} bytes for experts on each device are too few: the smallest memory "
            f"that works is {max(least):,} bytes ({typed_size(max(least))}), one expert at a time "
            f"on device {least.index(max(least))}",
            max(least),
        )


def _told(progress: Progress, device: int, devices: int) -> Progress:
    of = f"device {device} (of {devices})"
    return lambda name, objective, bound: progress(f"{name}, {of}", objective, bound)


def _policy(
    candidate: DeviceCandidate,
    solver: str,
    limits: Limits,
    progress: Progress | None,
    *,
    searching: bool,
) -> DevicePolicy:
    """The best policy of one device, judged."""
    if not candidate.own.count:
        nothing = (StageChoice(),) * len(candidate.problem("judge").stages)
        empty = Schedule(nothing, 0, 0, 0)
        return _document(Entry.of(solver, candidate, empty, Stop.RULE), [])
    problem = candidate.problem("fit")
    first = load_runnable("frequency").solve(problem, limits).schedule
    if first is None:
        raise AssertionError("no schedule where one slot fits")
    candidate.set_factors(first)
    stage(progress, solver)
    best = run_solver(solver, candidate, limits, None, progress)
    rivals = []
    for at, name in enumerate(BASELINES, 1):
        if name != solver:
            stage(progress, f"comparing with {name}, {at} of {len(BASELINES)}")
            found = load_runnable(name).solve(candidate.problem("fit"), limits).schedule
            if found is not None:
                rivals.append(Entry.of(name, candidate, found, Stop.RULE))
    if searching:
        closest = min(rivals, key=lambda entry: entry.chosen_value)
        if closest.chosen_value < best.chosen_value:
            rivals = [best, *(rival for rival in rivals if rival is not closest)]
            best = closest
    stage(progress, "judging on sequences that were kept apart")
    return _document(best, rivals)


def _document(best: Entry, rivals: Sequence[Entry]) -> DevicePolicy:
    candidate, schedule = _own(best), best.schedule
    if schedule.eviction == "belady":
        raise AssertionError(f"{best.solver} made a plan that knows the routing")
    return DevicePolicy(
        layers=candidate.own.kept(schedule),
        slots=schedule.slots,
        reserve=schedule.reserve,
        eviction=schedule.eviction,
        solver=best.solver,
        slowdown=Slowdown(*candidate.factors),
        predicted=predict_device(candidate, schedule),
        chosen_over={one.solver: predict_device(_own(one), one.schedule).wall_ns for one in rivals},
    )


def _own(entry: Entry) -> DeviceCandidate:
    """What an entry of a device is of."""
    return cast(DeviceCandidate, entry.candidate)


def predict_device(candidate: DeviceCandidate, schedule: Schedule) -> DevicePrediction:
    """What a schedule takes for the whole workload, on the judging sequences, with the credit of a
    link that has one; runs are averaged."""
    problem, credit = candidate.problem("judge"), credit_of(candidate.encoding)
    result, weight = replay(problem, schedule, credit=credit), problem.scenarios.weight
    runs = problem.scenarios.passes // len(candidate.shapes("judge"))
    waits = result.wait_item_ns.sum(axis=1)
    wall, wait, copied = (
        int((each * weight).sum()) // runs for each in (result.pass_ns, waits, result.copied_bytes)
    )
    return DevicePrediction(wall, wait, copied, None if credit is None else credit.depth_ns)
