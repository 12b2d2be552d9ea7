"""Moves residents between stages, many trial moves at once on a fluid clock; the replay decides.

Which stages keep their units matters as much as which units: copies that lie evenly over a pass
hide behind computation, a cluster of them does not. The fluid clock follows the two channels stage
by stage as the replay does, but counts what is copied ahead as an amount of time instead of units
in slots; so a whole neighbourhood costs about as much as one replay.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from solvers.checker import check_schedule
from solvers.layout import START, settled
from solvers.moves import Move, Sets
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem
from solvers.sets import Search, demand_share

__all__ = [
    "FluidClock",
    "fitting",
    "move_residents",
    "scheduled",
    "spare_bytes",
    "trial_moves",
]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_STEPS_PER_WORK = 30_000
"""Stages of passes that the fluid clock follows for each unit of work."""
_MOVES = 400
"""Trial moves at once."""
_PASSES = 16
"""Passes that the fluid clock follows; the replay follows all."""
_TOGETHER = 8
"""Moves of different stages made in one round."""
_TURNS = 3
_MUCH = 0.005
"""Turns at most, while one saves at least this share."""
_CHECKED = 6
"""Schedules handed to the replay for each number of slots."""


class FluidClock:
    """Estimates the weighted time of sets of residents.

    Parameters
    ----------
    problem
        Whose scenarios are followed.
    listed
        bool [stages, items]: prefetched where not resident.
    slots, start_slots, reserve
        As in a schedule.
    """

    def __init__(
        self, problem: Problem, listed: Bools, slots: int, start_slots: int, reserve: int
    ) -> None:
        scenarios = problem.scenarios
        self.problem = problem
        active = problem.demanded  # with the control variate: fewer lucky finds
        self._copy = problem.copy_ns.astype(np.float64)
        self._useful = active * self._copy * listed
        self._late = active * self._copy * ~listed
        self._list = self._copy * listed
        starts = problem.pass_start_ns.max(axis=0, initial=0)
        self._start = starts.astype(np.float64)
        # what is copied of it in each pass
        self._short = None
        if scenarios.short is not None:
            self._short = problem.pass_start_ns / np.maximum(starts, 1)
        work = scenarios.work_ns.astype(np.float64)
        self._works = work.sum(axis=2)
        last = np.where(scenarios.demand > 0, work, np.inf).min(axis=2)
        self._last = np.where(np.isfinite(last), last, 0.0)
        self._room = max(slots - reserve, 0) * float(self._copy.max(initial=0.0))
        self._start_room = start_slots * float(self._start.max(initial=0.0))

    def measure(self, base: Sets, moves: list[Move]) -> Floats:
        """Estimated weighted time (ns) of ``base`` after each of the moves."""
        gone = ~base.items
        count = len(moves)
        useful = np.repeat((self._useful * gone).sum(axis=2)[:, :, None], count, axis=2)
        late = np.repeat((self._late * gone).sum(axis=2)[:, :, None], count, axis=2)
        listed = np.repeat((self._list * gone).sum(axis=1)[:, None], count, axis=1)
        start = np.repeat((self._start * ~base.starts)[:, None], count, axis=1)
        for at, move in enumerate(moves):
            for units, sign in ((move.leave, 1.0), (move.come, -1.0)):
                for stage, item in units:
                    if item == START:
                        start[stage, at] += sign * self._start[stage]
                    else:
                        useful[:, stage, at] += sign * self._useful[:, stage, item]
                        late[:, stage, at] += sign * self._late[:, stage, item]
                        listed[stage, at] += sign * self._list[stage, item]
        return self._follow(useful, late, listed, start)

    def _follow(self, useful: Floats, late: Floats, listed: Floats, start: Floats) -> Floats:
        """The clock; ``useful``, ``late`` [passes, stages, moves], the others [stages, moves]."""
        scenarios = self.problem.scenarios
        most = np.minimum(self._room, listed.sum(axis=0))
        most = most + np.minimum(self._start_room, start.sum(axis=0))
        share = useful / np.where(listed > 0, listed, 1.0)[None]
        fits = np.minimum(listed, self._room)
        total = np.zeros(useful.shape[2])
        ahead = np.zeros_like(total)
        restarts = frozenset(scenarios.run_starts)
        rows = zip(
            scenarios.prologue_ns.tolist(),
            scenarios.lead_ns.tolist(),
            scenarios.epilogue_ns.tolist(),
            self._works.tolist(),
            self._last.tolist(),
            scenarios.weight.tolist(),
            strict=True,
        )
        longer = self.problem.start_lead_ns.tolist()
        for index, (prologue, lead, epilogue, works, last, weight) in enumerate(rows):
            if index in restarts:
                ahead = np.zeros_like(total)
            taken = np.zeros_like(total)
            needed = late[index] + useful[index]
            first = start if self._short is None else start * self._short[index][:, None]
            for stage in range(len(prologue)):
                known = np.maximum(first[stage] - ahead, prologue[stage]) + lead[stage]
                if longer[index][stage]:
                    known = known + longer[index][stage] * (first[stage] > 0)
                beyond = ahead + known - first[stage]
                copied = np.minimum(np.maximum(beyond, 0.0), fits[stage])
                asked = needed[stage] - share[index, stage] * copied
                tail = np.where(asked > 1.0, last[stage], 0.0)
                ends = known + np.maximum(asked + tail, works[stage]) + epilogue[stage]
                taken += ends
                # until its lead has ended, a stage's own prefetches keep their slots
                before = np.minimum(beyond, most) - copied
                ahead = np.maximum(before, 0.0) + np.maximum(ends - known - asked, 0.0)
                ahead = np.minimum(ahead, most)
            total += taken * weight
        return total


def move_residents(search: Search, work: float, seed: int) -> None:
    """Improve the search's best schedule, with its slots and with a few more or less; and over
    again from what was found, while that is much better.

    Parameters
    ----------
    search
        Gets what is found.
    work
        Units of work for each time, as in ``Limits``.
    seed
        Of the choice of trial moves.
    """
    for turn in range(_TURNS):
        before = search.best_value
        _once(search, work, seed + turn)
        if search.best_value > before * (1.0 - _MUCH):
            return


def _once(search: Search, work: float, seed: int) -> None:
    """``move_residents``, once."""
    found = search.best
    if found is None or found.eviction != "none" or search.problem.measure == "bytes":
        return
    problem = search.problem
    steps = min(problem.scenarios.passes, _PASSES) * len(problem.stages)
    rounds = int(work * _STEPS_PER_WORK) // max(steps, 1)
    share = demand_share(problem)
    ahead = [share[index, item] for index, one in enumerate(found.stages) for item in one.prefetch]
    # what the schedule prefetches, everything, and nothing: once each
    of_items = [share[index, : len(one.items)] for index, one in enumerate(problem.stages)]
    least = float(min((row.min(initial=2.0) for row in of_items), default=2.0))
    own = float(min(ahead, default=2.0))
    thresholds = [-1.0, *([own] if least < own < 2.0 else []), 2.0]
    variants = []
    changes = [(0, 0), (1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, 1)]
    if not found.start_slots:
        # with two, start units are copied ahead in time that nothing else can use
        changes += [(0, 2), (-1, 2)]
    for slots, start_slots in changes:
        sizes = (found.slots + slots, found.start_slots + start_slots)
        if sizes[0] >= 1 and sizes[1] >= min(found.start_slots, 1):
            variants.append(sizes)
    for sizes in variants:
        for threshold in thresholds:
            if search.out_of_time:
                return
            each = rounds // len(variants) // len(thresholds)
            _descend(search, found, sizes, threshold, max(each, 2), seed)


def _descend(
    search: Search,
    found: Schedule,
    sizes: tuple[int, int],
    threshold: float,
    rounds: int,
    seed: int,
) -> None:
    problem = search.problem
    share = demand_share(problem)
    slots, start_slots = sizes
    exists = problem.item_bytes > 0
    sequential = np.array([stage.sequential for stage in problem.stages])
    listed = exists & ((share >= threshold) | sequential[:, None])
    reserve = 0 if bool((listed | ~exists).all()) else min(max(found.reserve, 1), slots)
    # the clock counts what is demanded on average, and no price for what is not
    few = problem.replace(scenarios=problem.scenarios.take_passes(_PASSES), price=None)
    clock = FluidClock(few, listed, slots, start_slots, reserve)
    sets = fitting(problem, found, slots, start_slots, share)
    if sets is None:
        return
    rng = np.random.default_rng([seed, slots, start_slots])
    value = float(clock.measure(sets, [Move((), ())])[0])
    every = max(rounds // _CHECKED, 1)
    _try(search, scheduled(problem, sets, listed, share, sizes, reserve))
    for step in range(rounds):
        if time.monotonic() > search.deadline:
            search.out_of_time = True
            return
        moves = trial_moves(problem, sets, share, sizes, rng)
        if not moves:
            break
        values = clock.measure(sets, moves)
        best = int(values.argmin())
        if values[best] >= value * (1.0 - 1e-7):
            break
        several = _together(moves, values, value)
        together = float(clock.measure(sets, [several])[0])
        if together < values[best] and spare_bytes(problem, several.applied(sets), *sizes) >= 0:
            sets, value = several.applied(sets), together
        else:
            sets, value = moves[best].applied(sets), float(values[best])
        if step % every == every - 1:
            _try(search, scheduled(problem, sets, listed, share, sizes, reserve))
    _try(search, scheduled(problem, sets, listed, share, sizes, reserve))


def _together(moves: list[Move], values: Floats, value: float) -> Move:
    """The best moves that improve, as one, as far as each has stages of its own."""
    leave: list[tuple[int, int]] = []
    come: list[tuple[int, int]] = []
    touched: set[int] = set()
    made = 0
    for at in np.argsort(values, kind="stable").tolist():
        move = moves[at]
        stages = {stage for stage, _ in (*move.leave, *move.come)}
        if values[at] >= value or made == _TOGETHER:
            break
        if not stages & touched:
            touched |= stages
            leave += move.leave
            come += move.come
            made += 1
    return Move(tuple(leave), tuple(come))


def _try(search: Search, schedule: Schedule) -> None:
    if not any(check_schedule(search.problem, schedule)):
        search.try_schedule(schedule)


def spare_bytes(problem: Problem, sets: Sets, slots: int, start_slots: int) -> int:
    """Bytes left over, with start slots for any start unit, so that each may leave."""
    held = problem.start_bytes
    used = int((problem.item_bytes * sets.items).sum() + (held * sets.starts).sum())
    used += slots * problem.slot_bytes + start_slots * int(held.max(initial=0))
    return problem.capacity_bytes - used


def fitting(
    problem: Problem, found: Schedule, slots: int, start_slots: int, share: Floats
) -> Sets | None:
    """The schedule's residents, with as many of the least demanded left out as more slots need."""
    items = np.zeros(problem.item_bytes.shape, dtype=bool)
    for index, choice in enumerate(found.stages):
        items[index, list(choice.resident)] = True
    sets = Sets(items, np.array([choice.start_resident for choice in found.stages]))
    movable = [
        (float(share[index, item]), int(index), int(item))
        for index, item in np.argwhere(items)
        if not problem.stages[index].sequential
    ]
    for _, index, item in sorted(movable):
        if spare_bytes(problem, sets, slots, start_slots) >= 0:
            break
        items[index, item] = False
    return sets if spare_bytes(problem, sets, slots, start_slots) >= 0 else None


def trial_moves(
    problem: Problem,
    sets: Sets,
    share: Floats,
    sizes: tuple[int, int],
    rng: np.random.Generator,
    most: int = _MOVES,
) -> list[Move]:
    """Trial moves that fit: the least demanded residents of a stage may leave, the most demanded
    others come; start units change places with each other and with items."""
    spare = spare_bytes(problem, sets, *sizes)
    leaving: list[tuple[int, int]] = []
    coming: list[tuple[int, int]] = []
    for index, stage in enumerate(problem.stages):
        if stage.sequential:
            kept = int(sets.items[index].sum())
            leaving += [(index, kept - 1)] if kept else []
            coming += [(index, kept)] if kept < len(stage.items) else []
        else:
            order = np.argsort(share[index, : len(stage.items)], kind="stable").tolist()
            leaving += [(index, item) for item in order if sets.items[index, item]][:2]
            others = [item for item in reversed(order) if not sets.items[index, item]]
            coming += [(index, item) for item in others[:2]]
        if stage.start is not None and sizes[1]:
            (leaving if sets.starts[index] else coming).append((index, START))

    def size(unit: tuple[int, int]) -> int:
        stage = problem.stages[unit[0]]
        start = stage.start.held_bytes if stage.start else 0
        return start if unit[1] == START else stage.items[unit[1]].held_bytes

    moves = [Move((), (unit,)) for unit in coming if size(unit) <= spare]
    out = rng.integers(0, max(len(leaving), 1), size=(4 * most, 2)).tolist()
    into = rng.integers(0, max(len(coming), 1), size=(4 * most, 2)).tolist()
    for (first, second), (third, fourth) in zip(out, into, strict=True):
        if len(moves) >= most or not leaving or not coming:
            break
        leave: tuple[tuple[int, int], ...] = (leaving[first],)
        come: tuple[tuple[int, int], ...] = (coming[third],)
        room = spare + size(leave[0]) - size(come[0])
        if room < 0 and second != first:
            leave = (leaving[first], leaving[second])
            room += size(leaving[second])
        elif room >= size(coming[fourth]) and fourth != third:
            come = (coming[third], coming[fourth])
            room -= size(coming[fourth])
        # of a sequential stage only the last resident and the next item may move, not both
        stages = [unit[0] for unit in (*leave, *come) if problem.stages[unit[0]].sequential]
        if room >= 0 and len(set(stages)) == len(stages):
            moves.append(Move(leave, come))
    return list(dict.fromkeys(moves))


def scheduled(
    problem: Problem,
    sets: Sets,
    listed: Bools,
    share: Floats,
    sizes: tuple[int, int],
    reserve: int,
) -> Schedule:
    choices = []
    for index, stage in enumerate(problem.stages):
        items = range(len(stage.items))
        ahead = [item for item in items if listed[index, item] and not sets.items[index, item]]
        if not stage.sequential:
            ahead.sort(key=lambda item, row=share[index]: (-row[item], item))  # type: ignore[misc]
        kept = tuple(item for item in items if sets.items[index, item])
        choices.append(StageChoice(bool(sets.starts[index]), kept, tuple(ahead)))
    return settled(problem, tuple(choices), *sizes, reserve)
