"""Placements by rule: what engines do today.

One signature, ``rule(problem) -> Placement``. Ties go to the lower index, so that the same input
gives the same placement. Where all loads are equal, ``greedy`` deals items out in turn,
``anti-correlation`` does so as well (a constant series has no correlation, counted as 0), and
``contiguous`` keeps the model's order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solvers.placement.problem import Bools, Floats, Placement, PlacementProblem

__all__ = ["RULES", "anti_correlation", "contiguous", "greedy", "replicate"]


def contiguous(problem: PlacementProblem) -> Placement:
    """Items in the model's order, the same number on each device as far as there is room."""
    _, stages, items = problem.load.shape
    held = _empty(problem)
    for stage in range(stages):
        room = problem.room[stage]
        even = items // problem.devices + (np.arange(problem.devices) < items % problem.devices)
        counts = np.minimum(even, room)
        for device in range(problem.devices):
            counts[device] += min(int(room[device] - counts[device]), items - int(counts.sum()))
        held[stage, np.arange(items), np.repeat(np.arange(problem.devices), counts)] = True
    return Placement(held)


def greedy(problem: PlacementProblem) -> Placement:
    """The heaviest item by mean load first, each to the least loaded device that is not full.

    "Towards MoE Deployment" (2303.06182), load balancing: greedy.
    """
    return _deal(problem, lambda _stage, _item, load, _series: load)


def anti_correlation(problem: PlacementProblem) -> Placement:
    """As ``greedy``, but half the correlation with what is there is added to a device's load.

    "Towards MoE Deployment" (2303.06182), load balancing: anti-correlation. The correlation is
    Pearson's, over scenarios, between the item's share and the sum of shares on the device.
    """

    def cost(stage: int, item: int, load: Floats, series: Floats) -> Floats:
        correlation = np.array([_pearson(problem.share[:, stage, item], s) for s in series.T])
        total: Floats = load + 0.5 * correlation
        return total

    return _deal(problem, cost)


def replicate(problem: PlacementProblem) -> Placement:
    """Replicas go, one by one, to the item with most load for each copy; then copies are packed.

    The packing is greedy: the heaviest copy first, to the least loaded device that is not full and
    has none of that item. Without replicas it equals ``greedy``.
    """
    _, stages, items = problem.load.shape
    held = _empty(problem)
    for stage in range(stages):
        mean = problem.mean_share[stage]
        copies = np.ones(items, dtype=np.int64)
        for _ in range(problem.replicas):
            worth = np.where(copies < problem.devices, mean / copies, -1.0)
            copies[int(np.argmax(worth))] += 1
        weight = mean / copies
        load = np.zeros(problem.devices)
        for item in np.argsort(-weight, kind="stable").tolist():
            for _ in range(int(copies[item])):
                room = held[stage].sum(axis=0) < problem.room[stage]
                free = room & ~held[stage, item]
                if not free.any():
                    # each device with room has this item already: a replica is left out
                    break
                device = int(np.argmin(np.where(free, load, np.inf)))
                held[stage, item, device] = True
                load[device] += weight[item]
    return Placement(held)


RULES: dict[str, Callable[[PlacementProblem], Placement]] = {
    "contiguous": contiguous,
    "greedy": greedy,
    "anti-correlation": anti_correlation,
    "replicate": replicate,
}
"""Name -> rule, in the order in which they are shown."""


def _empty(problem: PlacementProblem) -> Bools:
    _, stages, items = problem.load.shape
    return np.zeros((stages, items, problem.devices), dtype=np.bool_)


def _deal(
    problem: PlacementProblem, cost: Callable[[int, int, Floats, Floats], Floats]
) -> Placement:
    """One copy of each item, the heaviest first, to the device of least cost that is not full.

    ``cost`` gets stage, item, mean load [devices] and load series [scenarios, devices].
    """
    scenarios, stages, _ = problem.load.shape
    held = _empty(problem)
    for stage in range(stages):
        mean = problem.mean_share[stage]
        load, series = np.zeros(problem.devices), np.zeros((scenarios, problem.devices))
        for item in np.argsort(-mean, kind="stable").tolist():
            free = held[stage].sum(axis=0) < problem.room[stage]
            at = cost(stage, item, load, series)
            device = int(np.argmin(np.where(free, at, np.inf)))
            held[stage, item, device] = True
            load[device] += mean[item]
            series[:, device] += problem.share[:, stage, item]
    return Placement(held)


def _pearson(left: Floats, right: Floats) -> float:
    """Pearson's correlation; 0 where either does not vary."""
    x, y = left - left.mean(), right - right.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 1e-15 else 0.0
