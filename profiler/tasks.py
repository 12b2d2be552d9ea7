"""What there is to measure, one task after the other, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clock", "Progress", "Task", "run_tasks"]

_TRUST_NS = 3_000_000_000
"""The estimates count like so much work done at the estimated pace: one odd task decides little."""

Clock = Callable[[], int]
Progress = Callable[[int, int, str], None]
"""Called with milliseconds done, milliseconds in all (both estimated), and what comes next."""


@dataclass(slots=True)
class Task:
    """One thing to measure and about how long it takes."""

    what: str
    estimate_ns: int
    run: Callable[[], None]


def run_tasks(
    tasks: list[Task], progress: Progress | None, clock: Clock = time.perf_counter_ns
) -> None:
    """Run tasks in turn, telling ``progress`` before each and at the end.

    The estimate of what is left scales with how long the tasks before took against their own.
    """
    spent = 0
    estimated = 0
    for index, task in enumerate(tasks):
        left = sum(later.estimate_ns for later in tasks[index:])
        pace = (spent + _TRUST_NS) / (estimated + _TRUST_NS)
        if progress is not None:
            progress(spent // 10**6, (spent + round(left * pace)) // 10**6, task.what)
        start = clock()
        task.run()
        spent += clock() - start
        estimated += task.estimate_ns
    if progress is not None:
        progress(spent // 10**6, spent // 10**6, "done")
