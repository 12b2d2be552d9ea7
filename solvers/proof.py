"""Recomputes a bound from the problem and integer multipliers, without any solver.

For any schedule without eviction caching, on any routing order that a pass may meet, let r and q be
1 for what is resident (items, start units), K the slots for items, R the bytes of start slots, and
for each stage of each pass t its duration, y the copy time spent by its end on later stages, and u
the part of y that is items'. C is the stage's computation, B what a start unit that streams adds to
it, w and s copy times of an item and of the start unit (which may be short in some passes), x an
item's work, a whether it is demanded. Then

    memory  capacity - (residents + K slot_bytes + R) >= 0
    room    R - bytes of the start unit (1 - q) >= 0            a start slot holds any that streams
    busy    t - sum of a w (1 - r) - s (1 - q) - y + y before >= 0     one copy at a time
    ahead   K longest w + R (most s for a byte) - y >= 0        what is copied ahead lies in slots
    held    K t - sum of a (w + x) (1 - r) - u + u before >= 0  an item has its slot while it is
                                                                copied and until its work has ended
    back    t - C - B (1 - q) >= 0
    t >= C,  0 <= r, q <= 1,  0 <= y,  0 <= u <= K longest w

The objective is the weighted sum of t, and of the problem's correction times 1 - r.

None needs an order of copies, nor that prefetches do not know the demand; pauses, overtaking and
dropped copies only add to the channel's time and the slots'. ``held`` is used where K is fixed.
Where a host works on items, see ``solvers.proof_host``.
With a multiplier for each row, objective >= objective - sum of multiplier x row, and that is least
where each variable sits at the end of its range that its coefficient points to: plain arithmetic in
Python's integers, so that neither rounding nor the solver has to be believed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError
from solvers.outcome import Integers, Proof
from solvers.problem import Problem
from solvers.proof_arrays import refuse_arrays
from solvers.proof_charged import charged_shares, refuse_malformed_charged
from solvers.proof_host import host_shares, least_ns, refuse_malformed_host
from solvers.proof_plan import PlanTimes, plan_shares, refuse_malformed_plan

__all__ = ["covers_all_slots", "proven_ns"]


def covers_all_slots(problem: Problem, proofs: tuple[Proof, ...]) -> bool:
    """Whether the proofs' ranges leave out no number of slots that a schedule may have.

    Where all items together do not fit, one streams, and there is a slot.
    """
    total = sum(item.held_bytes for stage in problem.stages for item in stage.items)
    next_slots = 1 if total > problem.capacity_bytes else 0
    for proof in sorted(proofs, key=lambda one: one.least_slots):
        if proof.least_slots > next_slots:
            return False
        if proof.most_slots is None:
            return True
        next_slots = max(next_slots, proof.most_slots + 1)
    return next_slots * problem.slot_bytes > problem.capacity_bytes


def proven_ns(problem: Problem, proof: Proof) -> int | None:
    """What the multipliers prove, rounded down; None where they prove nothing.

    Raises
    ------
    OptionError
        If a multiplier is negative or the arrays do not have the problem's shape.
    """
    scenarios = problem.scenarios
    passes, stages, _ = scenarios.demand.shape
    _refuse_malformed(proof, passes, stages)
    if proof.plan is not None:
        refuse_malformed_plan(proof.plan, scenarios.demand.shape)
    if proof.host is not None:
        refuse_malformed_host(problem, proof.host)
    if proof.charged is not None:
        refuse_malformed_charged(problem, proof.charged)
    elif problem.price is not None:
        return None
    most_slots = problem.capacity_bytes // max(problem.slot_bytes, 1)
    if proof.most_slots is not None:
        most_slots = min(most_slots, proof.most_slots)
    if most_slots < proof.least_slots:
        return None
    fixed = proof.most_slots == proof.least_slots
    if not fixed and any(value for value in proof.held.ravel()):
        return None
    slots = proof.least_slots
    active = (scenarios.demand > 0).astype(object)
    copy, work = problem.copy_ns.astype(object), scenarios.work_ns.astype(object)
    start, start_held = problem.pass_start_ns.astype(object), problem.start_bytes.astype(object)
    longer, back = problem.start_lead_ns.astype(object), proof.back
    longest = int(problem.copy_ns.max(initial=0))
    # the most copy time for a byte of start slot, as a fraction
    pace, per = 0, 1
    for ns, size in zip(start.max(axis=0, initial=0).tolist(), start_held.tolist(), strict=True):
        if size == 0 and ns > 0:
            return None
        if ns * per > pace * max(size, 1):
            pace, per = ns, size
    busy, ahead, held = proof.busy, proof.ahead, proof.held
    last = np.array([run.stop - 1 for run in scenarios.runs()], dtype=np.int64)
    most_ahead = longest * most_slots + -(-pace * problem.capacity_bytes // per)
    plan = None
    if proof.plan is not None:
        serial = fixed and slots == 1 and scenarios.host_work_ns is None
        plan = plan_shares(problem, proof.plan, pace, per, most_ahead, last, serial=serial)

    charged = None
    if proof.charged is not None:
        serial = fixed and slots == 1
        charged = charged_shares(problem, proof.charged, busy, proof.scale, serial=serial)

    # constants
    total = -proof.memory * problem.capacity_bytes + int((proof.room * start_held).sum())
    copies = (active * copy).sum(axis=2)
    total += int((busy * (copies + start)).sum())
    total += int((held * (copies + work.sum(axis=2))).sum())
    correction = problem.correction.astype(object) * proof.scale
    total += int(correction.sum())
    # durations have no upper end
    left = scenarios.weight.astype(object)[:, None] * proof.scale - busy - held * slots
    if plan is not None:
        total += plan.total
        left = left - plan.durations
    hosts = None
    if scenarios.host_work_ns is not None:
        hosts = host_shares(problem, proof, PlanTimes(problem).gain)
        total += hosts.total
        left = left - hosts.durations
    if charged is not None:
        total += charged.total
        left = left - charged.durations
    if back is not None:
        total += int((back * (least_ns(problem).astype(object) + longer)).sum())
        left = left - back
    if min(left.ravel(), default=0) < 0:
        return None
    total += int((left * least_ns(problem).astype(object)).sum())
    # copied ahead
    beyond = busy - _following(busy, last) + ahead * per
    if proof.charged is not None:
        beyond = beyond - _following(proof.charged.start, last)
    total += most_ahead * _negative(beyond)
    total += longest * most_slots * _negative(held - _following(held, last))
    # residents
    saved = (active * (copy * busy[:, :, None] + (copy + work) * held[:, :, None])).sum(axis=0)
    from_starts = (start * busy).sum(axis=0)
    if back is not None:
        from_starts = from_starts + (longer * back).sum(axis=0)
    if plan is not None:
        saved, from_starts = saved + plan.residents, from_starts + plan.starts
    if hosts is not None:
        saved = saved + hosts.residents
    if charged is not None:
        saved, from_starts = saved + charged.residents, from_starts + charged.starts
    total += _negative(problem.item_bytes.astype(object) * proof.memory - saved - correction)
    total += _negative(start_held * (proof.memory - proof.room) - from_starts)
    # slots
    ahead_sum = int(ahead.sum())
    for_slots = proof.memory * problem.slot_bytes - ahead_sum * per * longest
    for_room = proof.memory - int(proof.room.sum()) - ahead_sum * pace
    if plan is not None:
        for_slots, for_room = for_slots - plan.slots, for_room - plan.room
    if charged is not None:
        for_slots -= charged.slots
    total += for_slots * (slots if for_slots >= 0 else most_slots)
    total += min(for_room, 0) * problem.capacity_bytes
    return int(total // proof.scale)


def _refuse_malformed(proof: Proof, passes: int, stages: int) -> None:
    names = ("busy", "ahead", "held", *(() if proof.back is None else ("back",)))
    refuse_arrays(proof, {"room": (stages,), **dict.fromkeys(names, (passes, stages))})
    if proof.scale < 1 or proof.memory < 0 or proof.least_slots < 0:
        raise OptionError("a proof's scale, memory or slots are out of range")


def _following(rows: Integers, last: npt.NDArray[np.int64]) -> Integers:
    """The multiplier of each row's successor in its run, 0 at the run's end."""
    flat = rows.ravel()
    shifted = np.concatenate([flat[1:], np.zeros(1, dtype=object)]).reshape(rows.shape)
    if rows.size:
        shifted[last, -1] = 0
    return shifted


def _negative(coefficients: Integers) -> int:
    """Sum of those below 0: each variable from 0 to 1 takes the better end."""
    return int(sum(min(int(value), 0) for value in coefficients.ravel()))
