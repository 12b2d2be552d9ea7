"""Moves residents by their exact times, where nothing but start units is copied ahead.

Thousands of moves are timed at once (``solvers.chunk_clock``), then the best of them together: as
many of those that improve, of different stages, as improve most. Where none does, a few of the
least bad are made all the same, and it goes on from there. Then the same with copies ahead held
back while leads are computed: that is worse at first, and other residents make it better.
"""

from __future__ import annotations

import time

import numpy as np

from solvers.checker import check_schedule
from solvers.chunk_clock import ChunkClock
from solvers.layout import HOLDS
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
_IDLE = 25
"""Rounds without a better one, after which it ends."""
_NEAR = 0.005
"""Numbers of start slots that are worse by a larger share after a round are given up."""
_TRIAL = 3
"""Rounds after which holding back is given up where it is worse by ``_NEAR``."""


def move_exactly(search: Search, work: float, seed: int) -> None:
    """Improve the search's best schedule, without prefetches and with its slots, and with a start
    slot less for as long as that is not clearly worse.

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
    ways = []
    for fewer in (0, 1) if found.start_slots > 1 else (0,):
        sizes = (found.slots, found.start_slots - fewer)
        sets = fitting(problem, found, *sizes, demand_share(problem))
        if sets is not None and not _streams_in_order(problem, sets):
            ways.append(_Way(problem, sizes, sets, seed))
    if not ways or ways[0].value > search.best_value * (1.0 + _WORSE):
        return
    way = _best_of(search, ways, left)
    _try(search, way)
    for hold in HOLDS if not way.best.starts.all() else ():
        held = _Way(problem, way.sizes, way.best, seed, hold)
        held = _best_of(search, [held], left, way.least)
        _try(search, held)
        if held.least > way.least:
            return
        way = held


def _best_of(search: Search, ways: list[_Way], left: int, rival: int | None = None) -> _Way:
    """Rounds of moves with each of the ways, while it is near the best of them and, in the end,
    near the ``rival``'s time; ``left`` measurements of one."""
    idle, rounds, least = 0, 0, ways[0].least
    while left > 1 and idle < _IDLE:
        if time.monotonic() > search.deadline:
            search.out_of_time = True
            break
        going = [way for way in ways if way.go_on()]
        left -= 2
        rounds += 1
        before, least = least, min(way.least for way in ways)
        idle = idle + 1 if least >= before else 0
        ways = [way for way in ways if way.least <= least * (1.0 + _NEAR)]
        if not going:
            break
        if rival is not None and rounds >= _TRIAL and least > rival * (1.0 + _NEAR):
            break
    return min(ways, key=lambda way: way.least)


def _try(search: Search, way: _Way) -> None:
    problem, nothing = search.problem, np.zeros(way.best.items.shape, dtype=bool)
    share, slots = demand_share(problem), way.sizes[0]
    schedule = scheduled(problem, way.best, nothing, share, way.sizes, slots)
    if schedule.start_slots:
        schedule = schedule.replace(hold=way.hold)
    if not any(check_schedule(problem, schedule)):
        search.try_schedule(schedule)


class _Way:
    """Residents on their way with so many slots; ``best`` are those that take the ``least``."""

    def __init__(
        self,
        problem: Problem,
        sizes: tuple[int, int],
        sets: Sets,
        seed: int,
        hold: int | None = None,
    ) -> None:
        self._problem, self.sizes, self.hold = problem, sizes, hold
        self._share = demand_share(problem)
        self._clock = ChunkClock(problem, *sizes, hold)
        self._rng = np.random.default_rng([seed, *sizes, 1])
        self._fixed = {index for index, one in enumerate(problem.stages) if one.sequential}
        self.best = self._sets = sets
        self.least = self.value = int(self._clock.measure(sets, [Move((), ())])[0])

    def go_on(self) -> bool:
        """Make a round of moves; False where none is possible."""
        problem, sets, sizes = self._problem, self._sets, self.sizes
        moves = trial_moves(problem, sets, self._share, sizes, self._rng, _MOVES)
        moves = [move for move in moves if not _stages(move) & self._fixed]
        if not moves:
            return False
        values = self._clock.measure(sets, moves)
        several = _joined(problem, sets, sizes, moves, values, self.value)
        together = self._clock.measure(sets, several)
        chosen = int(together.argmin())
        if together[chosen] >= self.value:
            chosen = len(several) - 1
        self._sets, self.value = several[chosen].applied(sets), int(together[chosen])
        if self.value < self.least:
            self.best, self.least = self._sets, self.value
        return True


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
