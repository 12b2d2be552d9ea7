"""From a profile and a workload to a plan: the best of a solver's and the baselines' policies.

Every n and b that fits is looked at quickly, the most promising are solved, and all runnable
baselines are given every n and b, too. The best policy on the *choose* sequences wins; what the
plan reports is measured on the *judge* sequences, which nothing before has seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from planner.check import check_plan
from planner.documents import (
    Inputs,
    Locations,
    Plan,
    Workload,
    document_hash,
)
from planner.groups import Candidate, candidates, smallest_budget_bytes
from planner.klotski import klotski_batches
from planner.memory import account_device
from planner.notes import plan_notes
from planner.objectives import OBJECTIVES, objective_named
from planner.predict import predict
from planner.profiles import Profile
from planner.scenarios import Sequences, split_sequences
from planner.sizes import typed_size
from solvers.errors import BudgetError, OptionError
from solvers.outcome import Bound, Schedule, Stop
from solvers.registry import Feature, Limits, Progress, load, names
from solvers.relaxation import relax
from solvers.replay import measure, replay
from solvers.sets import Search, optimistic, unit_order

__all__ = ["OBJECTIVES", "SOLVERS", "Entry", "make_plan", "solve"]

SOLVERS: tuple[str, ...] = names()
BASELINES: tuple[str, ...] = (
    "all-experts",
    "on-demand",
    "frequency",
    "lru",
    "lifo",
    "flexgen",
    "klotski",
)
"""What people use today: a searching solver's plan must beat all of them."""

_MOST_REQUESTS = 1_000_000
_SOLVED = 3
"""How many n and b are solved in full."""
_TRIED = 6
"""How many n and b, the most promising, each baseline is given."""
_WORK_PER_SECOND = 0.05
"""CP-SAT's deterministic work for each second of the time limit and each n and b solved: little
enough that the clock is no limit on a machine that is not overloaded."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One policy in the competition.

    ``chosen_value`` is the objective on the choosing sequences, ``fitted_value`` on the fitted.
    """

    solver: str
    candidate: Candidate
    schedule: Schedule
    stop: Stop
    fitted_value: float
    chosen_value: float
    fitted_bound: float | None
    notes: tuple[str, ...]


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
        A cap on the wall clock. Work is limited by counts derived from it that do not depend on the
        clock, so that the same inputs give the same plan unless the machine is so slow that the cap
        cuts in (``stop`` then is ``time_limit``).
    seed
        Of the scenarios and of the solver.
    progress
        Called with a name, the best objective so far and the bound.

    Raises
    ------
    BudgetError
        If nothing fits; it names the smallest budget that works.
    OptionError
        If an option is unknown or out of range, or the workload exceeds the model's context.
    """
    entry, rivals = solve(
        profile,
        workload,
        memory_bytes=memory_bytes,
        solver=solver,
        objective=objective,
        time_limit_seconds=time_limit_seconds,
        seed=seed,
        progress=progress,
    )
    return _document(profile, entry, rivals, seed)


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
) -> tuple[Entry, list[Entry]]:
    """The winner and those it was compared with; see ``make_plan``."""
    goal = objective_named(objective, workload)
    backend = load(solver)
    if time_limit_seconds <= 0:
        raise OptionError(f"the time limit is {time_limit_seconds} seconds; give a positive one")
    if workload.requests > _MOST_REQUESTS:
        raise OptionError(
            f"{workload.requests} requests are more than one plan is made for: {_MOST_REQUESTS:,}"
        )
    context = workload.prompt_tokens + workload.new_tokens
    if context > profile.model.max_context:
        raise OptionError(
            f"{workload.prompt_tokens} prompt and {workload.new_tokens} new tokens exceed the "
            f"model's context of {profile.model.max_context}"
        )
    deadline = time.monotonic() + time_limit_seconds
    sequences = Sequences.of(profile.arrays, profile.routing.experts)
    split = split_sequences(sequences.count, seed)
    found = candidates(profile, workload, memory_bytes, sequences, split, seed, goal)
    if not found:
        smallest = smallest_budget_bytes(profile, workload)
        raise BudgetError(
            f"a budget of {memory_bytes:,} bytes is too small for this model and workload: the "
            f"smallest that works is {smallest:,} bytes ({typed_size(smallest)})",
            smallest,
        )
    ranked = _quick(found, deadline)
    searching = Feature.BOUND in backend.features
    entries: list[Entry] = []
    if searching:
        for candidate, hint in ranked[:_SOLVED]:
            left = deadline - time.monotonic()
            if entries and left <= 0:
                break
            limits = Limits(time_limit_seconds * _WORK_PER_SECOND, max(left, 0.1), seed)
            entries.append(_run(solver, candidate, limits, hint, _told(progress, candidate)))
    else:
        entries.append(_strategy(solver, profile, found, ranked, seed))
    best = min(entries, key=lambda entry: entry.chosen_value)
    rivals = [_strategy(name, profile, found, ranked, seed) for name in BASELINES if name != solver]
    if searching:
        closest = min(rivals, key=lambda entry: entry.chosen_value)
        if closest.chosen_value < best.chosen_value:
            return closest, [best, *(rival for rival in rivals if rival is not closest)]
    return best, rivals


def _quick(found: list[Candidate], deadline: float) -> list[tuple[Candidate, Schedule]]:
    """Candidates with a first schedule, the most promising first.

    They are looked at in the order of what they could reach at best, until that is more than what
    one of them has reached.
    """
    reach = [one.value("fit", optimistic(one.problem("fit"))) for one in found]
    results: list[tuple[float, int, Candidate, Schedule]] = []
    best = float("inf")
    for index in sorted(range(len(found)), key=lambda at: (reach[at], at)):
        if results and (reach[index] >= best or time.monotonic() > deadline):
            break
        candidate = found[index]
        problem = candidate.problem("fit")
        few = problem.replace(scenarios=problem.scenarios.take_runs(1))
        search = Search(few, unit_order(problem, None))
        search.run_few()
        if search.best is None:
            continue
        candidate.set_factors(search.best)
        problem = candidate.problem("fit")
        value = candidate.value("fit", measure(problem, replay(problem, search.best)))
        best = min(best, value)
        results.append((value, index, candidate, search.best))
    results.sort(key=lambda entry: entry[:2])
    return [(candidate, schedule) for _, _, candidate, schedule in results]


def _told(progress: Progress | None, candidate: Candidate) -> Progress | None:
    """A progress callback whose name says which n and b is being solved."""
    if progress is None:
        return None
    tell, encoding = progress, candidate.encoding
    group = f"n x b = {encoding.n_batches} x {encoding.batch_size}"
    return lambda name, objective, bound: tell(f"{name}, {group}", objective, bound)


def _run(
    name: str,
    candidate: Candidate,
    limits: Limits,
    hint: Schedule | None = None,
    progress: Progress | None = None,
) -> Entry:
    """Let a back end solve one n and b."""
    problem = candidate.problem("fit")
    outcome = load(name).solve(problem, limits, hint, progress)
    if outcome.schedule is None:
        raise AssertionError(f"{name} found nothing where a schedule exists: {outcome}")
    bound = outcome.bound
    return Entry(
        name,
        candidate,
        outcome.schedule,
        outcome.stop,
        candidate.value("fit", measure(problem, replay(problem, outcome.schedule))),
        _value(candidate, outcome.schedule, "choose"),
        None if bound is None else candidate.value("fit", bound.value_ns),
        outcome.notes,
    )


def _value(
    candidate: Candidate, schedule: Schedule, which: Literal["fit", "choose", "judge"]
) -> float:
    problem = candidate.problem(which)
    return candidate.value(which, measure(problem, replay(problem, schedule)))


def _strategy(
    name: str,
    profile: Profile,
    found: list[Candidate],
    ranked: list[tuple[Candidate, Schedule]],
    seed: int,
) -> Entry:
    """A strategy with the n and b that suit it best on the fitted sequences, of the promising ones.

    Klotski chooses its n itself; where that does not fit, n is cut to the largest that does.
    """
    notes: dict[int, str] = {}
    promising = [id(candidate) for candidate, _ in ranked[:_TRIED]]
    allowed = [index for index, one in enumerate(found) if id(one) in promising]
    if name == "klotski":
        allowed = []
        for batch in sorted({one.encoding.batch_size for one in found}):
            fitting = [i for i, one in enumerate(found) if one.encoding.batch_size == batch]
            wanted = klotski_batches(profile, found[0].encoding.workload, batch)
            small = [i for i in fitting if wanted and found[i].encoding.n_batches <= wanted]
            pick = max(small or fitting, key=lambda i: found[i].encoding.n_batches)
            if wanted is None:
                notes[pick] = f"no n up to all requests hides the copies of batches of {batch}"
            elif found[pick].encoding.n_batches != wanted:
                cut = found[pick].encoding.n_batches
                notes[pick] = f"its inequalities ask for n = {wanted}; n = {cut} is what fits"
            allowed.append(pick)
    best: tuple[float, int, Schedule, tuple[str, ...]] | None = None
    limits = Limits(seed=seed)
    for index in allowed:
        problem = found[index].problem("fit")
        outcome = load(name).solve(problem, limits)
        if outcome.schedule is None:
            continue
        value = found[index].value("fit", measure(problem, replay(problem, outcome.schedule)))
        said = outcome.notes + ((notes[index],) if index in notes else ())
        if best is None or value < best[0]:
            best = (value, index, outcome.schedule, said)
    if best is None:
        raise AssertionError(f"{name} found nothing where a schedule exists")
    value, index, schedule, said = best
    chosen = _value(found[index], schedule, "choose")
    return Entry(name, found[index], schedule, Stop.RULE, value, chosen, None, said)


def _document(profile: Profile, entry: Entry, rivals: list[Entry], seed: int) -> Plan:
    """The plan of the winner, judged."""
    candidate = entry.candidate
    encoding = candidate.encoding
    policy = encoding.policy(entry.schedule)
    value = _value(candidate, entry.schedule, "judge")
    bound = _judged_bound(candidate, entry.schedule)
    lower = None if bound is None else candidate.value("judge", bound.value_ns)
    predicted = predict(candidate.judged(), entry.schedule)
    memory = account_device(
        profile.model, policy, encoding.workload, encoding.dtype_bytes, encoding.memory_bytes
    )
    judged_rivals = {
        rival.solver: _value(rival.candidate, rival.schedule, "judge") for rival in rivals
    }
    index = profile.index
    plan = Plan(
        solver=entry.solver,
        stop=_STOPS[entry.stop],
        objective_name=candidate.objective.name,
        objective=value,
        bound=lower,
        bound_class=None if bound is None else bound.policies,
        gap=None if lower is None or value <= 0 else (value - lower) / value,
        inputs=Inputs(
            document_hash(profile.model),
            document_hash(profile.hardware),
            document_hash(profile.costs),
            document_hash(profile.routing),
            index.checkpoint_fingerprint,
            index.store_fingerprint,
        ),
        locations=Locations(str(profile.folder), index.checkpoint, index.store),
        workload=encoding.workload,
        device=profile.hardware.device,
        dtype=profile.costs.dtype,
        policy=policy,
        memory={"device": memory},
        predicted=predicted,
        chosen_over=judged_rivals,
        notes=plan_notes(
            candidate,
            solver=entry.solver,
            value=value,
            rivals=judged_rivals,
            predicted=predicted,
            memory=memory,
            said=entry.notes,
        ),
        seed=seed,
    )
    violations = check_plan(plan, profile)
    if violations:
        raise AssertionError(f"the checker refuses a plan of {entry.solver}: {violations[0]}")
    return plan


def _judged_bound(candidate: Candidate, schedule: Schedule) -> Bound | None:
    """No policy with this n and b, fixed residents and no eviction caching is faster on the judging
    sequences. For a caching one, what is physically needed: all computation. None where neither
    speaks of the objective."""
    problem = candidate.problem("judge")
    if problem.measure != "time":
        return None
    if schedule.eviction != "none":
        compute = problem.scenarios.compute_ns.sum(axis=1) * problem.scenarios.weight
        return Bound(int(compute.sum()), "physical")
    relaxed = relax(problem)
    return None if relaxed is None else relaxed.bound


_STOPS: dict[Stop, Literal["optimal", "time_limit", "rule", "interrupted"]] = {
    Stop.OPTIMAL: "optimal",
    Stop.TIME_LIMIT: "time_limit",
    Stop.RULE: "rule",
    Stop.INTERRUPTED: "interrupted",
}
