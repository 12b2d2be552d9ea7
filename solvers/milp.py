"""The sets model as a mixed-integer program, written with PuLP, solved by HiGHS or CBC.

As for ``cpsat``, the replay has the last word. HiGHS reads the program from PuLP's MPS file, since
PuLP's own interface to it prints a banner on the standard output.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import highspy
import pulp

from solvers.exact import ExactSolver, Solved
from solvers.program import QuietHighs
from solvers.registry import Limits
from solvers.sets_model import IntegerModel

__all__ = ["Milp", "MilpCbc", "solve_with_cbc", "solve_with_highs"]

_NODES_PER_WORK = 400
"""Branch-and-bound nodes for each unit of work: a limit that does not depend on the clock."""
_GAP = 1e-4


class Milp(ExactSolver):
    """See the module; solved by HiGHS."""

    name = "milp"

    def solve_model(self, model: IntegerModel, limits: Limits) -> Solved | None:
        """See ``solve_with_highs``."""
        return solve_with_highs(model, limits)


class MilpCbc(ExactSolver):
    """See the module; solved by CBC."""

    name = "milp-cbc"

    def solve_model(self, model: IntegerModel, limits: Limits) -> Solved | None:
        """See ``solve_with_cbc``."""
        return solve_with_cbc(model, limits)


def _program(model: IntegerModel) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    program = pulp.LpProblem("sets", pulp.LpMinimize)
    # variables
    columns = [
        program.add_variable(
            f"x{index}",
            0,
            upper,
            cat=pulp.LpBinary if index < model.binaries else pulp.LpContinuous,
        )
        for index, upper in enumerate(model.upper)
    ]
    # objective
    program.setObjective(
        pulp.LpAffineExpression([(columns[at], value) for at, value in model.cost.items()])
    )
    # constraints
    for row in model.rows:
        terms = zip(row.columns, row.coefficients, strict=True)
        expression = pulp.LpAffineExpression([(columns[at], value) for at, value in terms])
        program.addConstraint(expression >= row.lower)
    return program, columns


def solve_with_highs(model: IntegerModel, limits: Limits) -> Solved | None:
    """HiGHS, one thread, with a limit on nodes."""
    program, columns = _program(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sets.mps"
        program.writeMPS(str(path))
        solver = QuietHighs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", limits.seed)
        solver.setOptionValue("time_limit", limits.seconds)
        solver.setOptionValue("mip_max_nodes", max(int(limits.work * _NODES_PER_WORK), 1))
        solver.setOptionValue("mip_rel_gap", _GAP)
        solver.readModel(str(path))
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    # PuLP leaves out columns without a coefficient, and HiGHS keeps the file's order
    at = dict(zip(solver.getLp().col_names_, solver.getSolution().col_value, strict=True))
    values = {index: round(at.get(columns[index].name, 0.0)) for index in range(model.binaries)}
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    objective = float(info.objective_function_value)
    return Solved(values, round(objective), math.floor(float(info.mip_dual_bound)), bool(optimal))


def solve_with_cbc(model: IntegerModel, limits: Limits) -> Solved | None:
    """CBC, as it comes with PuLP, one thread, with a limit on nodes. It tells no bound but by
    being optimal within the gap."""
    program, columns = _program(model)
    solver = pulp.COIN_CMD(
        # the binary that PuLP brings along; where a later one does not, CBC is looked for in PATH
        path=getattr(getattr(pulp, "PULP_CBC_CMD", None), "pulp_cbc_path", None),
        msg=False,
        threads=1,
        timeLimit=limits.seconds,
        gapRel=_GAP,
        maxNodes=max(int(limits.work * _NODES_PER_WORK), 1),
        options=[f"randomSeed {limits.seed + 1}"],
    )
    program.solve(solver)
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    values = {index: round(columns[index].varValue or 0.0) for index in range(model.binaries)}
    objective = float(pulp.value(program.objective) or 0.0)
    optimal = program.sol_status == pulp.LpSolutionOptimal
    bound = math.floor(objective * (1 - _GAP)) if optimal else 0
    return Solved(values, round(objective), bound, optimal)
