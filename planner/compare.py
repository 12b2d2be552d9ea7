"""Solvers against objectives: the same workload, planned with each."""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.documents import Plan, Workload
from planner.profiles import Profile
from planner.solve import OBJECTIVES, SOLVERS, make_plan

__all__ = ["ComparisonRow", "compare"]


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One solver under one objective.

    Attributes
    ----------
    objective_value, bound, gap
        On held-out sequences, in the objective's unit; see ``Plan``.
    winner
        Whose plan it is: the solver's own, or a baseline that was better.
    peak_bytes
        Device memory.
    solve_seconds
        Wall time of planning.
    """

    solver: str
    objective: str
    objective_value: float
    bound: float | None
    gap: float | None
    winner: str
    stop: str
    tokens_per_second: float
    n_batches: int
    batch_size: int
    peak_bytes: int
    solve_seconds: float
    plan: Plan


def compare(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solvers: tuple[str, ...] = SOLVERS,
    objectives: tuple[str, ...] = OBJECTIVES[:1],
    time_limit_seconds: float = 10.0,
    seed: int = 0,
) -> list[ComparisonRow]:
    """Plan with every solver for every objective.

    Raises
    ------
    BudgetError, OptionError
        As ``make_plan``.
    """
    rows = []
    for objective in objectives:
        for solver in solvers:
            started = time.monotonic()
            plan = make_plan(
                profile,
                workload,
                memory_bytes=memory_bytes,
                solver=solver,
                objective=objective,
                time_limit_seconds=time_limit_seconds,
                seed=seed,
            )
            rows.append(
                ComparisonRow(
                    solver=solver,
                    objective=objective,
                    objective_value=plan.objective,
                    bound=plan.bound,
                    gap=plan.gap,
                    winner=plan.solver,
                    stop=plan.stop,
                    tokens_per_second=plan.predicted.tokens_per_second.value,
                    n_batches=plan.policy.n_batches,
                    batch_size=plan.policy.batch_size,
                    peak_bytes=plan.memory["device"].peak_bytes,
                    solve_seconds=time.monotonic() - started,
                    plan=plan,
                )
            )
    return rows
