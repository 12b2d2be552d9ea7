"""What a stage's demand is said to be while an earlier stage's is being worked on.

Where a schedule lets a stage look ahead, the items that it is said to demand take the place of its
prefetches that have not begun, as soon as the demand of the stage before is known
(docs/runtime.md, "Predictors").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solvers.outcome import Schedule
from solvers.problem import Problem

__all__ = ["Named", "named_ahead"]

Named = Mapping[tuple[int, int], tuple[int, tuple[int, ...]]]
"""By pass and stage: how many stages on a predictor then names items, and which, in order."""


def named_ahead(problem: Problem, schedule: Schedule) -> Named | None:
    """What is said in all passes; None where no stage looks ahead, or nothing is known of it.

    Of items that as many rows are said to demand, the one that is demanded more often comes first,
    then the lower index.
    """
    if problem.ahead is None:
        return None
    speaking: list[tuple[int, int]] = []
    before = None
    for index, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        if stage.sequential or not stage.items:
            continue
        if choice.looks_ahead and before is not None:
            speaking.append((before, index))
        before = index
    if not speaking:
        return None
    demand = problem.scenarios.demand
    often = demand.sum(axis=0, dtype=np.int64)
    named: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
    for before, index in speaking:
        rows = problem.ahead[: len(demand), index]
        for number, row in enumerate(rows):
            order = np.lexsort((-often[index], -row))[: np.count_nonzero(row)]
            named[number, before] = index - before, tuple(order.tolist())
    return named
