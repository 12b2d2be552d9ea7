"""The joint model against all residents, slots, orders of copies and orders of work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from solvers.errors import OptionError
from solvers.host import physical_bound
from solvers.joint import solve_joint
from solvers.outcome import Stop
from solvers.policies import every_policy
from solvers.price import AheadPrice
from solvers.problem import Problem, Stage, Unit
from solvers.registry import Limits, load
from solvers.relaxation import relax
from solvers.replay import measure, objective, replay

LIMITS = Limits(work=20.0, seconds=600.0)


def tiny(make: Any, seed: int) -> Problem:
    """One pass of two stages with one or two items each."""
    rng = np.random.default_rng([seed, 3])
    width = [int(rng.integers(1, 3)) for _ in range(2)]
    stages = tuple(
        Stage(
            make.unit(int(rng.integers(1, 40)), 3) if rng.random() < 0.5 else None,
            tuple(make.unit(int(rng.integers(5, 40)), 4) for _ in range(count)),
        )
        for count in width
    )
    demand = np.zeros((1, 2, 2), dtype=int)
    for at, count in enumerate(width):
        demand[0, at, :count] = (rng.random(count) < 0.8) * rng.integers(1, 4, count)
    scenarios = make.scenarios(
        demand.tolist(),
        lead=int(rng.integers(0, 40)),
        prologue=int(rng.integers(0, 9)),
        epilogue=int(rng.integers(0, 5)),
    )
    return Problem(stages, scenarios, int(rng.integers(7, 20)), 4)


def outcomes(problem: Problem, holding: bool = False) -> Iterator[int]:
    """The time of every choice, as early as its orders allow; those that block are left out.

    With ``holding`` also those in which no chunk of a later stage begins while a stage comes to
    its router that may demand copies."""
    scenarios, stages = problem.scenarios, problem.stages
    units = [(at, item) for at, stage in enumerate(stages) for item in range(len(stage.items))]
    starts = [at for at, stage in enumerate(stages) if stage.start is not None]
    everything = [*units, *((at, -1) for at in starts)]
    for kept in product((False, True), repeat=len(everything)):
        stays = {unit for unit, one in zip(everything, kept, strict=True) if one}
        streams = [at for at in starts if (at, -1) not in stays]
        gone = [unit for unit in units if unit not in stays]
        copied = [(at, -1) for at in streams]
        copied += [unit for unit in gone if scenarios.demand[0][unit]]
        extra = sum(int(problem.correction[unit]) for unit in gone)
        holds = [set[int]()]
        if holding and streams and gone:
            holds.append({at for at, _ in gone})
        for held in holds:
            for spent in of_residents(problem, stays, streams, bool(gone), copied, held):
                yield spent + extra


def of_residents(
    problem: Problem,
    stays: set[Any],
    streams: list[int],
    waits: bool,
    wanted: list[Any],
    held: set[int],
) -> Iterator[int]:
    """For all that the host could take of what is ``wanted``."""
    scenarios, stages = problem.scenarios, problem.stages
    able = [unit for unit in wanted if unit[1] >= 0 and scenarios.host_work_ns is not None]
    for taken in product((False, True), repeat=len(able)):
        hosted = {unit for unit, one in zip(able, taken, strict=True) if one}
        pieces = {unit: copied_unit(problem, *unit).chunks for unit in wanted if unit not in hosted}
        used = sum(3 if item == -1 else 4 for _, item in stays)
        for slots, start_slots in product(range(5), range(3)):
            if (streams and not start_slots) or (waits and not slots):
                continue
            if used + 4 * slots + (3 * start_slots if streams else 0) > problem.capacity_bytes:
                continue
            asked = [
                [
                    item
                    for item in range(len(stage.items))
                    if scenarios.demand[0, at, item] and (at, item) not in hosted
                ]
                for at, stage in enumerate(stages)
            ]
            for order in orders(pieces):
                for works in product(*(list(permutations(one)) for one in asked)):
                    spent = follow(problem, order, works, slots, start_slots, hosted, held)
                    if spent is not None:
                        yield spent


def orders(left: dict[tuple[int, int], int]) -> Iterator[list[tuple[int, int]]]:
    """All orders of so many chunks of each unit."""
    if not any(left.values()):
        yield []
    for unit, count in left.items():
        if count:
            for rest in orders({**left, unit: count - 1}):
                yield [unit, *rest]


def copied_unit(problem: Problem, at: int, item: int) -> Unit:
    """What is copied of a stage's item, or of its start unit."""
    stage, short = problem.stages[at], problem.scenarios.short
    if item >= 0:
        return stage.items[item]
    starts = (stage.start, *stage.short_starts)
    found = starts[0 if short is None or not stage.short_starts else int(short[0])]
    assert found is not None
    return found


def follow(
    problem: Problem,
    order: list[tuple[int, int]],
    works: Any,
    slots: int,
    start_slots: int,
    hosted: set[tuple[int, int]],
    held: set[int],
) -> int | None:
    """Earliest times, chunk by chunk and work by work, as each waits for the other."""
    scenarios = problem.scenarios
    arrived: dict[tuple[int, int], int] = {}
    # when each slot is free; a held one is None until its holder has left
    holders: dict[str, list[tuple[int, int]]] = {"item": [], "start": []}
    left: dict[tuple[int, int], int] = {}
    todo = list(order)
    free_at = 0
    leads: list[tuple[int, int, int]] = []  # stage, begin, end, of those that hold copies back

    def copy_next() -> bool:
        nonlocal free_at
        one = todo[0]
        kind, room = ("start", start_slots) if one[1] == -1 else ("item", slots)
        mine = holders[kind]
        begins = free_at
        if one not in mine and len(mine) >= room:
            # all but room - 1 of those before it must have left
            times = sorted(left.get(other, 1 << 60) for other in mine)
            begins = max(begins, times[len(mine) - room])
        if begins >= 1 << 60:
            return False
        for stage, begin, end in leads:
            if one[0] > stage and begin <= begins < end:
                begins = end
        if one not in mine:
            mine.append(one)
        todo.pop(0)
        unit = copied_unit(problem, *one)
        free_at = begins + (unit.chunk_ns if one in todo else unit.last_ns)
        if one not in todo:
            arrived[one] = free_at
        return True

    def wait(unit: tuple[int, int], now: int) -> int | None:
        while unit in todo:
            if not copy_next():
                return None
        return max(now, arrived.get(unit, now))

    now: int | None = 0
    for at in range(len(problem.stages)):
        assert now is not None
        now = wait((at, -1), now + int(scenarios.prologue_ns[0, at]))
        if now is None:
            return None
        begun = now
        now += int(scenarios.lead_ns[0, at])
        if scenarios.start_lead_ns is not None and (at, -1) in order:
            now += int(scenarios.start_lead_ns[0, at])
        left[at, -1] = now
        if at in held:
            leads.append((at, begun, now))
        host_done = now
        if scenarios.host_work_ns is not None:
            host_done += sum(
                int(scenarios.host_work_ns[0][unit]) for unit in hosted if unit[0] == at
            )
        for item in works[at]:
            now = wait((at, item), now)
            if now is None:
                return None
            now += int(scenarios.work_ns[0, at, item])
            left[at, item] = now
        now = max(now, host_done) + int(scenarios.epilogue_ns[0, at])
    return now


@pytest.mark.parametrize("seed", range(100))
def test_the_brute_force_optimum(make: Any, seed: int) -> None:
    problem = tiny(make, seed)
    best = min(outcomes(problem), default=None)
    joint = solve_joint(problem, LIMITS)
    assert joint.value_ns == best
    if best is None:
        assert joint.stop is Stop.INFEASIBLE
        return
    assert joint.stop is Stop.OPTIMAL
    assert joint.bound_ns == best
    schedule = load("on-demand").solve(problem, LIMITS).schedule
    assert schedule is not None
    assert measure(problem, replay(problem, schedule)) >= best


@pytest.mark.parametrize("seed", range(40))
def test_the_brute_force_optimum_with_short_start_units(make: Any, seed: int) -> None:
    problem = make.shortening(tiny(make, seed), seed)
    best = min(outcomes(problem), default=None)
    assert solve_joint(problem, LIMITS).value_ns == best
    relaxed = relax(problem)
    assert best is None or relaxed is None or relaxed.bound.value_ns <= best


@pytest.mark.parametrize("seed", range(60))
def test_the_brute_force_optimum_with_a_host(make: Any, seed: int) -> None:
    problem = make.hosting(tiny(make, seed), seed)
    best = min(outcomes(problem), default=None)
    joint = solve_joint(problem, LIMITS)
    assert joint.value_ns == best
    if best is None:
        return
    assert physical_bound(problem).value_ns <= best
    # what a schedule's rule makes of it is no better than any choice of items
    for name in ("fiddler", "cpsat"):
        schedule = load(name).solve(problem, LIMITS).schedule
        assert schedule is not None
        assert measure(problem, replay(problem, schedule)) >= best


def test_what_it_cannot_do_is_refused(make: Any) -> None:
    problem = tiny(make, 0)
    with pytest.raises(OptionError, match="measures time, not bytes"):
        solve_joint(problem.replace(measure="bytes"), LIMITS)
    wide = make.scenarios([[[1] * 50] * 5])
    stages = (Stage(None, (make.unit(1, 1),) * 50),) * 5
    with pytest.raises(OptionError, match="at most 200 chunks, not 250"):
        solve_joint(Problem(stages, wide, 10, 1), LIMITS)
    shape = problem.scenarios.demand.shape
    nothing = np.zeros(shape[:2], dtype=np.int64)
    price = AheadPrice(np.zeros(shape, dtype=np.int64), nothing, nothing[:, 0])
    with pytest.raises(OptionError, match="copies ahead have a price"):
        solve_joint(problem.replace(price=price, correction_ns=0 * problem.copy_ns), LIMITS)


def in_chunks(problem: Problem, seed: int) -> Problem:
    """The same with some of the units in two chunks, and residents that are worth something by
    themselves; no more than that has few enough orders."""
    rng = np.random.default_rng([seed, 7])
    places = [
        (at, item)
        for at, stage in enumerate(problem.stages)
        for item in range(-1 if stage.start else 0, len(stage.items))
    ]
    many = {6: 0, 5: 1}.get(len(places), 2)
    chosen = {places[at] for at in rng.permutation(len(places))[:many].tolist()}

    def parted(unit: Unit | None, place: tuple[int, int]) -> Unit | None:
        if unit is None or place not in chosen:
            return unit
        first = int(rng.integers(0, unit.copy_ns + 1))
        return replace(unit, chunks=2, chunk_ns=first, last_ns=unit.copy_ns - first, chunk_bytes=1)

    stages = []
    for at, stage in enumerate(problem.stages):
        items = tuple(parted(one, (at, item)) or one for item, one in enumerate(stage.items))
        stages.append(replace(stage, start=parted(stage.start, (at, -1)), items=items))
    worth = rng.integers(-5, 6, problem.correction.shape)
    exists = problem.item_bytes > 0
    return problem.replace(stages=tuple(stages), correction_ns=worth * exists)


@pytest.mark.parametrize("seed", range(160))
def test_the_brute_force_optimum_in_chunks_with_copies_held_back(make: Any, seed: int) -> None:
    problem = in_chunks(tiny(make, seed + 1_000), seed)
    if seed % 4 == 0:
        problem = make.shortening(problem, seed)
    best = min(outcomes(problem, holding=True), default=None)
    joint = solve_joint(problem, LIMITS)
    assert joint.value_ns == best
    if best is not None:
        assert joint.stop is Stop.OPTIMAL
        assert joint.bound_ns == best


@pytest.mark.parametrize("seed", range(12))
def test_no_policy_is_better_held_back_or_not(make: Any, seed: int) -> None:
    problem = in_chunks(tiny(make, seed + 2_000), seed)
    # a second pass with another demand, which policies do not know
    demand = problem.scenarios.demand.repeat(2, axis=0)
    demand[1] = demand[1, :, ::-1] * (problem.item_bytes > 0)
    scenarios = make.scenarios(demand.tolist(), lead=int(problem.scenarios.lead_ns[0, 0]))
    problem = problem.replace(scenarios=scenarios)
    joint = solve_joint(problem, LIMITS)
    assert joint.stop in (Stop.OPTIMAL, Stop.INFEASIBLE)
    for schedule in every_policy(problem):
        assert joint.value_ns is not None
        assert objective(problem, schedule) >= joint.value_ns, schedule


def test_chunks_by_hand(make: Any) -> None:
    # One slot, and one start slot that stage 0's start leaves at once; nothing can stay. Item 0
    # comes in 10, and is worked on from 10 to 20 in the only slot; item 1 comes from 20 to 30, and
    # is done at 40. Stage 1's start unit takes 12: between the items it would delay the second by
    # 2, after it it comes at 42. In two chunks of 6 one lies between and one behind, and the lead
    # of 5 begins at 40.
    item, start = make.unit(10, 4), make.unit(12, 3)
    scenarios = replace(
        make.scenarios([[[1, 1], [0, 0]]]), lead_ns=np.array([[0, 5]], dtype=np.int64)
    )
    for one, taken in (
        (start, 47),
        (replace(start, chunks=2, chunk_ns=6, last_ns=6, chunk_bytes=1), 45),
    ):
        stages = (Stage(make.unit(0, 3), (item, item)), Stage(one, ()))
        problem = Problem(stages, scenarios, 7, 4)
        assert solve_joint(problem, LIMITS).value_ns == taken


def test_what_a_start_unit_adds_to_the_lead_fits_into_the_horizon(make: Any) -> None:
    # Both start units are copied in no time, through the one slot that there is room for. Stage 0's
    # lead takes 2 + 8, its item comes meanwhile, the work is done at 13, stage 1's lead at 15. All
    # copies and all computation but for the 8 add up to 12.
    start = make.unit(0, 3)
    stages = (Stage(start, (make.unit(5, 4),)), Stage(start, ()))
    scenarios = make.scenarios([[[1], [0]]], lead=2, work=lambda rows: 3)
    longer = replace(scenarios, start_lead_ns=np.array([[8, 0]], dtype=np.int64))
    assert solve_joint(Problem(stages, longer, 7, 4), LIMITS).value_ns == 15
