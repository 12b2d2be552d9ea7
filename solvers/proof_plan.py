"""The inequalities of the class ``plan``: sets and their order are fixed before demand is known.

A schedule's copies ahead go through all stages in one fixed order (docs/runtime.md, "Copies"). So
what is copied of a stage before its demand is known is, in every pass, a beginning of one and the
same list: the passes' amounts differ, what they are made of does not. Let y be the part of each
item that a *reference* copies ahead, which has in every pass the most time that the scenarios know
of (phi from a stage's demand to the next stage, less what is demanded: all its work, its epilogue
and the next prologue; and the next lead, lambda), and p the time that it waits for start units. A
pass is ahead of the reference only by copies made while compute waits, and for these it pays as
much time; e is how far it is ahead, with what it has just paid for. With r, q, K, R, t, w, s, a as
in ``solvers.proof``, A the prologue, lead and epilogue of a stage, X all its work, x the least work
on one of its demanded items and v = max(w - (X - x), 0)

    share   1 - r - y >= 0
    late    t - A - x - p - sum of a w (1 - r - y) - e + e before >= 0
                                    what was not copied ahead is copied after the lead, and then
                                    one item at least is still to be worked on
    serial  t - A - p - sum of a (w (1 - r - y) + x (1 - r)) - e + e before >= 0
                                    instead of ``late`` where there is one slot, which an item keeps
                                    from its copy to the end of its work: x is each item's own work
    whole   t - A - X - p - sum of a (v (1 - r) - w y) - e + e before >= 0
                                    likewise; the first whole item hides behind other work, if any
    chain   z before + phi + lambda + p - s (1 - q) - sum of w y - z >= 0
                                    the reference's copies, stage by stage; z is how far it is
                                    beyond the stage
    wait    s (1 - q) - p >= 0
    sets    K longest w + R (most s for a byte) - sum of w y - z >= 0
    carry   K longest w + R (most s for a byte) - e >= 0
    0 <= y <= 1,  0 <= p <= s,  0 <= z, e

``chain`` is for the last pass of a run: the reference is never less far ahead than in a pass
before, so that "z before" of stage 0 may stand for the last stage's; nor does it copy less of a
stage, or wait less, in a pass before. Copies may pause or wait at will, and those on demand have no
order.

``p`` stands in ``late`` and ``whole``: where the reference waits for a start unit, it has copied up
to the end of it and no farther. A pass that comes there no more than e before ahead waits for what
is left, p - e before at least, and for each ns that it waits longer it may gain one. So it is ahead
by no more than e before + its own wait - p when its demand is known, and its own wait is part of t.
A and lambda hold what a start unit that streams adds to the lead, times 1 - q, which the rows name
by its product with q. Where start units are short in some passes, s is the least: the reference is
no less far for that, and a pass that takes longer for its own waits no less.

``whole``: where something is demanded, work and waits after the lead take D + x at least, D being
the copies on demand, and X anyway. Of the demanded items that are neither resident nor wholly
copied ahead, if one takes w >= X - x, the sum of w less X - x is at least the sum of v; if none
does, v is 0 for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solvers.outcome import Integers, PlanProof
from solvers.problem import Problem
from solvers.proof_arrays import refuse_arrays
from solvers.proof_host import able

__all__ = ["PlanShares", "PlanTimes", "plan_shares", "refuse_malformed_plan"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=False)
class PlanTimes:
    """Constants of the inequalities, in ns."""

    problem: Problem

    @cached_property
    def fixed(self) -> Int64:
        """[passes, stages]: prologue, lead and epilogue where the start unit streams."""
        one = self.problem.scenarios
        total: Int64 = one.prologue_ns + one.lead_ns + one.epilogue_ns + self.problem.start_lead_ns
        return total

    @cached_property
    def work(self) -> Int64:
        """[passes, stages]: all work."""
        total: Int64 = self.problem.scenarios.work_ns.sum(axis=2)
        return total

    @cached_property
    def least_work(self) -> Int64:
        """[passes, stages]: the least work on a demanded item; 0 where none is demanded."""
        one = self.problem.scenarios
        huge = np.iinfo(np.int64).max
        least = np.where(one.demand > 0, one.work_ns, huge).min(axis=2, initial=huge)
        found: Int64 = np.where(least == huge, 0, least)
        return found

    @cached_property
    def least_end(self) -> Int64:
        """[passes, stages]: likewise, on the device or on a host."""
        hosts = self.problem.scenarios.host_work_ns
        if hosts is None:
            return self.least_work
        huge = np.iinfo(np.int64).max
        least = np.where(able(self.problem), hosts, huge).min(axis=2, initial=huge)
        found: Int64 = np.minimum(self.least_work, least)
        return found

    @cached_property
    def gain(self) -> Int64:
        """[passes, stages, items]: what a resident takes off ``whole``."""
        hidden = (self.work - self.least_work)[:, :, None]
        active = self.problem.scenarios.demand > 0
        found: Int64 = np.where(active, np.maximum(self.problem.copy_ns[None] - hidden, 0), 0)
        return found

    @cached_property
    def most_before(self) -> Int64:
        """[stages]: the reference's time from the demand before to the end of the lead,
        where the start unit streams."""
        one = self.problem.scenarios
        after = (self.work + one.epilogue_ns).max(axis=0)
        found: Int64 = np.roll(after, 1) + one.prologue_ns.max(axis=0) + one.lead_ns.max(axis=0)
        return found + self.most_longer

    @cached_property
    def most_longer(self) -> Int64:
        """[stages]: the most of it that is there for a start unit that streams."""
        found: Int64 = self.problem.start_lead_ns.max(axis=0)
        return found


@dataclass(frozen=True, slots=True)
class PlanShares:
    """What a plan's multipliers add to a proof, in units of 1 / scale.

    ``total`` to the constant; ``durations`` [passes, stages] is taken off the durations' weight,
    ``residents`` [stages, items], ``starts`` [stages], ``slots`` and ``room`` off the coefficients
    of r, q, K and R.
    """

    total: int
    durations: Integers
    residents: Integers
    starts: Integers
    slots: int
    room: int


def refuse_malformed_plan(plan: PlanProof, shape: tuple[int, int, int]) -> None:
    """Raise an ``OptionError`` unless all multipliers are natural numbers of the right shape."""
    passes, stages, items = shape
    wanted = {
        "share": (stages, items),
        **dict.fromkeys(("late", "whole", "carry"), (passes, stages)),
        **dict.fromkeys(("chain", "wait", "sets"), (stages,)),
    }
    refuse_arrays(plan, wanted)


def plan_shares(
    problem: Problem,
    plan: PlanProof,
    pace: int,
    per: int,
    most_ahead: int,
    last: Int64,
    *,
    serial: bool,
) -> PlanShares:
    """Recompute what the multipliers add.

    Parameters
    ----------
    problem, plan
        The multipliers have passed ``refuse_malformed_plan``.
    pace, per
        The most copy time for a byte of start slot is ``pace / per``; ``sets`` and ``carry`` are
        multiplied by ``per``.
    most_ahead
        End of the ranges of e and z.
    last
        Passes at which runs end.
    serial
        ``late`` holds multipliers of ``serial``: there is one slot, and no host.
    """
    times = PlanTimes(problem)
    active = (problem.scenarios.demand > 0).astype(object)
    copy, start = problem.copy_ns.astype(object), problem.start_ns.astype(object)
    gain, longest = times.gain.astype(object), int(problem.copy_ns.max(initial=0))
    late, whole, both = plan.late, plan.whole, plan.late + plan.whole
    fixed = times.fixed.astype(object)
    after, end = active * copy, times.least_end.astype(object)
    if serial:
        after, end = after + problem.scenarios.work_ns.astype(object), 0 * end
    total = int((late * (fixed + end + after.sum(axis=2))).sum())
    total += int((whole * (fixed + times.work + gain.sum(axis=2))).sum())
    total -= int(plan.share.sum())
    total += int((plan.chain * (start - times.most_before)).sum())
    total -= int((plan.wait * start).sum())
    copied = (both[:, :, None] * active).sum(axis=0) * copy
    ahead = (plan.chain + plan.sets * per)[:, None] * copy + plan.share - copied
    total += sum(min(int(value), 0) for value in ahead.ravel())
    waits = plan.wait - plan.chain + both.sum(axis=0)
    total += sum(min(int(value), 0) for value in (waits * start).ravel())
    # e of a stage stands in the next one's rows, too, but at a run's end
    following = np.concatenate([both.ravel()[1:], np.zeros(1, dtype=object)]).reshape(both.shape)
    following[last, -1] = 0
    beyond = plan.chain - np.roll(plan.chain, -1) + plan.sets * per
    for coefficients in (both - following + plan.carry * per, beyond):
        total += most_ahead * sum(min(int(value), 0) for value in coefficients.ravel())
    slots = int(plan.sets.sum() + plan.carry.sum())
    residents = (late[:, :, None] * after + whole[:, :, None] * gain).sum(axis=0)
    return PlanShares(
        total,
        both,
        residents - plan.share,
        start * (plan.chain - plan.wait)
        - times.most_longer.astype(object) * plan.chain
        + (both * problem.start_lead_ns.astype(object)).sum(axis=0),
        slots * per * longest,
        slots * pace,
    )
