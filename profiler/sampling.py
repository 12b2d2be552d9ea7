"""Taking samples: warm-up, as many as the spread asks for, within a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from profiler.curves import median_and_spread

__all__ = ["Clock", "Effort", "Progress", "Task", "run_tasks", "sample"]

Clock = Callable[[], int]
Progress = Callable[[int, int, str], None]
"""Called with milliseconds done, milliseconds in all (both estimated), and what comes next."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to measure one thing.

    Attributes
    ----------
    warm_up
        Unmeasured turns before: caches of libraries, page faults, thread wake-ups.
    least, most
        Bounds on the number of samples.
    precision
        Enough when the standard error of the median falls below this share of it.
    budget_ns
        No further sample is begun beyond this (once there are ``least``).
    """

    warm_up: int = 2
    least: int = 7
    most: int = 61
    precision: float = 0.01
    budget_ns: int = 500_000_000


def sample(
    run: Callable[[int], int | None], effort: Effort, clock: Clock = time.perf_counter_ns
) -> list[int]:
    """Durations in ns of ``run(turn)``.

    ``turn`` counts up, so that the caller can take other data each time. ``run`` may return the
    duration itself, where only a part of it is what is measured.
    """
    begun = clock()
    for turn in range(effort.warm_up):
        run(turn)
    samples: list[int] = []
    while len(samples) < effort.most:
        start = clock()
        own = run(effort.warm_up + len(samples))
        end = clock()
        samples.append(end - start if own is None else own)
        if len(samples) < effort.least:
            continue
        if end - begun > effort.budget_ns or _precise(samples, effort.precision):
            break
    return samples


def _precise(samples: list[int], precision: float) -> bool:
    middle, spread = median_and_spread(samples)
    # of a normal distribution: sigma = half the quartile distance / 0.6745, and the median's
    # standard error is 1.2533 sigma / sqrt(n)
    error = 1.2533 / 0.6745 * spread / len(samples) ** 0.5
    return bool(error <= precision * middle)


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
        pace = spent / estimated if estimated else 1.0
        if progress is not None:
            progress(spent // 10**6, (spent + round(left * pace)) // 10**6, task.what)
        start = clock()
        task.run()
        spent += clock() - start
        estimated += task.estimate_ns
    if progress is not None:
        progress(spent // 10**6, spent // 10**6, "done")
