"""A second objective: of the plans that are nearly the best by the first, the best by another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.entries import Entry, Patience, aimed, run_solver
from planner.objectives import Objective
from solvers.checker import used_bytes
from solvers.layout import smallest_capacity
from solvers.registry import Feature, Limits, load
from solvers.relaxation import relax
from solvers.sets import Search, unit_order

__all__ = ["settle_second"]

_HALVINGS = 6
"""How closely the least memory is sought: to a 64th of what residents and slots take."""


def settle_second(
    best: Entry,
    pool: list[Entry],
    goal: Objective,
    tolerance: float,
    limits: Callable[[], Limits],
    patience: Patience,
) -> Entry:
    """The best by ``goal`` of all policies whose first objective is within ``tolerance``.

    Parameters
    ----------
    best
        The best by the first objective.
    pool
        What was found on the way; each n and b in it is searched again with the second objective in
        mind, by the solver that found it.
    goal, tolerance
        The second objective, and the share of the first that may be given up, both on the choosing
        sequences.
    limits
        What is left for a solver.
    patience
        Once interrupted, nothing more is searched.
    """
    first = best.candidate.objective
    most = best.chosen_value * (1 + tolerance)
    near = [entry for entry in pool if entry.chosen_value <= most]
    found = list(near)
    for entry in _different(near):
        if patience.interrupted:
            break
        with patience.once():
            more = (
                _slimmer(entry, most) if goal.measure == "memory" else _other(entry, goal, limits())
            )
            found += [one for one in more if one.chosen_value <= most]
    ranked = [
        (aimed(entry, goal).chosen_value, entry.chosen_value, i) for i, entry in enumerate(found)
    ]
    value, first_value, index = min(ranked)
    before = aimed(best, goal).chosen_value
    if value >= before:
        said = f"no plan within {tolerance:.1%} of the best {first.name} has a better {goal.name}"
        return replace(best, notes=(*best.notes, said))
    loss = first_value / best.chosen_value - 1 if best.chosen_value else 0.0
    said = (
        f"of the plans within {tolerance:.1%} of the best {first.name} it is best by {goal.name}: "
        f"{1 - value / before:.1%} less, for {max(loss, 0.0):.2%} of {first.name}"
    )
    return replace(found[index], notes=(*found[index].notes, said))


def _different(entries: list[Entry]) -> list[Entry]:
    """One entry, the best, for each n and b."""
    chosen: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=lambda one: one.chosen_value):
        encoding = entry.candidate.encoding
        shape = encoding.n_batches, encoding.batch_size, encoding.chunk_bytes, encoding.kv
        chosen.setdefault((*shape, encoding.raw), entry)
    return list(chosen.values())


def _other(entry: Entry, goal: Objective, limits: Limits) -> list[Entry]:
    """The same n and b, solved for the second objective."""
    first = entry.candidate.objective
    searching = Feature.BOUND in load(entry.solver).features
    name = entry.solver if searching else "cpsat"
    other = run_solver(name, aimed(entry, goal).candidate, limits, entry.schedule)
    return [aimed(other, first)]


def _slimmer(entry: Entry, most: float) -> list[Entry]:
    """The same n and b in ever less memory, while the first objective stays within ``most``."""
    candidate = entry.candidate
    problem = candidate.problem("fit")
    low = smallest_capacity(problem.stages, problem.slot_bytes)
    high = used_bytes(problem, entry.schedule)
    found: list[Entry] = []
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        if middle >= high:
            break
        one = _within(entry, middle)
        if one.chosen_value <= most:
            found.append(one)
            high = min(middle, used_bytes(problem, one.schedule))
        else:
            low = middle
    return found


def _within(entry: Entry, capacity_bytes: int) -> Entry:
    """The best that a quick search finds with so little for residents and slots."""
    candidate = entry.candidate
    problem = candidate.problem("fit").replace(capacity_bytes=capacity_bytes)
    guide = relax(problem, exact_demand=False) if problem.measure == "time" else None
    search = Search(problem, unit_order(problem, guide))
    search.run()
    if search.best is None:
        raise AssertionError("nothing fits, although one slot of each kind does")
    return Entry.of(entry.solver, candidate, search.best, entry.stop)
