"""Solvers against objectives: the same workload, planned with each, and the clairvoyant bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.documents import Plan, Workload
from planner.factors import Factors
from planner.formats import variants
from planner.groups import candidates
from planner.kv import Place
from planner.memory import Forms
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.recompute import candidate_of
from planner.solve import OBJECTIVES, SOLVERS, make_plan
from solvers.registry import BOUNDS, Feature, Limits, load

__all__ = ["COMPARED", "BoundRow", "ComparisonRow", "compare", "compare_bound"]

_Proven = tuple[str, int, int, int, str | None, tuple[frozenset[int], ...], Forms, Factors]
"""Objective, n, b, bytes of a copy's piece, place of keys and values, formats, forms and slowdown:
what bounds are proven for."""

COMPARED: tuple[str, ...] = (*SOLVERS, *BOUNDS)
"""What can be compared: solvers, and bounds that are no candidates."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One solver under one objective.

    Attributes
    ----------
    objective_value, bound, gap
        On held-out sequences, in the objective's unit; see ``Plan``.
    plan_bound, clairvoyant_bound, price_of_information
        What any plan takes with these n and b and without caching, whose prefetches are fixed
        before routing is known (see ``solvers.proof_plan``); what even one takes that knows the
        routing; and how much more than that the plan takes: the most that a predictor could earn.
        None for a caching plan, and where the objective is not a time; ``plan_bound`` also where
        layers follow predictors.
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
    plan_bound: float | None
    clairvoyant_bound: float | None
    price_of_information: float | None
    winner: str
    stop: str
    tokens_per_second: float
    n_batches: int
    batch_size: int
    peak_bytes: int
    solve_seconds: float
    plan: Plan

    @property
    def promised(self) -> float:
        """The objective with the credit of a link that has one, by which rows are ranked; bound,
        gap and price of information are of ``objective_value``, without it."""
        return self.plan.promised


@dataclass(frozen=True, slots=True)
class BoundRow:
    """What no plan can beat under one objective, with any n and b that is looked at.

    ``value`` is in the objective's unit, on held-out sequences; None where the objective is none
    that the bound speaks of. ``n_batches`` and ``batch_size`` are those that it is lowest for.
    ``of_forms``: experts are allowed an error, and it speaks of the forms that were looked at for
    each n and b alone, not of every choice within that error.
    """

    solver: str
    objective: str
    value: float | None
    n_batches: int | None
    batch_size: int | None
    solve_seconds: float
    of_forms: bool = False


def compare(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solvers: tuple[str, ...] = SOLVERS,
    objectives: tuple[str, ...] = OBJECTIVES[:1],
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    then: str | None = None,
    tolerance: float = 0.01,
    kv: Place = "auto",
    predictors: bool | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[ComparisonRow]:
    """Plan with every solver for every objective.

    Parameters
    ----------
    profile, workload, memory_bytes, time_limit_seconds, seed, kv, predictors
        As for ``make_plan``.
    solvers, objectives
        Each with each.
    then, tolerance
        A second objective, for solvers that search.
    progress
        Called before each plan with the plans that are made, of how many, and what comes.

    Raises
    ------
    BudgetError, OptionError
        As ``make_plan``.
    """
    rows: list[ComparisonRow] = []
    proven: dict[_Proven, tuple[float | None, float | None]] = {}
    for objective in objectives:
        for solver in solvers:
            if progress is not None:
                total = len(solvers) * len(objectives)
                progress(len(rows), total, f"{solver} for {objective}")
            started = time.monotonic()
            searches = Feature.BOUND in load(solver).features
            plan = make_plan(
                profile,
                workload,
                memory_bytes=memory_bytes,
                solver=solver,
                objective=objective,
                time_limit_seconds=time_limit_seconds,
                seed=seed,
                then=then if searches else None,
                tolerance=tolerance,
                kv=kv,
                predictors=predictors,
            )
            spent = time.monotonic() - started
            own, known = _bounds(plan, profile, proven)
            rows.append(
                ComparisonRow(
                    solver=solver,
                    objective=objective,
                    objective_value=plan.objective,
                    bound=plan.bound,
                    gap=plan.gap,
                    plan_bound=own,
                    clairvoyant_bound=known,
                    price_of_information=None if known is None else plan.objective - known,
                    winner=plan.solver,
                    stop=plan.stop,
                    tokens_per_second=plan.predicted.tokens_per_second.value,
                    n_batches=plan.policy.n_batches,
                    batch_size=plan.policy.batch_size,
                    peak_bytes=plan.memory["device"].peak_bytes,
                    solve_seconds=spent,
                    plan=plan,
                )
            )
    return rows


def compare_bound(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solver: str = "belady",
    objective: str = OBJECTIVES[0],
    seed: int = 0,
    kv: Place = "auto",
) -> BoundRow:
    """The bound of a back end that makes no schedules, over all n and b.

    Copies and computation are timed as if they did not slow each other, so that it holds however
    much they overlap.
    """
    started = time.monotonic()
    goal = objective_named(objective, workload)
    best: tuple[float, int, int] | None = None
    if goal.measure != "memory":
        for one in candidates(profile, workload, memory_bytes, seed, goal, kv):
            shape = one.encoding.n_batches, one.encoding.batch_size
            # a mix of formats has no copy that is shorter than in the better of them
            for variant in variants(one):
                bound = load(solver).solve(variant.problem("judge"), Limits(seed=seed)).bound
                if bound is not None:
                    value = variant.value("judge", bound.value_ns)
                    best = (value, *shape) if best is None else min(best, (value, *shape))
    value_or_none, n, b = best if best is not None else (None, None, None)
    spent = time.monotonic() - started
    return BoundRow(solver, objective, value_or_none, n, b, spent, profile.allowed_ppb > 0)


def _bounds(
    plan: Plan, profile: Profile, proven: dict[_Proven, tuple[float | None, float | None]]
) -> tuple[float | None, float | None]:
    """Of the classes ``plan`` and ``clairvoyant``; see ``ComparisonRow``.

    ``proven`` keeps them: within a comparison they follow from the objective and the group alone,
    and take longer than most plans.
    """
    if plan.bound is None or plan.bound_class in ("physical", "cache"):
        return None, None
    if any(layer.predictor != "plan" for layer in plan.policy.layers):
        # the class ``plan`` prefetches by nothing that earlier layers chose
        return None, plan.bound if plan.bound_class == "clairvoyant" else None
    candidate = candidate_of(plan, profile)
    encoding = candidate.encoding
    shape = encoding.n_batches, encoding.batch_size, encoding.chunk_bytes
    formed = encoding.raw, encoding.profile.forms
    key = (plan.objective_name, *shape, plan.policy.kv, *formed, candidate.factors)
    if key not in proven:
        own, known = (
            None if bound is None else candidate.value("judge", bound.value_ns)
            for bound in candidate.both_bounds()
        )
        proven[key] = own, known
    return proven[key]
