"""What the exact back ends share: relaxation, search, sets model, and the replay's last word."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from solvers.layout import smallest_capacity
from solvers.local import move_residents
from solvers.outcome import Bound, Outcome, Schedule, Stop
from solvers.polish import polish
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress
from solvers.relaxation import relax
from solvers.sets import Search, unit_order
from solvers.sets_model import SetsModel

__all__ = ["MOST_TERMS", "ExactSolver", "Solved", "solve_exactly"]

MOST_TERMS = 60_000
"""Terms of a model that gets anywhere in seconds; beyond, search and relaxation stand alone."""


class Solved(NamedTuple):
    """What a back end made of the sets model.

    ``values`` are those of the binary columns; ``objective`` and ``bound`` are the model's own (not
    the replay's), in its unit; ``optimal`` where they meet.
    """

    values: dict[int, int]
    objective: int
    bound: int
    optimal: bool


class ExactSolver(ABC):
    """A back end that solves the sets model."""

    name: str
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND, Feature.BOUND, Feature.HINT})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Search, model, and the better of what they find."""
        return solve_exactly(self.name, self.solve_model, problem, limits, hint, progress)

    @abstractmethod
    def solve_model(self, sets: SetsModel, limits: Limits) -> Solved | None:
        """Solve the sets model; None where nothing was found."""


def solve_exactly(
    name: str,
    engine: Callable[[SetsModel, Limits], Solved | None],
    problem: Problem,
    limits: Limits,
    hint: Schedule | None,
    progress: Progress | None,
) -> Outcome:
    """Search, hand the sets model to ``engine``, and let the replay choose among what was found.

    ``engine`` gets the model and what is left of the limits, and returns None where it found
    nothing.
    """
    smallest = smallest_capacity(problem.stages, problem.slot_bytes)
    if problem.capacity_bytes < smallest:
        return Outcome(Stop.INFEASIBLE, None, None, smallest)
    deadline = time.monotonic() + limits.seconds
    guided = relax(problem, exact_demand=False)
    proven = relax(problem) if problem.measure == "time" else None
    bound = proven.bound if proven is not None else None
    search = Search(problem, unit_order(problem, guided), deadline)
    try:
        stop = _improve(search, name, engine, limits, hint, bound, progress)
    except KeyboardInterrupt:
        # the best so far; who called decides whether that is the end of everything
        stop = Stop.INTERRUPTED
    if search.best is None:
        raise KeyboardInterrupt
    return Outcome(stop, search.best, bound)


def _improve(
    search: Search,
    name: str,
    engine: Callable[[SetsModel, Limits], Solved | None],
    limits: Limits,
    hint: Schedule | None,
    bound: Bound | None,
    progress: Progress | None,
) -> Stop:
    """Search, model and polish, into ``search.best``."""
    problem, deadline = search.problem, search.deadline
    search.try_schedule(hint)
    search.run()
    if search.best is None:
        raise AssertionError("no candidate fits, although one slot of each kind does")

    def tell() -> None:
        if progress is not None:
            progress(name, search.best_value, bound.value_ns if bound else None)

    tell()
    streams = any(
        len(choice.resident) < len(stage.items) or (stage.start and not choice.start_resident)
        for choice, stage in zip(search.best.stages, problem.stages, strict=True)
    )
    if not streams:
        return Stop.OPTIMAL
    move_residents(search, limits.work, limits.seed)
    tell()
    solved: Solved | None = None
    if search.best.eviction == "none":
        model = SetsModel(problem, search.best)
        left = deadline - time.monotonic()
        if left > 0 and model.terms <= MOST_TERMS:
            solved = engine(model, Limits(limits.work, left, limits.seed))
        if solved is not None:
            for candidate in model.schedules(solved.values):
                search.try_schedule(candidate)
    polish(search)
    tell()
    done = solved is not None and solved.optimal and not search.out_of_time
    return Stop.OPTIMAL if done else Stop.TIME_LIMIT
