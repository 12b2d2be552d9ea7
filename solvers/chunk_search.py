"""Moves residents by their exact times, where nothing but start units is copied ahead.

Thousands of moves are timed at once (``solvers.chunk_clock``), then the best of them together: as
many of those that improve, of different stages, as improve most. Where none does, a few of the
least bad are made all the same, and it goes on from there.
"""

from __future__ import annotations

import time

import numpy as np

from solvers.checker import check_schedule
from solvers.chunk_clock import ChunkClock
from solvers.local import fitting, scheduled, spare_bytes, trial_moves
from solvers.moves import Move, Sets
from solvers.problem import Problem
from solvers.sets import Search, demand_share

__all__ = ["move_exactly"]

_STEPS_PER_WORK = 300_000
"""Demanded items, and stages of passes eight times, that the clock follows for a unit of work."""
_MOVES = 2_000
"""Trial moves at once."""
_TOGETHER = 24
"""Moves of different stages made in one round."""
_KICK = 5
"""Moves made where none improves."""
_FEWEST = 4
"""Measurements with which it is worth beginning."""
_WORSE = 0.02
"""Without copying items ahead a schedule may be worse by this share to begin with."""


def move_exactly(search: Search, work: float, seed: int) -> None:
    """Improve the search's best schedule, with its slots and without prefetches.

    Parameters
    ----------
    search
        Gets what is found.
    work
        Units of work, as in ``Limits``.
    seed
        Of the choice of trial moves.
    """
    problem, found = search.problem, search.best
    demanded = int((problem.scenarios.demand > 0).sum())
    steps = demanded + 8 * problem.scenarios.passes * len(problem.stages)
    left = int(work * _STEPS_PER_WORK) // max(steps, 1)
    if found is None or left < _FEWEST or not found.slots or found.host is not None:
        return
    if found.eviction != "none" or problem.measure != "time":
        return
    sizes = (found.slots, found.start_slots)
    share = demand_share(problem)
    best = sets = fitting(problem, found, *sizes, share)
    if sets is None or best is None or _streams_in_order(problem, sets):
        return
    clock = ChunkClock(problem, *sizes)
    least = value = int(clock.measure(sets, [Move((), ())])[0])
    if value > search.best_value * (1.0 + _WORSE):
        return
    rng = np.random.default_rng([seed, *sizes, 1])
    fixed = {index for index, stage in enumerate(problem.stages) if stage.sequential}
    while left > 1:
        if time.monotonic() > search.deadline:
            search.out_of_time = True
            break
        moves = trial_moves(problem, sets, share, sizes, rng, _MOVES)
        moves = [move for move in moves if not any(map(fixed.__contains__, _stages(move)))]
        if not moves:
            break
        values = clock.measure(sets, moves)
        several = _joined(problem, sets, sizes, moves, values, value)
        together = clock.measure(sets, several)
        left -= 2
        chosen = int(together.argmin())
        if together[chosen] >= value:
            chosen = len(several) - 1
        sets, value = several[chosen].applied(sets), int(together[chosen])
        if value < least:
            best, least = sets, value
    nothing = np.zeros(best.items.shape, dtype=bool)
    schedule = scheduled(problem, best, nothing, share, sizes, found.slots)
    if not any(check_schedule(problem, schedule)):
        search.try_schedule(schedule)


def _streams_in_order(problem: Problem, sets: Sets) -> bool:
    """Whether an item of a sequential stage is no resident: those are always copied ahead."""
    return any(
        stage.sequential and int(kept.sum()) < len(stage.items)
        for stage, kept in zip(problem.stages, sets.items, strict=True)
    )


def _stages(move: Move) -> set[int]:
    return {stage for stage, _ in (*move.leave, *move.come)}


def _joined(
    problem: Problem,
    sets: Sets,
    sizes: tuple[int, int],
    moves: list[Move],
    values: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    value: int,
) -> list[Move]:
    """The best move, the best two of different stages, and so on while they improve; or the few
    that do least harm."""
    order = np.argsort(values, kind="stable").tolist()
    improve = values[order[0]] < value
    joined: list[Move] = []
    touched: set[int] = set()
    last = Move((), ())
    for at in order:
        move = moves[at]
        stages = _stages(move)
        if len(joined) == (_TOGETHER if improve else _KICK) or (improve and values[at] >= value):
            break
        both = Move((*last.leave, *move.leave), (*last.come, *move.come))
        if stages & touched or spare_bytes(problem, both.applied(sets), *sizes) < 0:
            continue
        touched |= stages
        last = both
        joined.append(both)
    return joined
