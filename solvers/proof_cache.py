"""Recomputes the bound of a cache that knows the demand, from integer multipliers.

A *use* is a start unit that a stage waits for, or an item that it demands. Units that are resident
are there in all runs. A use of any other one that the device works on is copied for, or its unit
lay in a slot all the while since its last use in the same run; a start unit never does, as it gives
its slot back when the lead has ended. Whatever is copied ahead, for whatever reason, is copied
after the stage has last had its turn and by the end of the pass that uses it: so in the passes from
the last use to this one, or, where nothing that was copied ahead may stay unused in a cache, in
this pass or the one before.

    time    the duration of a pass >= what its channel copies, >= its computation, and each stage's
            >= what is left of it without items, and what the host works on, one after another
    room    at the start of each stage, the bytes of residents and of slots that keep an item
            <= capacity

Let w be the weights, a (0 <= a <= w) multipliers of the passes' channel, b (0 <= b <= w - a) of
what the device computes in a stage, w - a - b the host's, and m >= 0 (time a byte) of the room at a
stage's start. Then

    w x durations >= a x copied + b x (rest + device's work) + (w - a - b) x (rest + host's work)

and each use of a unit that is not resident adds one of three to the right: o c, if it is copied (c
is what that takes, o the least a of the passes in which it may be made); (w - a - b) h - b x, if
the host takes it (x is the device's work, then saved, h the host's); nothing, if its unit was
kept, which takes m times a slot's bytes, summed over the stages' starts since the last use, of the
capacity's m. A resident takes m times its bytes at all stages' starts. All that is taken is no more
than m x capacity, so that with the least of the three for each use, and for each unit the lesser of
being resident and of all its uses,

    w x durations >= (w - a) rest + b x + sum of those - m x capacity

Without a host the second does not occur, and b = w - a. Start units and items of sequential stages
are never the host's. With time idle as the measure computation (and what copied start units add to
it) is taken off instead, with bytes the copies' bytes stand for their time. A correction
(``Problem.correction_ns``) is added for each item that is not resident. Nothing but Python's
integers: neither the rule that found the multipliers nor its arithmetic has to be believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from solvers.errors import OptionError
from solvers.outcome import CacheProof
from solvers.problem import Problem
from solvers.proof_arrays import refuse_arrays

__all__ = ["proven_cached"]

_START = -1
"""Item number of a start unit."""


class _Use(NamedTuple):
    """``since`` and ``here`` count stages through the run; ``since`` is None where no slot can have
    kept the unit. ``first`` is the first pass in which it may have been copied."""

    number: int
    since: int | None
    here: int
    first: int
    stage: int
    item: int
    cost: int


def proven_cached(problem: Problem, proof: CacheProof) -> int:
    """What the multipliers prove, rounded down, in the unit of the problem's measure.

    Raises
    ------
    OptionError
        If a multiplier is out of its range, or the arrays do not have the problem's shape.
    """
    _refuse_malformed(problem, proof)
    scenarios, stages = problem.scenarios, problem.stages
    scale = proof.scale
    host = scenarios.host_work_ns
    weight = scenarios.weight.tolist()
    channel, device, room = proof.channel.tolist(), proof.device.tolist(), proof.memory.tolist()
    compute, longer = scenarios.compute_ns.tolist(), problem.start_lead_ns.tolist()
    total = -problem.capacity_bytes * sum(map(sum, room))
    for index, row in enumerate(compute):
        for stage, all_ns in enumerate(row):
            if problem.measure == "time":
                works = int(scenarios.work_ns[index, stage].sum())
                left = weight[index] * scale - channel[index]
                alone = host is None or stages[stage].sequential
                total += left * (all_ns - works)
                total += (left if alone else device[index][stage]) * works
            elif problem.measure == "idle":
                total -= channel[index] * (all_ns + longer[index][stage])
    units = _residents(problem, sum(map(sum, room)))
    uses = dict.fromkeys(units, 0)
    for run in scenarios.runs():
        sums = [0]
        for value in (one for index in run for one in room[index]):
            sums.append(sums[-1] + value)
        for use in _uses(problem, run, ahead=proof.ahead):
            index, stage, item = use.number, use.stage, use.item
            claimed = min(channel[use.first : index + 1]) * use.cost
            if use.since is not None:
                slot = problem.slot_bytes * (sums[use.here + 1] - sums[use.since + 1])
                claimed = min(claimed, slot)
            if host is not None and item != _START and not stages[stage].sequential:
                own = device[index][stage]
                rest = weight[index] * scale - channel[index] - own
                hosted = rest * int(host[index, stage, item])
                hosted -= own * int(scenarios.work_ns[index, stage, item])
                claimed = min(claimed, hosted)
            uses[stage, item] += claimed
    if problem.measure == "time":
        for at, item in np.argwhere(problem.correction).tolist():
            uses[at, item] += int(problem.correction[at, item]) * scale
    total += sum(min(stays, uses[unit]) for unit, stays in units.items())
    return total // scale


def _residents(problem: Problem, room: int) -> dict[tuple[int, int], int]:
    """Of all units what they take of the capacity's multipliers, ``room`` in all, as residents."""
    return {
        (at, item): room * unit.held_bytes
        for at, stage in enumerate(problem.stages)
        for item, unit in ((_START, stage.start), *enumerate(stage.items))
        if unit is not None
    }


def _uses(problem: Problem, run: range, *, ahead: bool) -> Iterator[_Use]:
    """All uses of a run, in order."""
    last: dict[tuple[int, int], int] = {}
    demand, short = problem.scenarios.demand, problem.scenarios.shortened
    count = len(problem.stages)
    for index in run:
        for at, stage in enumerate(problem.stages):
            here = (index - run.start) * count + at
            start = stage.start_in(short[index])
            needed = [(item, stage.items[item]) for item in demand[index, at].nonzero()[0].tolist()]
            for item, unit in [(_START, start), *needed] if start is not None else needed:
                since = last.get((at, item))
                first = run.start + (0 if since is None else since // count)
                cost = unit.size_bytes if problem.measure == "bytes" else unit.copy_ns
                first = first if ahead else max(first, index - 1)
                kept = None if item == _START else since
                yield _Use(index, kept, here, first, at, item, cost)
                last[at, item] = here


def _refuse_malformed(problem: Problem, proof: CacheProof) -> None:
    shape = problem.scenarios.lead_ns.shape
    refuse_arrays(proof, {"channel": shape[:1], "device": shape, "memory": shape})
    if proof.scale < 1:
        raise OptionError("a proof's scale is out of range")
    if problem.scenarios.host_work_ns is not None and problem.measure != "time":
        raise OptionError(f"beside a host nothing is proven of {problem.measure}")
    weight = problem.scenarios.weight.astype(object) * proof.scale
    left = weight[:, None] - proof.channel[:, None] - proof.device
    if min(left.ravel(), default=0) < 0 or min(weight - proof.channel, default=0) < 0:
        raise OptionError("a proof's channel and device are more than a pass's weight")
