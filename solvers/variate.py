"""A control variate: what few passes demand by chance is taken off the objective again.

An item that these passes demand more seldom than others would looks as if it could be left out of
memory at no price, and a search finds all such items. What the demand ought to be is known from
more data (``Scenarios.mean_demanded``); so for each item that is not resident the objective is
raised by (expected - counted demands) x what one copy costs, and lowered where the items were
unlucky. Over the choice of the passes that is 0 on average, whatever a copy is said to cost: it
takes variance away and moves no expectation. As it is linear in the residents, bounds hold it, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.layout import infeasible
from solvers.problem import Problem
from solvers.proof_plan import PlanTimes
from solvers.sets import demand_share

__all__ = ["corrected"]

_UNIT = 1_000
"""Prices and demands are rounded to thousandths, so that all machines agree."""


def corrected(problem: Problem) -> Problem:
    """The problem with its ``correction_ns``; as it is where there is none to make.

    Where with the residents most worth their memory there is three times as much copying as
    computation, or more, a ns of copying costs a ns; where there is no more than twice as much it
    may cost nothing, for there schedules that hide copies would gain from corrections of copies
    that they do not wait for. But where start units alone keep the channel for as long as there is
    computation, nothing is left to copy items ahead in, and what other items' work cannot hide of
    a copy is waited for. Kind of pass by kind of pass.
    """
    scenarios = problem.scenarios
    mean = scenarios.mean_demanded
    if mean is None or problem.measure != "time" or infeasible(problem) is not None:
        return problem
    kept = _most_demanded(problem)
    active, visible = scenarios.demand > 0, PlanTimes(problem).gain
    total: npt.NDArray[np.int64] = np.zeros(problem.copy_ns.shape, dtype=np.int64)
    for members in _kinds(mean):
        expected = np.rint(_UNIT * mean[members]).astype(np.int64)
        streamed = int((expected[0] * problem.copy_ns * ~kept).sum()) // _UNIT
        compute = int(scenarios.compute_ns[members].sum()) // len(members)
        starts = int(problem.pass_start_ns[members].sum()) // len(members)
        spare = streamed + starts - 2 * compute
        price = _UNIT if not compute else min(max(_UNIT * spare // compute, 0), _UNIT)
        free = max(compute - starts, 0)
        asked = int((active[members] * problem.copy_ns).sum())
        if streamed > 2 * free and asked:
            alone = _UNIT * (streamed - 2 * free) // streamed
            price = max(price, alone * int(visible[members].sum()) // asked)
        each = scenarios.weight[members][:, None, None]
        total += price * (each * (expected - _UNIT * active[members])).sum(axis=0)
    return problem.replace(correction_ns=total * problem.copy_ns // (_UNIT * _UNIT))


def _most_demanded(problem: Problem) -> npt.NDArray[np.bool_]:
    """[stages, items]: those that are most worth their memory, as many as fit."""
    worth = demand_share(problem) * problem.copy_ns / np.maximum(problem.item_bytes, 1)
    order = np.argsort(-worth.ravel(), kind="stable")
    filled = np.cumsum(problem.item_bytes.ravel()[order])
    kept = np.zeros(worth.size, dtype=bool)
    kept[order[filled <= problem.capacity_bytes]] = True
    return kept.reshape(worth.shape)


def _kinds(mean: npt.NDArray[np.float64]) -> list[list[int]]:
    """Passes that have the same expected demand."""
    found: dict[bytes, list[int]] = {}
    for index in range(len(mean)):
        found.setdefault(mean[index].tobytes(), []).append(index)
    return list(found.values())
