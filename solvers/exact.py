"""What the exact back ends share: relaxation, search, sets model, and the replay's last word."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

from solvers.belady import cached_bound
from solvers.caching import tune_caches
from solvers.chunk_search import move_exactly
from solvers.host_search import tune_host
from solvers.layout import infeasible
from solvers.local import move_residents
from solvers.outcome import Bound, Outcome, Schedule, Stop
from solvers.polish import polish, polish_ahead
from solvers.problem import Problem
from solvers.registry import BACK_ENDS, HOSTED, Feature, Limits, Progress, load
from solvers.relaxation import relax
from solvers.sets import Search, unit_order
from solvers.sets_model import IntegerModel, SetsModel

__all__ = ["MOST_TERMS", "ExactSolver", "Solved"]

MOST_TERMS = 60_000
"""Terms of a model that gets anywhere in seconds; beyond, search and relaxation stand alone."""
_TERMS_PER_WORK = 20_000
"""Terms of a model that gets anywhere with a unit of work."""
_PROGRAMS, _LEAST_SECONDS = 0.5, 2.0
"""The most that linear programs may take of what is left of the time; where little is, so many
seconds, so that none of the small ones asks how busy the machine is."""


def _for_programs(left_seconds: float) -> float:
    return max(left_seconds * _PROGRAMS, _LEAST_SECONDS)


def rules(problem: Problem, limits: Limits) -> list[Schedule]:
    """What the strategies make of a problem: where a search begins, so that it never ends worse."""
    found = []
    hosted = () if problem.scenarios.host_work_ns is None else HOSTED
    for name in (*BACK_ENDS, *hosted):
        backend = load(name)
        if Feature.RUNNABLE in backend.features and Feature.BOUND not in backend.features:
            schedule = backend.solve(problem, limits).schedule
            if schedule is not None and schedule not in found:
                found.append(schedule)
    return found


class Solved(NamedTuple):
    """What a back end made of an integer model.

    ``values`` are those of the binary columns; ``objective`` and ``bound`` are the model's own (not
    the replay's), in its unit; ``optimal`` where they meet.
    """

    values: dict[int, int]
    objective: int
    bound: int
    optimal: bool


class ExactSolver(ABC):
    """A back end that solves integer models."""

    name: str
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND, Feature.BOUND, Feature.HINT})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Search, solve the sets model, and let the replay choose among what was found."""
        refused = infeasible(problem)
        if refused is not None:
            return refused
        deadline = time.monotonic() + limits.seconds
        guided = relax(problem, exact_demand=False, seconds=_for_programs(limits.seconds))
        proven = None
        if problem.measure == "time" and (limits.bound or progress is not None):
            left = _for_programs(deadline - time.monotonic())
            proven = relax(problem, every_slot=limits.bound, seconds=left)
        bound = proven.bound if proven is not None else None
        search = Search(problem, unit_order(problem, guided), deadline)
        try:
            stop = self._improve(search, limits, hint, bound, progress)
        except KeyboardInterrupt:
            # the best so far; who called decides whether that is the end of everything
            stop = Stop.INTERRUPTED
        if search.best is None:
            raise KeyboardInterrupt
        if bound is not None and search.best.eviction != "none":
            # what was proven is for schedules without caches
            bound = cached_bound(problem, search.best)
        return Outcome(stop, search.best, bound)

    @abstractmethod
    def solve_model(self, model: IntegerModel, limits: Limits) -> Solved | None:
        """Solve a model within what is left of the limits; None where nothing was found."""

    def _improve(
        self,
        search: Search,
        limits: Limits,
        hint: Schedule | None,
        bound: Bound | None,
        progress: Progress | None,
    ) -> Stop:
        """Search, model and polish, into ``search.best``."""
        problem, deadline = search.problem, search.deadline
        starts = [hint] if hint is not None else []
        starts += rules(problem, limits)
        for one in starts:
            if one.eviction == "none":
                search.try_schedule(one)
        search.run()
        if search.best is None:
            raise AssertionError("no candidate fits, although one slot of each kind does")

        def tell() -> None:
            if progress is not None:
                progress(self.name, search.best_value, bound.value_ns if bound else None)

        tell()
        streams = any(
            len(choice.resident) < len(stage.items) or (stage.start and not choice.start_resident)
            for choice, stage in zip(search.best.stages, problem.stages, strict=True)
        )
        if not streams:
            return Stop.OPTIMAL
        move_residents(search, limits.work, limits.seed)
        move_exactly(search, limits.work, limits.seed)
        tell()
        solved: Solved | None = None
        if search.best.eviction == "none":
            model = SetsModel(problem, search.best)
            left = deadline - time.monotonic()
            if left > 0 and model.terms <= min(MOST_TERMS, limits.work * _TERMS_PER_WORK):
                solved = self.solve_model(model, Limits(limits.work, left, limits.seed))
            if solved is not None:
                for candidate in model.schedules(solved.values):
                    search.try_schedule(candidate)
        polish(search)
        polish_ahead(search)
        tune_caches(search)
        tune_host(search, starts)
        for one in starts:
            # moves and model know no caching, so those that cache are no place to start from
            search.try_schedule(one)
        tell()
        done = solved is not None and solved.optimal and not search.out_of_time
        # the model knows no host and no cache
        done = done and problem.scenarios.host_work_ns is None and search.best.eviction == "none"
        return Stop.OPTIMAL if done else Stop.TIME_LIMIT
