"""The inequalities that charge what is copied ahead in vain, where its price is known.

Few passes tell those who know the demand what to copy ahead; a policy does not know it, and copies
as much in vain as chance has it. ``Problem.price`` says so: what is copied ahead of an item
costs (counted - expected demand) x a price, in every pass. For who does not know the demand that is
nothing on average, and who knows it gains nothing by it (an information relaxation with a penalty:
Brown, Smith, Sun, Operations Research 58, 2010). So these inequalities hold for every schedule
without eviction caching, whatever it knows, and what they prove is for those who know nothing.

Let d be the channel's time on an item before its stage's demand is known, f the wait for the start
unit (no more than s of it counts), and the rest as in ``solvers.proof`` and ``solvers.proof_plan``

    busy    the channel's time is d, too, where a = 0
    late    t - A - f - x - sum of a (w (1 - r) - d) >= 0
    serial  t - A - f - sum of a ((w + x) (1 - r) - d) >= 0    instead of ``late``, with one slot
    whole   t - A - f - X - sum of a (v (1 - r) - u) >= 0      u the part of d up to v: what is left
                                                               of an item hides behind X - x
    start   f + y before + prologue - s (1 - q) >= 0           the start unit is copied by then
    fit     K longest w - sum of d >= 0                        it lies in slots
    0 <= d <= w (1 - r),  0 <= f <= s

d and u need no multipliers of their own: where rows and the price leave a ns of them at g less than
nothing, the most that they take off the bound is g w (1 - r), which is linear in r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError
from solvers.outcome import ChargedProof, Integers
from solvers.price import PARTS
from solvers.problem import Problem
from solvers.proof_arrays import refuse_arrays
from solvers.proof_plan import PlanTimes

__all__ = ["ChargedShares", "charged_shares", "extents", "gains", "refuse_malformed_charged"]

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_CERTAIN = 1e-6
"""A coefficient that floats put above this share of the scale is above 0."""


@dataclass(frozen=True, slots=True)
class ChargedShares:
    """What the multipliers add to a proof: as in ``solvers.proof_plan.PlanShares``."""

    total: int
    durations: Integers
    residents: Integers
    starts: Integers
    slots: int


def refuse_malformed_charged(problem: Problem, proof: ChargedProof) -> None:
    """Raise an ``OptionError`` unless there is a price, and all multipliers are natural numbers of
    the right shape."""
    if problem.price is None or problem.scenarios.host_work_ns is not None:
        raise OptionError("a proof charges copies ahead, and they have no price")
    shape = problem.scenarios.demand.shape[:2]
    refuse_arrays(proof, dict.fromkeys(("late", "whole", "start", "fit"), shape))


def extents(problem: Problem) -> list[Int64]:
    """[passes, stages, items] each: how much of an item may be worth copying ahead. All, or where
    other work begins to hide the rest, in truth or by the price; what is between is between."""
    if problem.price is None:
        raise OptionError("copies ahead have no price")
    copy = np.broadcast_to(problem.copy_ns, problem.scenarios.demand.shape)
    return [copy, PlanTimes(problem).gain, problem.price.first_ns(problem.copy_ns)]


def gains(problem: Problem, rows: list[Floats]) -> list[Floats]:
    """Of each of ``extents``, what it takes off the bound; below 0 where nothing.

    Parameters
    ----------
    problem, rows
        Multipliers of busy, late, whole and fit, [passes, stages, 1] each.
    """
    price, gain = problem.price, PlanTimes(problem).gain
    if price is None:
        raise OptionError("copies ahead have no price")
    busy, late, whole, fit = rows
    active, found = problem.scenarios.demand > 0, []
    for extent in extents(problem):
        off = price.ppm * (price.waited_ps(problem.copy_ns, extent) / PARTS) - fit * extent
        useful = late * extent + whole * np.minimum(extent, gain)
        found.append(off + np.where(active, useful, -busy * extent))
    return found


def charged_shares(
    problem: Problem, proof: ChargedProof, busy: Integers, scale: int, *, serial: bool
) -> ChargedShares:
    """Recompute what the multipliers add.

    Parameters
    ----------
    problem, proof
        The multipliers have passed ``refuse_malformed_charged``.
    busy, scale
        Of the whole proof.
    serial
        ``late`` holds multipliers of ``serial``: there is one slot.
    """
    times, scenarios = PlanTimes(problem), problem.scenarios
    demanded, price = scenarios.demand > 0, problem.price
    if price is None:
        raise OptionError("a proof charges copies ahead, and they have no price")
    copy, start = problem.copy_ns.astype(object), problem.pass_start_ns.astype(object)
    gain = times.gain.astype(object)
    late, whole, both = proof.late, proof.whole, proof.late + proof.whole
    fixed = times.fixed.astype(object)
    after, end = demanded.astype(object) * copy, times.least_work.astype(object)
    if serial:
        after, end = after + scenarios.work_ns.astype(object), 0 * end
    total = int((late * (fixed + end + after.sum(axis=2))).sum())
    total += int((whole * (fixed + times.work + gain.sum(axis=2))).sum())
    total += int((proof.start * (start - scenarios.prologue_ns)).sum())
    # waits for start units
    total += sum(min(int(value), 0) for value in ((both - proof.start) * start).ravel())
    residents = (late[:, :, None] * after + whole[:, :, None] * gain).sum(axis=0)
    starts = (proof.start * start + both * problem.start_lead_ns.astype(object)).sum(axis=0)
    # copied ahead: where the least coefficient may be below 0, exactly
    floats = [
        (array.astype(np.float64) / scale)[:, :, None] for array in (busy, late, whole, proof.fit)
    ]
    weights = np.maximum(scenarios.weight.astype(np.float64), 1.0)[:, None, None]
    largest = np.max(gains(problem, floats), axis=0)
    places = np.nonzero((largest > -_CERTAIN * weights * problem.copy_ns) & (problem.copy_ns > 0))
    index, stage, item = places
    asked, least = demanded[places], np.full(len(index), 0, dtype=object)
    for extent in extents(problem):
        own = extent[places].astype(object)
        waited = price.waited_ps(problem.copy_ns, extent)[places].astype(object)
        useful = late[index, stage] * own
        useful = useful + whole[index, stage] * np.minimum(own, gain[places])
        value = proof.fit[index, stage] * own + np.where(asked, -useful, busy[index, stage] * own)
        value = value + -price.ppm[places].astype(object) * waited * scale // PARTS
        least = np.minimum(least, value)
    total += int(least.sum())
    for at, of, value in zip(stage.tolist(), item.tolist(), least, strict=True):
        residents[at, of] += value
    slots = int(proof.fit.sum()) * int(problem.copy_ns.max(initial=0))
    return ChargedShares(total, both, residents, starts, slots)
