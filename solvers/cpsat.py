"""CP-SAT on the sets model, over the fitted scenarios.

The replay has the last word among the model's sets and the search's candidates; the bound is the
relaxation's, which holds for all of them. ``optimal`` says that the sets model was solved to
optimality; how far the replayed schedule is from the bound, the gap says.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ortools.sat.python import cp_model

from solvers.exact import ExactSolver, Solved
from solvers.registry import Limits
from solvers.sets_model import IntegerModel

__all__ = ["CpSat", "repeatable_solver", "solve_model"]


class CpSat(ExactSolver):
    """See the module."""

    name = "cpsat"

    def solve_model(self, model: IntegerModel, limits: Limits) -> Solved | None:
        """See ``solve_model``."""
        return solve_model(model, limits)


def solve_model(model: IntegerModel, limits: Limits) -> Solved | None:
    """Solve an integer model."""
    # variables
    program = cp_model.CpModel()
    columns = [
        program.new_bool_var("") if index < model.binaries else program.new_int_var(0, upper, "")
        for index, upper in enumerate(model.upper)
    ]
    # constraints
    for row in model.rows:
        terms = [columns[column] for column in row.columns]
        program.add(cp_model.LinearExpr.weighted_sum(terms, row.coefficients) >= row.lower)
    # objective
    program.minimize(
        cp_model.LinearExpr.weighted_sum(
            [columns[column] for column in model.cost], list(model.cost.values())
        )
    )
    for column, value in model.hinted().items():
        program.add_hint(columns[column], value)
    # solve and extract
    solver = repeatable_solver(limits)
    solver.parameters.relative_gap_limit = 1e-4
    status = _interruptible(solver, program)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    values = {index: int(solver.value(columns[index])) for index in range(model.binaries)}
    objective, bound = round(solver.objective_value), round(solver.best_objective_bound)
    return Solved(values, objective, bound, bool(status == cp_model.OPTIMAL))


def repeatable_solver(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT with one worker and a deterministic limit, so that it repeats itself."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    # its handler swallows Control-C and leaves the process with none
    solver.parameters.catch_sigint_signal = False
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_deterministic_time = limits.work
    solver.parameters.max_time_in_seconds = limits.seconds
    return solver


def _interruptible(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve in a thread, so that Control-C in this one ends the search and is raised."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(solver.solve, model)
        try:
            return future.result()
        except BaseException:
            solver.stop_search()
            raise
