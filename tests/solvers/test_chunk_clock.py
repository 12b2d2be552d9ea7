"""The clock of many sets of residents is the replay, where only start units are copied ahead."""

from __future__ import annotations

from typing import Any

import numpy as np

from solvers.chunk_clock import ChunkClock
from solvers.chunk_search import move_exactly
from solvers.layout import START
from solvers.moves import Move, Sets
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.replay import objective
from solvers.sets import Search


def small(rng: np.random.Generator, passes: int = 0) -> Problem:
    """Up to four stages and items, as many passes or so many; times so short that events often
    coincide."""
    drawn, stages, width = rng.integers(1, 5, 3).tolist()
    passes = passes or drawn
    shape = (passes, stages, width)

    def unit() -> Unit:
        chunks, chunk, last = (int(one) for one in rng.integers(1, 9, 3))
        return Unit(5, 5, 1 + chunks % 3, chunk, last, 1)

    parts = tuple(
        Stage(unit() if rng.random() < 0.8 else None, tuple(unit() for _ in range(width)))
        for _ in range(stages)
    )
    demand = ((rng.random(shape) < 0.6) * rng.integers(1, 4, shape)).astype(np.int32)
    prologue, lead, epilogue, longer = (
        rng.integers(0, most, shape[:2]).astype(np.int64) for most in (4, 12, 4, 5)
    )
    scenarios = Scenarios(
        prologue,
        lead,
        demand,
        np.where(demand > 0, rng.integers(0, 9, shape), 0).astype(np.int64),
        epilogue,
        rng.integers(1, 3, passes).astype(np.int64),
        None,
        (0, passes - 1) if passes > 1 and rng.random() < 0.4 else (0,),
        longer if rng.random() < 0.3 else None,
    )
    correction = rng.integers(-3, 4, (stages, width)).astype(np.int64)
    return Problem(parts, scenarios, 10_000, 5, correction_ns=correction)


def drawn(rng: np.random.Generator, problem: Problem) -> Sets:
    starts = [stage.start is not None and rng.random() < 0.4 for stage in problem.stages]
    return Sets(rng.random(problem.item_bytes.shape) < 0.5, np.array(starts))


def between(base: Sets, other: Sets) -> Move:
    """The move that makes ``other`` of ``base``."""

    def units(have: Sets, lack: Sets) -> tuple[tuple[int, int], ...]:
        items = np.argwhere(have.items & ~lack.items).tolist()
        starts = np.flatnonzero(have.starts & ~lack.starts).tolist()
        return (*((at, item) for at, item in items), *((at, START) for at in starts))

    return Move(units(base, other), units(other, base))


def taken(
    problem: Problem, sets: Sets, slots: int, start_slots: int, hold: int | None = None
) -> int:
    choices = tuple(
        StageChoice(bool(first), tuple(np.flatnonzero(kept).tolist()), ())
        for kept, first in zip(sets.items, sets.starts, strict=True)
    )
    return objective(problem, Schedule(choices, slots, start_slots, slots, hold=hold))


def test_equals_the_replay(make: Any) -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, 21])
        problem = small(rng)
        if seed % 3 == 0:
            problem = make.shortening(problem, seed)
        slots, start_slots = (int(one) for one in rng.integers(1, 4, 2))
        base = drawn(rng, problem)
        others = [base, *(drawn(rng, problem) for _ in range(5))]
        moves = [between(base, other) for other in others]
        assert [move.applied(base).items.tolist() for move in moves] == [
            other.items.tolist() for other in others
        ]
        for hold in (None, 0, 1, 2):
            found = ChunkClock(problem, slots, start_slots, hold).measure(base, moves)
            wanted = [taken(problem, other, slots, start_slots, hold) for other in others]
            assert found.tolist() == wanted, (seed, hold)


def test_no_start_unit_comes_where_none_streams() -> None:
    # not even many passes later: once the clock took "far" for a stage that it reached in the end
    for seed in range(20):
        rng = np.random.default_rng([seed, 22])
        problem = small(rng, passes=9)
        starts = np.array([stage.start is not None for stage in problem.stages])
        base = Sets(drawn(rng, problem).items, starts)
        found = ChunkClock(problem, 2, 2).measure(base, [Move((), ())])
        assert found.tolist() == [taken(problem, base, 2, 2)], seed


def test_copies_are_held_back_where_that_is_faster(make: Any) -> None:
    # Three stages of one item of 10 ns, leads of 4, works of 6: 20 each. The last one's start unit
    # streams, in two chunks of 6, from when the next pass has begun. The first chunk begins in the
    # first lead, and the first item comes 2 ns late. Where leads hold all later stages' back, each
    # chunk has the 10 ns of a work and a lead for itself. If what the next stage needs is not held,
    # the second chunk begins in the second lead, and the second item comes 2 ns late.
    # There is room for two start units, and not for an item.
    start, item = Unit(5, 5, 2, 6, 6, 3), make.unit(10, 11)
    scenarios = make.scenarios([[[1]] * 3] * 8, lead=4, work=lambda rows: 6)
    problem = Problem((Stage(start, (item,)),) * 3, scenarios, 11 + 3 * 5, 11)
    plain = Schedule((StageChoice(True), StageChoice(True), StageChoice(False)), 1, 1, 1)
    held = plain.replace(hold=0)
    assert objective(problem, plain) == 8 * 62
    assert objective(problem, plain.replace(hold=1)) == 8 * 62
    assert objective(problem, held) == 8 * 60
    search = Search(problem, [])
    search.try_schedule(plain)
    move_exactly(search, 0.01, 0)
    assert search.best == held


def test_a_chunk_that_delays_moves_to_where_it_does_not(make: Any) -> None:
    # Two stages with start units of 4 ns, of which one can stay; each pass works 10 ns in stage 0,
    # on a resident, and 1 ns in stage 1, on an item that is copied in 8 ns; leads of 2 ns. Stage
    # 1's start unit is copied while stage 0 works: 2 + 10 + 2 + 8 + 1 ns a pass. Stage 0's for the
    # next pass may begin when stage 1 does, and then what 1 demands waits for 2 ns.
    start, item = make.unit(4, 3), make.unit(8, 5)
    scenarios = make.scenarios([[[1, 0], [0, 1]]] * 6, lead=2, work=lambda rows: 10)
    work = scenarios.work_ns.copy()
    work[:, 1] = np.minimum(work[:, 1], 1)
    scenarios = Scenarios(
        scenarios.prologue_ns,
        scenarios.lead_ns,
        scenarios.demand,
        work,
        scenarios.epilogue_ns,
        scenarios.weight,
    )
    # room for a slot of each kind, one start unit and the item of stage 0
    problem = Problem((Stage(start, (item, item)),) * 2, scenarios, 3 + 5 + 3 + 5, 5)
    wrong = Schedule((StageChoice(False, (0,)), StageChoice(True, ())), 1, 1, 1)
    right = Schedule((StageChoice(True, (0,)), StageChoice(False, ())), 1, 1, 1)
    search = Search(problem, [])
    search.try_schedule(wrong)
    move_exactly(search, 0.01, 0)
    assert search.best is not None
    assert objective(problem, right) == 6 * 23
    # the first pass waits for stage 0's start unit, the last one copies none for the next
    assert objective(problem, wrong) == 4 + 5 * 25 + 23
    assert objective(problem, search.best) == 6 * 23
