"""CP-SAT on the sets: residents, prefetches and slots, over the fitted scenarios.

The model (design: level b). For each unit a binary *resident*, for each item a binary *prefetch*;
the slots; and for each stage of each pass its duration t and the copy work y that the channel is
ahead by at its end. With C all computation of a stage, L that up to the end of its lead, and sums
over items, weighted with how often they are demanded (control variate):

    t >= C
    t >= copies of (demanded or prefetched, not resident) + y - y before
    t >= L + copies of (demanded, neither resident nor prefetched)
    0 <= y <= slots' worth of copies
    residents + slots <= capacity

Copies may be paused and have no order. The model charges each prefetch in full, where the runtime
drops what the router did not choose; so its optimum is a good choice of sets, not a proof. The
replay has the last word among the model's sets, the search's candidates and their neighbours; the
bound is the relaxation's, which holds for all of them.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from ortools.sat.python import cp_model

from solvers.layout import START, settled, smallest_capacity
from solvers.outcome import Outcome, Schedule, StageChoice, Stop
from solvers.problem import Problem
from solvers.registry import Feature, Limits, Progress
from solvers.relaxation import relax
from solvers.sets import Search, unit_order

__all__ = ["CpSat"]

_UNIT_NS = 1_000
"""Durations in the model are in microseconds."""
_UNIT_BYTES = 4_096
"""Memory in the model is in blocks; sizes round up, the capacity down."""
_MOST_TERMS = 60_000
"""Terms of a model that CP-SAT gets anywhere with; beyond, search and relaxation stand alone."""


class CpSat:
    """See the module."""

    name = "cpsat"
    features = frozenset({Feature.RUNNABLE, Feature.USES_DEMAND, Feature.BOUND, Feature.HINT})

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Search, model, and search around what the model found."""
        smallest = smallest_capacity(problem.stages, problem.slot_bytes)
        if problem.capacity_bytes < smallest:
            return Outcome(Stop.INFEASIBLE, None, None, smallest)
        started = time.monotonic()
        deadline = started + limits.seconds
        guided = relax(problem, exact_demand=False)
        proven = relax(problem)
        bound = proven.bound if proven is not None and problem.measure == "time" else None
        search = Search(problem, unit_order(problem, guided), deadline)
        search.try_schedule(hint)
        search.run()
        if progress is not None:
            progress(self.name, search.best_value, bound.value_ns if bound else None)
        solved = False
        if search.best is not None and search.best_knobs is not None:
            left = deadline - time.monotonic()
            model = _Model(problem, search.best)
            if left > 0 and model.terms <= _MOST_TERMS:
                solved = model.solve(search.best, limits, left)
                for candidate in model.schedules(search.best):
                    search.try_schedule(candidate)
        stop = Stop.OPTIMAL if solved and not search.out_of_time else Stop.TIME_LIMIT
        if search.best is not None and not any(
            len(c.resident) < len(s.items)
            for c, s in zip(search.best.stages, problem.stages, strict=True)
        ):
            stop = Stop.OPTIMAL
        if progress is not None:
            progress(self.name, search.best_value, bound.value_ns if bound else None)
        return Outcome(stop, search.best, bound)


def _interruptible(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve in a thread, so that Control-C in this one ends the search and is raised."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(solver.solve, model)
        try:
            return future.result()
        except BaseException:
            solver.stop_search()
            raise


class _Model:
    """Variables, constraints, objective, solve and extract, in this order."""

    def __init__(self, problem: Problem, start: Schedule) -> None:
        self._problem = problem
        self._model = cp_model.CpModel()
        self.terms = 0
        self._values: dict[tuple[int, int], int] | None = None
        self._prefetched: dict[tuple[int, int], int] = {}
        self._variables(start)
        self._constraints(start)
        self._objective()

    def _variables(self, start: Schedule) -> None:
        model, problem = self._model, self._problem
        self.resident: dict[tuple[int, int], cp_model.IntVar] = {}
        self.prefetch: dict[tuple[int, int], cp_model.IntVar] = {}
        for index, stage in enumerate(problem.stages):
            if stage.start is not None:
                self.resident[index, START] = model.new_bool_var("")
            for item in range(len(stage.items)):
                self.resident[index, item] = model.new_bool_var("")
                if not stage.sequential:
                    self.prefetch[index, item] = model.new_bool_var("")
        horizon = int(problem.scenarios.compute_ns.max(initial=0)) + int(problem.copy_ns.sum())
        horizon += sum(stage.start.copy_ns if stage.start else 0 for stage in problem.stages)
        self._horizon = horizon // _UNIT_NS + 2
        shape = problem.scenarios.demand.shape[:2]
        self.duration = [
            [model.new_int_var(0, self._horizon, "") for _ in range(shape[1])]
            for _ in range(shape[0])
        ]
        self.ahead = [
            [model.new_int_var(0, self._horizon, "") for _ in range(shape[1])]
            for _ in range(shape[0])
        ]

    def _constraints(self, start: Schedule) -> None:
        model, problem = self._model, self._problem
        scenarios = problem.scenarios
        # slots are the search's: they change a schedule's worth in steps the model does not see
        room = problem.capacity_bytes - start.slots * problem.slot_bytes
        largest = max((s.start.held_bytes for s in problem.stages if s.start), default=0)
        room -= start.start_slots * largest
        held = []
        for (index, item), variable in self.resident.items():
            unit = (
                problem.stages[index].start if item == START else problem.stages[index].items[item]
            )
            if unit is not None:
                held.append(variable * -(-unit.held_bytes // _UNIT_BYTES))
            if not (start.start_slots if item == START else start.slots):
                model.add(variable == 1)
        model.add(sum(held) <= room // _UNIT_BYTES)
        for key, variable in self.prefetch.items():
            model.add_at_most_one(variable, self.resident[key])
        for index, stage in enumerate(problem.stages):
            if stage.sequential:
                for item in range(1, len(stage.items)):
                    model.add_implication(
                        self.resident[index, item], self.resident[index, item - 1]
                    )
        slot_ns = int(problem.copy_ns.max(initial=0))
        start_ns = max((s.start.copy_ns for s in problem.stages if s.start), default=0)
        limit = (start.slots * slot_ns + start.start_slots * start_ns) // _UNIT_NS + 1
        demanded = problem.demanded
        restarts = frozenset(scenarios.run_starts)
        before: cp_model.LinearExprT = 0
        for index in range(scenarios.passes):
            before = 0 if index in restarts else before
            for at, stage in enumerate(problem.stages):
                t, y = self.duration[index][at], self.ahead[index][at]
                model.add(t >= int(scenarios.compute_ns[index, at]) // _UNIT_NS)
                model.add(y <= limit)
                copies, late, constant, late_constant = [], [], 0, 0
                for item, unit in enumerate(stage.items):
                    copy = unit.copy_ns // _UNIT_NS
                    share = float(demanded[index, at, item])
                    part = round(copy * min(max(share, 0.0), 1.0))
                    constant += part
                    copies.append(-part * self.resident[at, item])
                    if not stage.sequential:
                        copies.append((copy - part) * self.prefetch[at, item])
                        late_constant += part
                        late.append(-part * self.resident[at, item])
                        late.append(-part * self.prefetch[at, item])
                if stage.start is not None:
                    copy = stage.start.copy_ns // _UNIT_NS
                    constant += copy
                    copies.append(-copy * self.resident[at, START])
                self.terms += len(copies) + len(late)
                model.add(t >= constant + sum(copies) + y - before)
                if late:
                    lead = int(scenarios.prologue_ns[index, at] + scenarios.lead_ns[index, at])
                    model.add(t >= lead // _UNIT_NS + late_constant + sum(late))
                before = y

    def _objective(self) -> None:
        weight = self._problem.scenarios.weight.tolist()
        self._model.minimize(
            sum(w * t for w, row in zip(weight, self.duration, strict=True) for t in row)
        )

    def solve(self, hint: Schedule, limits: Limits, seconds: float) -> bool:
        """Returns whether the model was solved to optimality."""
        for (index, item), variable in self.resident.items():
            choice = hint.stages[index]
            kept = choice.start_resident if item == START else item in choice.resident
            self._model.add_hint(variable, int(kept))
        for (index, item), variable in self.prefetch.items():
            self._model.add_hint(variable, int(item in hint.stages[index].prefetch))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        # its handler swallows Control-C and leaves the process with none
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = limits.seed
        solver.parameters.max_deterministic_time = limits.work
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.relative_gap_limit = 1e-4
        status = _interruptible(solver, self._model)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self._values = {key: int(solver.value(v)) for key, v in self.resident.items()}
            self._prefetched = {key: int(solver.value(v)) for key, v in self.prefetch.items()}
        return bool(status == cp_model.OPTIMAL)

    def schedules(self, start: Schedule) -> list[Schedule]:
        """The model's sets, with its prefetches and with the hint's."""
        if self._values is None:
            return []
        share = np.tensordot(
            self._problem.scenarios.weight, self._problem.demanded, axes=1
        ).tolist()
        found = []
        for own in (True, False):
            choices = []
            for index, stage in enumerate(self._problem.stages):
                kept = tuple(i for i in range(len(stage.items)) if self._values[index, i])
                if stage.sequential:
                    ahead = tuple(i for i in range(len(stage.items)) if i not in kept)
                elif own:
                    chosen = [i for i in range(len(stage.items)) if self._prefetched[index, i]]
                    ahead = tuple(i for _, i in sorted((-share[index][i], i) for i in chosen))
                else:
                    ahead = tuple(i for i in start.stages[index].prefetch if i not in kept)
                first = bool(self._values.get((index, START), 0))
                choices.append(StageChoice(first, kept, ahead))
            found.append(
                settled(
                    self._problem, tuple(choices), start.slots, start.start_slots, start.reserve
                )
            )
        return found
