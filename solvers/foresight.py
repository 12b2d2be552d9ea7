"""What a stage's demand is said to be while an earlier stage's is being worked on.

Where a schedule lets a stage look ahead, the items that it is said to demand take the place of its
prefetches that have not begun, as soon as the demand of the stage before is known
(docs/runtime.md, "Predictors"). That is asked at the end of the lead of the stage before, which
takes so much longer (``Scenarios.asking_ns``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solvers.outcome import Schedule
from solvers.problem import Problem

__all__ = ["Named", "asking", "named_ahead"]

Named = Mapping[tuple[int, int], tuple[int, tuple[int, ...]]]
"""By pass and stage: how many stages on a predictor then names items, and which, in order."""


def asking(problem: Problem, schedule: Schedule) -> dict[int, int]:
    """Of each stage that a later one looks ahead from, which one that is."""
    found: dict[int, int] = {}
    before = None
    for index, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        if stage.sequential or not stage.items:
            continue
        if choice.looks_ahead and before is not None:
            found[before] = index
        before = index
    return found


def named_ahead(problem: Problem, schedule: Schedule) -> Named | None:
    """What is said in all passes; None where no stage looks ahead, or nothing is known of it.

    Of items that as many rows are said to demand, the one that is demanded more often comes first,
    then the lower index.
    """
    if problem.ahead is None:
        return None
    speaking = asking(problem, schedule)
    if not speaking:
        return None
    demand = problem.scenarios.demand
    often = demand.sum(axis=0, dtype=np.int64)
    named: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
    for before, index in speaking.items():
        rows = problem.ahead[: len(demand), index]
        for number, row in enumerate(rows):
            order = np.lexsort((-often[index], -row))[: np.count_nonzero(row)]
            named[number, before] = index - before, tuple(order.tolist())
    return named
