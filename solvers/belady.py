"""A clairvoyant cache (Belady's rule: give up what is needed last): a bound, never a schedule.

Whatever is copied, ahead or on demand, could as well have been kept since its last use, if there
was room: a use's copy is saved where its unit stays in memory from the last use to this one, and
what stays at any instant fits, beside residents. Seen from the other side, memory has a price at
each instant, and each unit is copied, kept or resident, whichever is cheapest;
``solvers.proof_cache`` says, and computes in integers, what any prices prove. Here they are looked
for: of a few uses by the best *cuts*, instants between two stages at which a byte costs as much as
its copy (of units that are all alike, and with anything in memory at first, the rule keeps just as
much as the best cuts leave), then by going up: where more would stay than fits the price rises.
Time is bounded through copies or computation, whichever is more, for the passes of each weight and
more, or all but those that compute for longer than they copy; beside a host that works on items
through a mean of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.host import device_ns, physical_bound
from solvers.layout import START, infeasible
from solvers.outcome import Bound, CacheProof, Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.proof_cache import proven_cached
from solvers.proof_host import least_ns
from solvers.registry import Feature, Limits, Progress

__all__ = ["Belady", "cached_bound"]

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SHARES = (*(Fraction(parts, 16) for parts in (4, 8, 12, 15)), Fraction(1))
"""Shares of the channel in a mean with computation, where a host may spare copies."""
_SCALE = 1 << 40
"""Multipliers are rounded down to integers in units of 1 / this."""
_FEW_USES, _STEPS = 3_000, 60
"""Up to how many uses the best cuts are looked for, and how often prices are changed."""


class Belady:
    """See the module."""

    name = "belady"
    features = frozenset({Feature.USES_DEMAND, Feature.BOUND})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """The bound alone; none of bytes or idle time where a host may work on items."""
        refused = infeasible(problem)
        if refused is not None:
            return refused
        if problem.scenarios.host_work_ns is not None and problem.measure != "time":
            return Outcome(Stop.RULE, None)
        proof = _multipliers(problem, ahead=True)
        return Outcome(Stop.RULE, None, Bound(proven_cached(problem, proof), "cache", cached=proof))


def cached_bound(problem: Problem, schedule: Schedule) -> Bound:
    """No schedule with a cache takes less time than this: whatever it copies ahead, if ``schedule``
    copies items ahead into a cache, else with nothing but start units and items of sequential
    stages copied ahead (or, without a cache and ``Problem.price``, anything).

    What was copied ahead and not demanded may serve a much later pass. Where its passes do not all
    weigh the same it may have been copied in one that weighs less, so that bound may be lower.
    Where computation alone is more, that is the bound.

    Parameters
    ----------
    problem
        Measured in time.
    schedule
        One with a cache.
    """
    physical = physical_bound(problem)
    proof = _multipliers(problem, ahead=_keeps_ahead(problem, schedule))
    value = proven_cached(problem, proof)
    return physical if value <= physical.value_ns else Bound(value, "cache", cached=proof)


def _keeps_ahead(problem: Problem, schedule: Schedule) -> bool:
    """Whether something that was copied ahead may stay in a cache unused."""
    return schedule.eviction != "none" and any(
        choice.prefetch or choice.looks_ahead
        for stage, choice in zip(problem.stages, schedule.stages, strict=True)
        if not stage.sequential
    )


@dataclass(frozen=True, eq=False)
class _Uses:
    """All uses, [uses] each, run by run; see ``solvers.proof_cache``.

    Attributes
    ----------
    index, stage
        The pass, and its stage.
    first
        The first pass in which a copy may be made.
    opens, closes
        The first and the last start of a stage, counted through all runs, between the last use (or
        the run's beginning) and this one.
    again
        Whether a slot may have kept the unit.
    unit
        Number of the unit: ``width`` for each stage, the start unit first.
    cost
        Of a copy.
    work, host
        On the device, and on the host; -1 where that does not take it.
    resident
        [units]: bytes of each as a resident.
    """

    index: Int64
    stage: Int64
    first: Int64
    opens: Int64
    closes: Int64
    again: Bools
    unit: Int64
    cost: Int64
    work: Int64
    host: Int64
    resident: Int64


def _uses(problem: Problem, ahead: bool) -> _Uses:
    scenarios, count = problem.scenarios, len(problem.stages)
    passes, _, width = scenarios.demand.shape
    begins = np.zeros(passes, dtype=np.int64)
    begins[list(scenarios.run_starts)] = 1
    begin = np.array(scenarios.run_starts, dtype=np.int64)[begins.cumsum() - 1]
    starting = [at for at, stage in enumerate(problem.stages) if stage.start is not None]
    rows = np.argwhere(scenarios.demand > 0).astype(np.int64)
    starts = [(index, at, START) for index in range(passes) for at in starting]
    rows = np.concatenate([rows, np.array(starts, dtype=np.int64).reshape(-1, 3)])
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2], rows[:, 1]))]
    index, stage, item = rows.T
    here = index * count + stage
    unit = stage * (width + 1) + item + 1
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (np.diff(unit) == 0) & (np.diff(begin[index]) == 0)
    since = np.where(again, np.roll(here, 1), begin[index] * count)
    first = since // max(count, 1)
    if not ahead:
        first = np.maximum(first, np.maximum(index - 1, begin[index]))
    of_start = item == START
    work, host = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), -1, dtype=np.int64)
    if scenarios.host_work_ns is not None:
        several = np.array([not one.sequential for one in problem.stages], dtype=bool)
        able = ~of_start & several[stage]
        places = index[able], stage[able], item[able]
        work[able], host[able] = scenarios.work_ns[places], scenarios.host_work_ns[places]
    return _Uses(
        index,
        stage,
        first,
        np.where(again, since + 1, since),
        here,
        again & ~of_start,
        unit,
        np.where(
            of_start, _costs(problem)[index, stage, 0], _costs(problem)[index, stage, item + 1]
        ),
        work,
        host,
        np.column_stack([problem.start_bytes, problem.item_bytes]).ravel(),
    )


def _costs(problem: Problem) -> Int64:
    """[passes, stages, items]: what copies of start units and items cost, in the measure's unit."""
    if problem.measure != "bytes":
        starts, items = problem.pass_start_ns, problem.copy_ns
    else:
        kinds = [[one.start_in(short) for one in problem.stages] for short in problem.start_kinds]
        sizes = np.array(
            [[unit.size_bytes if unit else 0 for unit in row] for row in kinds], dtype=np.int64
        ).reshape(len(kinds), len(problem.stages))
        starts = sizes[np.array(problem.scenarios.shortened, dtype=np.int64)]
        items = np.zeros_like(problem.copy_ns)
        for at, one in enumerate(problem.stages):
            items[at, : len(one.items)] = [unit.size_bytes for unit in one.items]
    rows = np.broadcast_to(items, (len(starts), *items.shape))
    table: Int64 = np.concatenate([starts[:, :, None], rows], axis=2)
    return table


class _Found(NamedTuple):
    """Multipliers of the channel, ``share`` in the passes that count, and of the room; about what
    they prove."""

    value: float
    passes: Bools
    share: Fraction
    room: Floats


def _multipliers(problem: Problem, *, ahead: bool) -> CacheProof:
    """The best that were found: with weights w, for each step of w those of the passes that weigh
    as much or more."""
    scenarios, uses = problem.scenarios, _uses(problem, ahead)
    shape = scenarios.lead_ns.shape
    channel = np.zeros(shape[0], dtype=object)
    memory = np.zeros(shape[0] * shape[1], dtype=object)
    below = 0
    for step in sorted({int(weight) for weight in scenarios.weight if weight > 0}):
        found = _best(problem, uses, scenarios.weight >= step)
        if found is not None:
            channel[found.passes] += int(found.share * _SCALE) * (step - below)
            room = np.array([int(price * _SCALE) for price in found.room.tolist()], dtype=object)
            memory += room * (step - below)
        below = step
    room = memory.reshape(shape)
    return CacheProof(_SCALE, ahead, channel, _device(problem, uses, channel, room), room)


def _best(problem: Problem, uses: _Uses, on: Bools) -> _Found | None:
    """Multipliers for the passes that are ``on``, each with weight 1; None where computation
    proves more than any copies."""
    hosted = problem.scenarios.host_work_ns is not None
    best: _Found | None = None
    most = float(device_ns(problem)[on].sum()) if problem.measure == "time" else 0.0
    for share in _SHARES if hosted else _SHARES[-1:]:
        for found in _found(problem, uses, on, share):
            if found.value > most:
                best, most = found, found.value
    return best


def _found(problem: Problem, uses: _Uses, on: Bools, share: Fraction) -> Iterator[_Found]:
    """With copies in all of the passes, and in those only where they take longer than
    computation."""
    time = problem.measure == "time"
    rest = least_ns(problem).sum(axis=1) * (1.0 - float(share))
    otherwise = device_ns(problem).sum(axis=1)
    if problem.measure == "idle":
        otherwise = otherwise + problem.start_lead_ns.sum(axis=1)
    passes = on
    while passes.any():
        off = np.concatenate([[0], np.cumsum(~passes)])
        counted = off[uses.index + 1] == off[uses.first]
        cost = uses.cost * counted * float(share)
        # what a copy adds at most that the host may spare
        cost = np.where(uses.host < 0, cost, np.minimum(cost, float(1 - share) * uses.host))
        room = _prices(problem, uses, cost)
        _, missed, _ = _paid(problem, uses, cost, room)
        gained = missed + rest if time else missed
        value = float(missed.sum())
        if time:
            value += float(rest[passes].sum() + otherwise[on & ~passes].sum())
        elif problem.measure == "idle":
            value -= float(otherwise[passes].sum())
        yield _Found(value, passes, share, room)
        if problem.measure == "bytes" or passes is not on:
            return
        passes = on & (gained >= otherwise)
        if bool((passes == on).all()):
            return


def _paid(
    problem: Problem, uses: _Uses, cost: Floats, room: Floats
) -> tuple[float, Floats, Floats]:
    """What prices of room prove, in each pass, too, and how many bytes would stay at each of them
    beyond the capacity."""
    sums = np.concatenate([[0.0], room.cumsum()])
    stays = problem.slot_bytes * (sums[uses.closes + 1] - sums[uses.opens])
    keeps = uses.again & (stays < cost)
    paid = np.where(keeps, stays, cost)
    for_all = np.bincount(uses.unit, weights=paid, minlength=len(uses.resident))
    resident = uses.resident * sums[-1] < for_all
    held = int(uses.resident[resident].sum()) - problem.capacity_bytes
    streams = ~resident[uses.unit]
    passes, count = problem.scenarios.passes, len(problem.stages)
    missed = np.bincount(uses.index[streams], weights=paid[streams], minlength=passes)
    missed = missed + held * room.reshape(passes, count).sum(axis=1)
    keeps &= streams
    bins = len(room) + 1
    come = np.bincount(uses.opens[keeps], minlength=bins)
    go = np.bincount(uses.closes[keeps] + 1, minlength=bins)
    over = held + problem.slot_bytes * (come - go).cumsum()[:-1]
    return float(missed.sum()), missed, over.astype(np.float64)


def _prices(problem: Problem, uses: _Uses, cost: Floats) -> Floats:
    """[stages of all passes]: prices of room that prove much."""
    turns, capacity = problem.scenarios.passes * len(problem.stages), problem.capacity_bytes
    nothing = np.zeros(turns)
    starts = [nothing]
    if len(cost) <= _FEW_USES:
        starts += _at_cuts(problem, uses, cost, turns)
    starts = sorted(starts, key=lambda room: _paid(problem, uses, cost, room)[0])
    best, most = nothing, 0.0
    # where no byte is free from the outset, half of all copies are worth the capacity
    long = float(cost.sum()) / max(2 * capacity * turns, 1)
    for room in [nothing, *starts[-1:]]:
        for step in range(_STEPS):
            value, _, over = _paid(problem, uses, cost, room)
            if value > most:
                best, most = room, value
            largest = float(np.abs(over).max(initial=0.0))
            if not largest:
                break
            room = np.maximum(room + over * (long / largest / (1 + step) ** 0.7), 0.0)
    return best


def _at_cuts(problem: Problem, uses: _Uses, cost: Floats, turns: int) -> Iterator[Floats]:
    """The best cuts with a byte as dear as that of the cheapest copy, the one in the middle, and
    the dearest."""
    held = np.where(uses.again, problem.slot_bytes, uses.resident[uses.unit])
    paces = cost[(cost > 0) & (held > 0)] / held[(cost > 0) & (held > 0)]
    if not len(paces):
        return
    for pace in np.unique(np.quantile(paces, (0.0, 0.5, 1.0), method="lower")).tolist():
        value = np.minimum(cost, held * pace)
        cuts = _cuts(uses.opens, uses.closes, value, turns, pace * problem.capacity_bytes)
        yield cuts.astype(np.float64) * pace


def _cuts(opens: Int64, closes: Int64, worth: Floats, turns: int, price: float) -> Bools:
    """[turns]: at which starts of stages to cut, each for a price, so that the intervals (from
    ``opens`` to ``closes``) with a cut are worth most."""
    # by where the last cut was, none or at each start: the best so far, and what a cut would add
    best, more = np.zeros(turns + 1), np.zeros(turns + 1)
    before = np.zeros(turns, dtype=np.int64)
    order = np.argsort(closes, kind="stable")
    ends = np.searchsorted(closes[order], np.arange(turns + 1))
    begin = np.bincount(opens, weights=worth, minlength=turns)
    for at in range(turns):
        if at:
            gone = order[ends[at - 1] : ends[at]]
            sums = np.bincount(opens[gone], weights=worth[gone], minlength=at)
            more[:at] -= sums[::-1].cumsum()[::-1]
        more[: at + 1] += begin[at]
        with_it = best[: at + 1] + more[: at + 1]
        before[at] = with_it.argmax()
        best[at + 1] = with_it[before[at]] - price
    cuts = np.zeros(turns, dtype=bool)
    last = int(best.argmax())
    while last:
        cuts[last - 1] = True
        last = int(before[last - 1])
    return cuts


def _device(
    problem: Problem,
    uses: _Uses,
    channel: npt.NDArray[np.object_],
    memory: npt.NDArray[np.object_],
) -> npt.NDArray[np.object_]:
    """The multipliers of the device that prove most beside a host; all that is left without."""
    left = problem.scenarios.weight.astype(object) * _SCALE - channel
    device = np.repeat(left[:, None], len(problem.stages), axis=1)
    if problem.scenarios.host_work_ns is None:
        return device
    sums = np.concatenate([[0.0], memory.ravel().astype(np.float64).cumsum()])
    stays = problem.slot_bytes * (sums[uses.closes + 1] - sums[uses.opens])
    busy = channel.astype(np.float64)
    pairs = zip(uses.first.tolist(), uses.index.tolist(), strict=True)
    claimed = np.array([busy[first : index + 1].min() for first, index in pairs]) * uses.cost
    claimed = np.where(uses.again, np.minimum(claimed, stays), claimed)
    groups: dict[tuple[int, int], list[int]] = {}
    for one in np.flatnonzero(uses.host >= 0).tolist():
        groups.setdefault((int(uses.index[one]), int(uses.stage[one])), []).append(one)
    for (index, stage), members in groups.items():
        most = float(left[index])
        both = uses.work[members] + uses.host[members]
        with np.errstate(divide="ignore", invalid="ignore"):
            bends = np.where(both > 0, (most * uses.host[members] - claimed[members]) / both, most)
        # from 0 on each share of the device proves its works, less those of uses that have bent
        works, total, share = 0.0, float(uses.work[members].sum()), most
        for bend, one in sorted(zip(bends.tolist(), both.tolist(), strict=True)):
            works += one
            if works >= total:
                share = bend
                break
        device[index, stage] = min(max(int(share), 0), left[index])
    return device
