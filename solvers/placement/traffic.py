"""Rows that move between devices from one stage to the next, and device labels that move fewest.

Which device is called by which number leaves every load as it is, but not the traffic: a row that
chose item e in one stage and f in the next stays where it is if both lie on one device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from ortools.graph.python import linear_sum_assignment

from solvers.placement.problem import Floats, Int64, Placement, PlacementProblem

__all__ = ["relabel", "traffic"]

_SWEEPS = 10
_UNIT = 1_000_000


def traffic(
    placement: Placement, joint: npt.NDArray[np.float64], link: npt.NDArray[np.float64]
) -> float:
    """Sum over rows that pass from stage to stage of the cost of the link that they take.

    Parameters
    ----------
    placement
        Where items lie; an item's copies take equal parts of its rows.
    joint
        [stages - 1, items, items]: rows that chose e in a stage and f in the next.
    link
        [devices, devices]: cost of moving one row; 0 on the diagonal.
    """
    part = placement.part
    return float(
        sum(
            (_between(part[stage], part[stage + 1], joint[stage]) * link).sum()
            for stage in range(len(joint))
        )
    )


def relabel(
    problem: PlacementProblem,
    placement: Placement,
    joint: npt.NDArray[np.float64],
    link: npt.NDArray[np.float64],
) -> Placement:
    """The same groups of items under the device numbers that cost least traffic.

    Stage by stage an assignment problem (OR-Tools), with the neighbours held fixed, in sweeps until
    nothing changes. A label fits a group where the device has room for it.
    """
    held = placement.held.copy()
    stages = len(held)
    part = placement.part.copy()
    for sweep in range(_SWEEPS):
        changed = False
        forward = range(stages) if sweep % 2 == 0 else range(stages - 1, -1, -1)
        for stage in forward:
            cost = np.zeros((problem.devices, problem.devices))
            if stage:
                flow = _between(part[stage - 1], part[stage], joint[stage - 1])
                cost += flow.T @ link
            if stage + 1 < stages:
                flow = _between(part[stage], part[stage + 1], joint[stage])
                cost += flow @ link.T
            order = _assign(cost, held[stage].sum(axis=0), problem.room[stage])
            before = float(np.trace(cost))
            after = float(cost[np.arange(problem.devices), order].sum())
            if after < before * (1 - 1e-9):
                new = np.empty_like(held[stage])
                new[:, order] = held[stage]
                moved = np.empty_like(part[stage])
                moved[:, order] = part[stage]
                held[stage], part[stage] = new, moved
                changed = True
        if not changed and sweep:
            break
    return Placement(held)


def _between(left: Floats, right: Floats, joint: npt.NDArray[np.float64]) -> Floats:
    """[devices, devices]: rows that pass from one device to another."""
    flow: Floats = left.T @ joint @ right
    return flow


def _assign(cost: Floats, filled: Int64, room: Int64) -> npt.NDArray[np.int64]:
    """[groups]: the device of each group, at least cost."""
    scale = _UNIT / max(float(cost.max()), 1e-30)
    solver = linear_sum_assignment.SimpleLinearSumAssignment()
    for group in range(len(cost)):
        for device in range(len(cost)):
            if filled[group] <= room[device]:
                solver.add_arc_with_cost(group, device, round(float(cost[group, device]) * scale))
    if solver.solve() != solver.OPTIMAL:
        return np.arange(len(cost))
    return np.array([solver.right_mate(group) for group in range(len(cost))], dtype=np.int64)
