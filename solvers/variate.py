"""A control variate: what few passes demand by chance is taken off the objective again.

An item that these passes demand more seldom than others would looks as if it could be left out of
memory at no price, and a search finds all such items. What the demand ought to be is known from
more data (``Scenarios.mean_demanded``); so for each item that is not resident the objective is
raised by (expected - counted demands) x what one copy costs, and lowered where the items were
unlucky. Over the choice of the passes that is 0 on average, whatever a copy is said to cost (by
these passes all together, which tell next to nothing of single items): it takes variance away and
moves no expectation. As it is linear in the residents, bounds hold it, too.

What is copied ahead is not waited for, and so is not corrected: the correction of as much of its
copy is taken off again (``Problem.price``). Else a bound, and a search, would leave out of memory
and copy ahead just those items that these passes demand too often, and be paid for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.layout import infeasible
from solvers.price import AheadPrice
from solvers.problem import Problem
from solvers.proof_plan import PlanTimes
from solvers.sets import demand_share

__all__ = ["corrected"]

Int64 = npt.NDArray[np.int64]

_UNIT = 1_000
"""Prices and demands are rounded to thousandths, so that all machines agree."""


def corrected(problem: Problem) -> Problem:
    """The problem with its ``correction_ns`` and ``price``; as it is where there is none to make.

    A ns of copying costs the share of a ns that computation waits for it, with the residents most
    worth their memory: all of it where what a stage demands takes longer to copy than the stage has
    work, else what other items' work cannot hide of a single copy, that is its beginning. One price
    for each kind of pass: stage by stage it would itself be what few passes show by chance. Where
    copies ahead have none, as a host works or predictors name them, it is less what they can hide:
    schedules would gain from corrections of copies that they do not wait for.
    """
    scenarios = problem.scenarios
    mean = scenarios.mean_demanded
    if mean is None or problem.measure != "time" or infeasible(problem) is not None:
        return problem
    active = (scenarios.demand > 0).astype(np.int64)
    streams = ~_most_demanded(problem)
    cost = _waited_ns(problem, streams)
    price = AheadPrice(
        np.zeros(mean.shape, dtype=np.int64),
        np.zeros(mean.shape[:2], dtype=np.int64),
        np.zeros(len(mean), dtype=np.int64),
    )
    times = PlanTimes(problem)
    # who works elsewhere, or is told what to copy ahead, is not priced by copies ahead
    charged = scenarios.host_work_ns is None and problem.ahead is None
    for members in _kinds(mean):
        expected = np.rint(_UNIT * mean[members]).astype(np.int64)
        each = scenarios.weight[members][:, None, None]
        # what streams as often as these passes demand it; where they demand none, as expected
        for often in (active[members], expected):
            copies = often * streams
            asked = int((copies * problem.copy_ns).sum())
            if asked:
                break
        waited = int((copies * cost[members]).sum())
        whole, rest = _UNIT, _UNIT * waited // asked if asked else 0
        if charged:
            hidden = (times.work - times.least_work)[members].sum(axis=0) // len(members)
            price.hidden_ns[members] = hidden
            first = int((copies * np.maximum(problem.copy_ns - hidden[:, None], 0)).sum())
            whole = min(_UNIT * waited // first, _UNIT) if first else _UNIT
            rest = _UNIT * max(waited - first, 0) // max(asked - first, 1)
        else:
            price.hidden_ns[members] = int(problem.copy_ns.max(initial=0))
            rest = rest * (_UNIT - _ahead(problem, members, expected[0] * streams)) // _UNIT
        price.rest[members] = rest
        price.ppm[members] = whole * each * (expected - _UNIT * active[members])
    return problem.replace(
        correction_ns=price.correction_ns(problem.copy_ns), price=price if charged else None
    )


def _waited_ns(problem: Problem, streams: npt.NDArray[np.bool_]) -> Int64:
    """[passes, stages, items]: what is waited for an item's copy where ``streams`` are copied after
    their stage's lead, and nothing ahead."""
    times = PlanTimes(problem)
    # one demanded item at least is worked on after the last copy
    hidden = times.work - times.least_work
    alone = np.maximum(problem.copy_ns[None] - hidden[:, :, None], 0)
    demanded = (problem.scenarios.demand > 0) & streams
    late = (demanded * problem.copy_ns).sum(axis=2) > hidden + (demanded * alone).sum(axis=2)
    waited: Int64 = np.where(late[:, :, None], problem.copy_ns[None], alone)
    return waited


def _ahead(problem: Problem, members: list[int], expected: Int64) -> int:
    """Which share of the copies of what streams may be made ahead, in ``_UNIT``.

    All, where they take no longer than the computation that start units leave free, and none from
    half as long again on; but what is copied ahead asks for no demand, and as much as fits into
    twice the time with all that is copied in vain, most demanded first, may hide, too. Both are
    rules of thumb; bounds hold the correction whatever its price.

    Parameters
    ----------
    problem, members
        Passes of one kind.
    expected
        [stages, items]: how often an item that streams is demanded, in ``_UNIT``.
    """
    passes = len(members)
    compute = int(problem.scenarios.compute_ns[members].sum()) // passes
    starts = int(problem.pass_start_ns[members].sum()) // passes
    useful = (expected * problem.copy_ns // _UNIT).ravel()
    streamed = int(useful.sum())
    order = np.argsort(-expected.ravel(), kind="stable")
    order = order[expected.ravel()[order] > 0]
    vain = np.cumsum(problem.copy_ns.ravel()[order] - useful[order])
    free = max(compute - starts, 0)
    hidden = int(useful[order[vain <= 2 * free - streamed]].sum())
    hidden = max(hidden, streamed - 2 * max(streamed - free, 0) * streamed // max(free, 1))
    return min(_UNIT * hidden // max(streamed, 1), _UNIT)


def _most_demanded(problem: Problem) -> npt.NDArray[np.bool_]:
    """[stages, items]: those that are most worth their memory, as many as fit beside a slot."""
    worth = demand_share(problem) * problem.copy_ns / np.maximum(problem.item_bytes, 1)
    order = np.argsort(-worth.ravel(), kind="stable")
    filled = np.cumsum(problem.item_bytes.ravel()[order])
    room = problem.capacity_bytes - problem.slot_bytes
    kept = np.zeros(worth.size, dtype=bool)
    kept[order[filled <= room]] = True
    return kept.reshape(worth.shape)


def _kinds(mean: npt.NDArray[np.float64]) -> list[list[int]]:
    """Passes that have the same expected demand."""
    found: dict[bytes, list[int]] = {}
    for index in range(len(mean)):
        found.setdefault(mean[index].tobytes(), []).append(index)
    return list(found.values())
