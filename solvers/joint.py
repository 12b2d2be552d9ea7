"""Everything decided in one CP-SAT model, for small instances: the referee of the decomposition.

Residents, slots, the order of copies and the order of work, over all passes at once. Copies are
made chunk by chunk, and a chunk may begin at any time after the one before: pauses, overtaking and
copies held back (``Schedule.hold``) are all in it. Computation follows the stages, an item is
worked on after its stage's lead and its copy, and holds a slot from the start of the copy to the
end of the work; a start unit to the end of the lead. The demand is known from the outset and no
prefetch is wasted, so with several passes, whose demands differ, the value is a bound for any
policy without eviction caching that does not know them (``solvers.policies`` has the best of
those); with one pass there is nothing that a schedule could not know. Where there is a host, any
item that is demanded and not resident may be worked on there instead, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from solvers.cpsat import repeatable_solver
from solvers.errors import OptionError
from solvers.outcome import Stop
from solvers.problem import Problem, Unit
from solvers.registry import Limits

__all__ = ["MOST_CHUNKS", "Joint", "solve_joint"]

MOST_CHUNKS = 200
"""Chunks of copies of a model that CP-SAT closes."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Best value and bound (ns, weighted); they are equal when ``stop`` says optimal."""

    stop: Stop
    value_ns: int | None
    bound_ns: int


class _Model:
    """Variables and constraints, run by run."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        scenarios = problem.scenarios
        copies = int(problem.copy_ns.sum()) + int(problem.pass_start_ns.max(axis=0).sum())
        self.horizon = int(scenarios.compute_ns.sum()) + copies * scenarios.passes
        self.horizon += int(problem.start_lead_ns.sum())
        if scenarios.host_work_ns is not None:
            self.horizon += int(scenarios.host_work_ns.sum())
        self.kept = [[self.model.new_bool_var("") for _ in stage.items] for stage in problem.stages]
        self.start_kept = [
            self.model.new_bool_var("") if stage.start else None for stage in problem.stages
        ]
        self.slots = self.model.new_int_var(0, 1 + scenarios.demand.size, "")
        self.start_slots = self.model.new_int_var(0, 1 + len(problem.stages), "")
        self._memory()
        self.ends: list[Any] = []
        for run in scenarios.runs():
            self._run(run)
        total: Any = sum(
            int(problem.correction[at, item]) * ~kept
            for at, row in enumerate(self.kept)
            for item, kept in enumerate(row)
        )
        for index in range(scenarios.passes):
            first = index in scenarios.run_starts
            before = 0 if first else self.ends[index - 1]
            total += int(scenarios.weight[index]) * (self.ends[index] - before)
        self.model.minimize(total)

    def _memory(self) -> None:
        problem, model = self.problem, self.model
        sizes = problem.start_bytes.tolist()
        largest = model.new_int_var(0, max(sizes, default=0), "")
        room = model.new_int_var(0, problem.capacity_bytes, "")
        model.add_multiplication_equality(room, [largest, self.start_slots])
        total: Any = self.slots * problem.slot_bytes + room
        for index, stage in enumerate(problem.stages):
            kept = self.start_kept[index]
            if kept is not None:
                total += kept * sizes[index]
                model.add(largest >= sizes[index]).only_enforce_if(~kept)
                model.add(self.start_slots >= 1).only_enforce_if(~kept)
            for item, unit in enumerate(stage.items):
                total += self.kept[index][item] * unit.held_bytes
                model.add(self.slots >= 1).only_enforce_if(~self.kept[index][item])
            if stage.sequential:
                for one, after in zip(self.kept[index], self.kept[index][1:], strict=False):
                    model.add_implication(after, one)
        model.add(total <= problem.capacity_bytes)

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.horizon, "")

    def _copy(self, unit: Unit, kept: Any, channel: list[Any], holds: list[Any]) -> tuple[Any, Any]:
        """End of a copy that takes place unless ``kept``, and the end of its stay in a slot."""
        begins, leaves, stay = self._time(), self._time(), self._time()
        after, ends = begins, begins
        for left in reversed(range(unit.chunks)):
            ends = self._time()
            took = unit.chunk_ns if left else unit.last_ns
            channel.append(self.model.new_optional_interval_var(after, took, ends, ~kept, ""))
            if left:
                after = self._time()
                self.model.add(after >= ends).only_enforce_if(~kept)
        holds.append(self.model.new_optional_interval_var(begins, stay, leaves, ~kept, ""))
        return ends, leaves

    def _run(self, run: range) -> None:
        model, problem, scenarios = self.model, self.problem, self.problem.scenarios
        channel: list[Any] = []
        holds: list[Any] = []
        start_holds: list[Any] = []
        now: Any = 0
        for index in run:
            for at, stage in enumerate(problem.stages):
                begins = self._time()
                model.add(begins >= now + int(scenarios.prologue_ns[index, at]))
                known = self._time()
                kept = self.start_kept[at]
                lead: Any = int(scenarios.lead_ns[index, at])
                if scenarios.start_lead_ns is not None and kept is not None:
                    lead += int(scenarios.start_lead_ns[index, at]) * ~kept
                model.add(known == begins + lead)
                if stage.start is not None and kept is not None:
                    start = stage.start_in(scenarios.shortened[index]) or stage.start
                    arrives, leaves = self._copy(start, kept, channel, start_holds)
                    model.add(begins >= arrives).only_enforce_if(~kept)
                    model.add(leaves == known).only_enforce_if(~kept)
                compute: list[Any] = []
                hosted: list[Any] = []
                ends = self._time()
                for item in scenarios.demand[index, at].nonzero()[0].tolist():
                    work = int(scenarios.work_ns[index, at, item])
                    begin, end = self._time(), self._time()
                    model.add(begin >= known)
                    model.add(ends >= end + int(scenarios.epilogue_ns[index, at]))
                    stays = self.kept[at][item]
                    if scenarios.host_work_ns is None or stage.sequential:
                        compute.append(model.new_interval_var(begin, work, end, ""))
                    else:
                        there = model.new_bool_var("")
                        model.add_implication(there, ~stays)
                        compute.append(
                            model.new_optional_interval_var(begin, work, end, ~there, "")
                        )
                        work = int(scenarios.host_work_ns[index, at, item])
                        hosted.append(model.new_optional_interval_var(begin, work, end, there, ""))
                        copied_not = model.new_bool_var("")
                        model.add_max_equality(copied_not, [stays, there])
                        stays = copied_not
                    arrives, leaves = self._copy(stage.items[item], stays, channel, holds)
                    model.add(begin >= arrives).only_enforce_if(~stays)
                    model.add(leaves == end).only_enforce_if(~stays)
                model.add(ends >= known + int(scenarios.epilogue_ns[index, at]))
                model.add_no_overlap(compute)
                model.add_no_overlap(hosted)
                now = ends
            self.ends.append(now)
        model.add_no_overlap(channel)
        model.add_cumulative(holds, [1] * len(holds), self.slots)
        model.add_cumulative(start_holds, [1] * len(start_holds), self.start_slots)


def _chunks(problem: Problem) -> int:
    """Chunks of all copies of a schedule that keeps nothing."""
    scenarios, count = problem.scenarios, 0
    for index, short in enumerate(scenarios.shortened):
        for at, stage in enumerate(problem.stages):
            start = stage.start_in(short)
            count += 0 if start is None else start.chunks
            demanded = scenarios.demand[index, at].nonzero()[0].tolist()
            count += sum(stage.items[item].chunks for item in demanded)
    return count


def solve_joint(problem: Problem, limits: Limits) -> Joint:
    """Solve a small instance.

    Raises
    ------
    OptionError
        If the instance is too large, measures something else than time, or has a price of copies
        ahead: those in vain, which it may pay for, are not in the model.
    """
    count = _chunks(problem)
    if count > MOST_CHUNKS:
        raise OptionError(f"the joint model is for at most {MOST_CHUNKS} chunks, not {count}")
    if problem.measure != "time":
        raise OptionError(f"the joint model measures time, not {problem.measure}")
    if problem.price is not None:
        raise OptionError("the joint model copies nothing in vain, and copies ahead have a price")
    built = _Model(problem)
    solver = repeatable_solver(limits)
    status = solver.solve(built.model)
    if status == cp_model.INFEASIBLE:
        return Joint(Stop.INFEASIBLE, None, 0)
    bound = round(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Joint(Stop.TIME_LIMIT, None, bound)
    stop = Stop.OPTIMAL if status == cp_model.OPTIMAL else Stop.TIME_LIMIT
    return Joint(stop, round(solver.objective_value), bound)
