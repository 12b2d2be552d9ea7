"""How much copies and computation lie beside each other, and so slow each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from planner.encode import Encoding
from planner.factors import Factors
from planner.form_costs import copies_slowdown
from planner.scenarios import PassShape
from solvers.foresight import asking
from solvers.outcome import Schedule
from solvers.problem import Problem
from solvers.replay import Replay, replay

__all__ = ["is_raw", "most_beside_writes", "overlap"]

Int64 = npt.NDArray[np.int64]


def overlap(
    encoding: Encoding,
    problem_of: Callable[[], Problem],
    shapes: tuple[PassShape, ...],
    schedule: Schedule,
    otherwise: Factors,
) -> Factors:
    """The factors of a schedule, from a replay.

    Parameters
    ----------
    encoding
        What is planned.
    problem_of
        Makes the passes to look at; not called where nothing slows anything.
    shapes
        The passes of one run of them.
    schedule
        What runs.
    otherwise
        Where nothing slows anything.
    """
    costs = encoding.profile.costs
    slow_copy = copies_slowdown(costs, encoding.profile.forms)
    slow_compute = costs.compute_slowdown.value
    raw_copy, raw_compute = 1.0, slow_compute
    if encoding.raw:
        raw_copy = encoding.raw_copies.copy_slowdown.value
        raw_compute = encoding.raw_copies.compute_slowdown.value
    lost, starts = _beside_writes(encoding, shapes)
    if slow_copy == slow_compute == raw_copy == raw_compute == 1.0 and not lost.any():
        return otherwise
    problem = problem_of()
    result = replay(problem, schedule, record=bool(encoding.raw))
    weight = problem.scenarios.weight
    # what the host computes the device does not
    compute = (problem.scenarios.compute_ns - result.spared_ns).sum(axis=1) * weight
    streams = np.array([not choice.start_resident for choice in schedule.stages])
    if problem.scenarios.start_lead_ns is not None:
        compute = compute + (problem.scenarios.start_lead_ns * streams).sum(axis=1) * weight
    if problem.scenarios.asking_ns is not None:
        asked = [*asking(problem, schedule)]
        compute = compute + problem.scenarios.asking_ns[:, asked].sum(axis=1) * weight
    channel = result.busy_ns.sum(axis=1) * weight
    waits = (result.wait_start_ns.sum(axis=1) + result.wait_item_ns.sum(axis=1)) * weight
    # compute waits for nothing but the channel: the rest of its time lies beside computation
    beside = np.maximum(channel - waits, 0)
    prefill = np.array([shape.phase == "prefill" for shape in shapes])
    prefill = np.tile(prefill, problem.scenarios.passes // len(shapes))
    raw = _raw_ns(encoding, problem, result) * weight

    def share(of: Int64, mask: npt.NDArray[np.bool_]) -> float:
        return min(float(beside[mask].sum()) / max(float(of[mask].sum()), 1.0), 1.0)

    def slowed(mask: npt.NDArray[np.bool_]) -> float:
        mixed = float(raw[mask].sum()) / max(float(channel[mask].sum()), 1.0)
        slow = slow_compute + min(mixed, 1.0) * (raw_compute - slow_compute)
        return 1.0 + share(compute, mask) * (slow - 1.0)

    copying = share(channel, np.ones_like(prefill))
    runs = problem.scenarios.passes // len(shapes)
    later, read = (runs * one[:, streams[:-1]].sum(axis=1) for one in (lost, starts))
    first = prefill[: len(shapes)]
    beside_writes = sum(
        float(later[own].sum()) * share(compute, np.tile(own, runs)) for own in (first, ~first)
    )
    # each start unit that streams is read once a pass
    alone = max(float(channel.sum()) / otherwise.copy, float(read.sum()), 1.0)
    return Factors(
        1.0 + copying * (slow_copy - 1.0) + beside_writes / alone,
        slowed(prefill),
        slowed(~prefill),
        1.0 + copying * (raw_copy - 1.0),
    )


def _beside_writes(encoding: Encoding, shapes: tuple[PassShape, ...]) -> tuple[Int64, Int64]:
    """[passes, stages but the last], by weight: what copies lose beside writes of keys and values,
    where the channel reads all the while, and what the start units take to copy, alone."""
    writes, starts = encoding.profile.costs.kv_writes, encoding.grid.starts[:-1]
    lost, read = (np.zeros((len(shapes), len(starts)), dtype=np.int64) for _ in range(2))
    if encoding.kv is None or writes is None or writes.lost is None:
        return lost, read
    for index, shape in enumerate(shapes):
        copied = encoding.kept.copied(shape)
        for stage, at in enumerate(starts):
            if at is not None:
                lost[index, stage] = shape.weight * encoding.lost_beside_ns(shape, *at)
                unit = encoding.start_unit(at, copied, 1.0)
                read[index, stage] = shape.weight * unit.copy_ns
    return lost, read


def most_beside_writes(encoding: Encoding, shapes: tuple[PassShape, ...]) -> float:
    """The most that writes may add to the factor of copies: all made while the channel reads, and
    nothing read but the start units of the stage for which that tells most."""
    lost, starts = (one.sum(axis=0).tolist() for one in _beside_writes(encoding, shapes))
    return max(
        (later / max(read, 1) for later, read in zip(lost, starts, strict=True)), default=0.0
    )


def _raw_ns(encoding: Encoding, problem: Problem, result: Replay) -> Int64:
    """[passes]: time in which the channel copies experts as they are."""
    found = np.zeros(problem.scenarios.passes, dtype=np.int64)
    for part in result.copies:
        if part.pass_index < len(found) and is_raw(encoding, part.stage, part.item):
            found[part.pass_index] += part.end_ns - part.start_ns
    return found


def is_raw(encoding: Encoding, stage: int, item: int) -> bool:
    """Whether an item is copied as it is."""
    return stage < len(encoding.raw) and item in encoding.raw[stage]
