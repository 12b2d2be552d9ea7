"""From a profile and a workload to a plan: the best of a solver's and the baselines' policies.

Every n and b that fits is looked at quickly; the most promising are solved, and given to all
runnable baselines (``planner.entries``). The best policy on the *choose* sequences wins, with the
credit of a link that has one, which solvers do not know; what the plan reports is measured on the
*judge* sequences, which nothing before has seen.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from planner.budget import Budget
from planner.documents import MOST_REQUESTS, Asked, Plan, Workload
from planner.entries import (
    BASELINES,
    TRIED,
    Entry,
    Looks,
    Patience,
    aimed,
    baselines,
    housed,
    mixed,
    run_baselines,
    run_solver,
    stage,
    told,
)
from planner.groups import candidates
from planner.host import check_hosted
from planner.kv import Place, check_place
from planner.looking_ahead import looked, with_predictors
from planner.objectives import OBJECTIVES, Objective, check_second, objective_named
from planner.predictor_report import check_judgeable
from planner.profiles import Profile
from planner.second import settle_second
from planner.smallest import smallest_budget_bytes
from planner.span import check_span
from planner.stated import document, inputs_of
from planner.too_small import too_small
from solvers.counting import counted
from solvers.errors import OptionError
from solvers.outcome import Stop
from solvers.registry import Feature, Limits, Progress, load_runnable, names

__all__ = [
    "BASELINES",
    "OBJECTIVES",
    "SOLVERS",
    "Entry",
    "document",
    "inputs_of",
    "make_plan",
    "solve",
]

SOLVERS: tuple[str, ...] = names()
_SOLVED = 3
"""How many n and b are solved in full."""
_WORK_PER_SECOND = 0.05
"""CP-SAT's deterministic work for each second of the time limit and each n and b solved: little
enough that the clock is no limit on a machine that is not overloaded."""


def make_plan(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solver: str = "cpsat",
    objective: str = "throughput",
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    progress: Progress | None = None,
    then: str | None = None,
    tolerance: float = 0.01,
    interruptible: bool = False,
    cap_seconds: float | None = None,
    kv: Place = "auto",
    predictors: bool | None = None,
) -> Plan:
    """Plan a workload.

    Parameters
    ----------
    profile
        Machine, model, costs and routing.
    workload
        What is asked.
    memory_bytes
        Device budget.
    solver
        One of ``SOLVERS``. A searching solver (``cpsat``) competes with the baselines and the best
        wins; a strategy's own plan is returned as it is.
    objective
        One of ``OBJECTIVES``.
    time_limit_seconds
        A cap on the wall clock, for comparing and judging, too: where time is short less is
        searched and compared, and the plan's notes say so (``stop`` is ``time_limit``). Work is
        limited by counts derived from it that do not depend on the clock, so that the same inputs
        give the same plan unless the machine is so slow that the cap cuts in. A solver that follows
        a rule asks no clock.
    cap_seconds
        The cap, where it is to be another: the counts stay those of ``time_limit_seconds``.
    seed
        Of the scenarios and of the solver.
    progress
        Called with a name, the best objective so far and the bound (0 and None before and after
        the search, which the time limit is not of).
    then
        A second objective: of the plans found whose first objective is within ``tolerance`` (a
        share) of the best, the one that is best by this.
    interruptible
        A first Control-C ends the search, and the best plan so far is returned (``stop`` is
        ``interrupted``); a second one ends everything.
    kv
        Where keys and values lie: ``device``, ``below`` (those of layers whose dense part streams),
        or what is better (``auto``; see ``planner.groups.candidates``).
    predictors
        None: layers look ahead where that is clearly faster and a solver searches. True: layers
        follow what predictor names more than the lists (``planner.looking_ahead``). False: none.

    Raises
    ------
    BudgetError
        If nothing fits; it names the smallest budget that works.
    OptionError
        If an option is unknown or out of range, or the workload exceeds the model's context.
    UnsupportedError
        If predictors are asked for and cannot be had.
    """
    if predictors:
        check_judgeable(profile.routing)
    patience = Patience(interruptible)
    entry, rivals = solve(
        profile,
        workload,
        memory_bytes=memory_bytes,
        solver=solver,
        objective=objective,
        time_limit_seconds=time_limit_seconds,
        seed=seed,
        progress=progress,
        then=then,
        tolerance=tolerance,
        patience=patience,
        cap_seconds=cap_seconds,
        kv=kv,
        predictors=predictors,
        whole=True,
    )
    asked = Asked(solver, kv, predictors, then=then, tolerance=None if then is None else tolerance)
    stage(progress, "judging on sequences that were kept apart")
    made = patience.finish(lambda: document(profile, entry, rivals, seed, asked))
    if not predictors:
        return made
    stage(progress, "asking predictors")
    return patience.finish(lambda: with_predictors(made, profile, seed))


def solve(
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solver: str,
    objective: str,
    time_limit_seconds: float,
    seed: int,
    progress: Progress | None = None,
    then: str | None = None,
    tolerance: float = 0.01,
    patience: Patience | None = None,
    cap_seconds: float | None = None,
    kv: Place = "auto",
    predictors: bool | None = None,
    looks: Looks | None = None,
    whole: bool = False,
) -> tuple[Entry, list[Entry]]:
    """The winner and those it was compared with; see ``make_plan``. ``looks`` are those of another
    search that differs in its solver or time limit alone. With ``whole`` the limit is for what
    follows, too: comparing, judging, checking; the winner's notes say what there is no time for."""
    patience = patience or Patience(False)
    goal = objective_named(objective, workload)
    backend = load_runnable(solver)
    check_hosted(solver, profile)
    check_second(objective, then, tolerance, workload)
    if then is not None and Feature.BOUND not in backend.features:
        raise OptionError(
            f"--then {then} has no effect: solver {solver} follows a rule and does not search"
        )
    if time_limit_seconds <= 0:
        raise OptionError(f"the time limit is {time_limit_seconds} seconds; give a positive one")
    if workload.requests > MOST_REQUESTS:
        raise OptionError(
            f"{counted(workload.requests, 'request')} are more than one plan is made for: "
            f"{MOST_REQUESTS:,}"
        )
    context = workload.prompt_tokens + workload.new_tokens
    if context > profile.model.max_context:
        raise OptionError(
            f"{workload.prompt_tokens} prompt and {counted(workload.new_tokens, 'new token')} "
            f"exceed the model's context of {profile.model.max_context}"
        )
    check_span(profile.model, workload)
    check_place(kv, profile.model, profile.hardware.device)
    if goal.measure == "memory":
        return _least_memory(
            profile,
            workload,
            goal,
            memory_bytes,
            solver,
            time_limit_seconds,
            seed,
            progress,
            then=then,
            tolerance=tolerance,
            patience=patience,
            cap_seconds=cap_seconds,
            kv=kv,
            predictors=predictors,
            whole=whole,
        )
    searching = Feature.BOUND in backend.features
    # a rule takes no time limit: no clock decides which plan it makes
    cap = time_limit_seconds if cap_seconds is None else cap_seconds
    budget = Budget(cap if searching else math.inf, whole=whole and searching)
    found = looks.found if looks else candidates(profile, workload, memory_bytes, seed, goal, kv)
    if not found:
        raise too_small(profile, workload, memory_bytes, kv)
    looks = looks or Looks.of(found, budget.deadline, patience, progress, budget.cut)
    ranked = looks.ranked
    entries: list[Entry] = []
    budget.hold(ranked[0][0], len(baselines(solver, profile)), min(TRIED, len(ranked)))

    def limits() -> Limits:
        left = max(budget.deadline - time.monotonic(), 0.1)
        return Limits(time_limit_seconds * _WORK_PER_SECOND, left, seed)

    if searching:
        for candidate, hint in ranked[:_SOLVED]:
            if patience.interrupted:
                break
            if entries and time.monotonic() >= budget.deadline:
                most = min(len(ranked), _SOLVED)
                budget.cut.append(f"searched {len(entries)} of the {most} best n and b")
                break
            with patience.once():
                entries.append(
                    run_solver(solver, candidate, limits(), hint, told(progress, candidate))
                )
                if entries[-1].stop is Stop.INTERRUPTED:
                    patience.note()
        if not entries:
            entries.append(Entry.of(solver, *ranked[0], Stop.INTERRUPTED))
    else:
        entries.append(looks.strategy(solver, profile, seed))
    best = min(entries, key=lambda entry: entry.chosen_value)
    rivals = run_baselines(solver, profile, looks, seed, patience, progress, budget)
    if searching and rivals:
        closest = min(rivals, key=lambda entry: entry.chosen_value)
        if closest.chosen_value < best.chosen_value and time.monotonic() < budget.deadline:
            # its n and b may be none of those solved above
            with patience.once():
                tell = told(progress, closest.candidate)
                entry = run_solver(solver, closest.candidate, limits(), closest.schedule, tell)
                entries.append(entry)
                if entry.stop is Stop.INTERRUPTED:
                    patience.note()
                best = min(best, entry, key=lambda entry: entry.chosen_value)
        if closest.chosen_value < best.chosen_value:
            won = (
                f"on the sequences that choose it beats {solver} by "
                f"{1 - closest.chosen_value / best.chosen_value:.2%}"
            )
            rivals = [best, *(rival for rival in rivals if rival is not closest)]
            best = replace(closest, notes=(*closest.notes, won))
    if searching and profile.costs.raw is not None and not patience.interrupted:
        with patience.once():
            best = mixed(best, limits, budget.deadline)
    if searching and predictors is None and not patience.interrupted:
        stage(progress, "asking routers a layer ahead")
        with patience.once():
            best = looked(best, budget.deadline, budget.cut)
    if then is not None:
        pool = [*entries, *rivals, best]
        second = objective_named(then, workload)
        best = settle_second(best, pool, second, tolerance, limits, patience)
    if budget.cut:
        said = f"the time limit of {time_limit_seconds:g} s cut short: {'; '.join(budget.cut)}"
        best = replace(best, stop=Stop.TIME_LIMIT, notes=(*best.notes, said))
    if patience.interrupted:
        best = replace(best, stop=Stop.INTERRUPTED)
    return best, rivals


def _least_memory(
    profile: Profile,
    workload: Workload,
    goal: Objective,
    memory_bytes: int,
    solver: str,
    time_limit_seconds: float,
    seed: int,
    progress: Progress | None,
    *,
    then: str | None,
    tolerance: float,
    patience: Patience,
    cap_seconds: float | None,
    kv: Place,
    predictors: bool | None,
    whole: bool,
) -> tuple[Entry, list[Entry]]:
    """Plans within the least memory that works, or ``tolerance`` above it: the best of them by
    ``then`` (throughput)."""
    smallest = smallest_budget_bytes(profile, workload, kv)
    if memory_bytes < smallest:
        raise too_small(profile, workload, memory_bytes, kv)
    room = smallest if then is None else int(smallest * (1 + tolerance))
    entry, rivals = solve(
        profile,
        workload,
        memory_bytes=min(memory_bytes, room),
        solver=solver,
        objective=then or "throughput",
        time_limit_seconds=time_limit_seconds,
        seed=seed,
        progress=progress,
        patience=patience,
        cap_seconds=cap_seconds,
        kv=kv,
        predictors=predictors,
        whole=whole,
    )
    entry, *rivals = (aimed(housed(one, memory_bytes), goal) for one in (entry, *rivals))
    return entry, rivals
