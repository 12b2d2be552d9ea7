"""Lower bounds on the expected load of the fullest device, valid for every placement."""

from __future__ import annotations

import numpy as np

from solvers.placement.problem import Floats, PlacementProblem

__all__ = ["mean_bound", "scenario_bounds", "stage_bounds"]


def scenario_bounds(problem: PlacementProblem) -> Floats:
    """[scenarios, stages]: no placement's fullest device takes a smaller share.

    The largest of

    - the mean share, 1 / devices;
    - the largest item, split over as many devices as it may have copies;
    - without replicas, by the pigeonhole principle: of the ``devices + 1`` largest items two share
      a device; and where all rooms are full and equal, a device with the largest item (or those
      two) holds so many others as well, at best the smallest.

    Each scenario is bounded by itself, as if its loads were known before items were placed, so the
    mean is far below what any single placement reaches on scenarios that differ.
    """
    share = problem.share
    _, stages, items = share.shape
    devices = problem.devices
    asked = share.sum(axis=2)
    bound: Floats = np.maximum(
        asked / devices, share.max(axis=2) / min(devices, 1 + problem.replicas)
    )
    if problem.replicas:
        return bound
    ranked = -np.sort(-share, axis=2)
    if items > devices:
        pair = ranked[:, :, devices - 1] + ranked[:, :, devices]
        bound = np.maximum(bound, pair)
    for stage in range(stages):
        room = np.minimum(problem.room[stage], items)
        if int(room.sum()) != items or int(room.min()) != int(room.max()):
            continue
        rising = np.cumsum(ranked[:, stage, ::-1], axis=1)
        full = int(room[0])
        if full >= 2:
            others = rising[:, full - 2]
            bound[:, stage] = np.maximum(bound[:, stage], ranked[:, stage, 0] + others)
        if full >= 3 and items > devices:
            pair = ranked[:, stage, devices - 1] + ranked[:, stage, devices]
            bound[:, stage] = np.maximum(bound[:, stage], pair + rising[:, full - 3])
    return bound


def stage_bounds(problem: PlacementProblem) -> Floats:
    """[stages]: the mean of ``scenario_bounds`` over the scenarios that ask anything of a stage."""
    total = (scenario_bounds(problem) * problem.asked).sum(axis=0)
    means: Floats = total / np.maximum(problem.asked.sum(axis=0), 1)
    return means


def mean_bound(problem: PlacementProblem, bounds: Floats) -> float:
    """Of bounds [stages], one on ``Balance.average_max_load``: each counts as often as scenarios
    ask anything of its stage."""
    weights = problem.asked.sum(axis=0)
    return float((bounds * weights).sum() / max(int(weights.sum()), 1))
