"""The joint model against all residents, slots, orders of copies and orders of work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from solvers.errors import OptionError
from solvers.host import physical_bound
from solvers.joint import solve_joint
from solvers.outcome import Stop
from solvers.problem import Problem, Stage
from solvers.registry import Limits, load
from solvers.relaxation import relax
from solvers.replay import measure, replay

LIMITS = Limits(work=20.0, seconds=60.0)


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


def outcomes(problem: Problem) -> Iterator[int]:
    """The time of every choice, as early as its orders allow; those that block are left out."""
    scenarios, stages = problem.scenarios, problem.stages
    units = [(at, item) for at, stage in enumerate(stages) for item in range(len(stage.items))]
    starts = [at for at, stage in enumerate(stages) if stage.start is not None]
    everything = [*units, *((at, -1) for at in starts)]
    for kept in product((False, True), repeat=len(everything)):
        stays = {unit for unit, one in zip(everything, kept, strict=True) if one}
        streams = [at for at in starts if (at, -1) not in stays]
        waits = any(unit not in stays for unit in units)
        copied = [(at, -1) for at in streams]
        copied += [unit for unit in units if unit not in stays and scenarios.demand[0][unit]]
        yield from of_residents(problem, stays, streams, waits, copied)


def of_residents(
    problem: Problem, stays: set[Any], streams: list[int], waits: bool, wanted: list[Any]
) -> Iterator[int]:
    """For all that the host could take of what is ``wanted``."""
    scenarios, stages = problem.scenarios, problem.stages
    able = [unit for unit in wanted if unit[1] >= 0 and scenarios.host_work_ns is not None]
    for taken in product((False, True), repeat=len(able)):
        hosted = {unit for unit, one in zip(able, taken, strict=True) if one}
        copied = [unit for unit in wanted if unit not in hosted]
        used = sum(3 if item == -1 else 4 for _, item in stays)
        for slots, start_slots in product(range(4), range(3)):
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
            for order in permutations(copied):
                for works in product(*(list(permutations(one)) for one in asked)):
                    spent = follow(problem, list(order), works, slots, start_slots, hosted)
                    if spent is not None:
                        yield spent


def follow(
    problem: Problem,
    order: list[tuple[int, int]],
    works: Any,
    slots: int,
    start_slots: int,
    hosted: set[tuple[int, int]],
) -> int | None:
    """Earliest times, copy by copy and work by work, as each waits for the other."""
    scenarios = problem.scenarios
    arrived: dict[tuple[int, int], int] = {}
    # when each slot is free; a held one is None until its holder has left
    holders: dict[str, list[tuple[int, int]]] = {"item": [], "start": []}
    left: dict[tuple[int, int], int] = {}
    todo = list(order)
    free_at = 0

    def copy_next() -> bool:
        nonlocal free_at
        at, item = todo[0]
        kind, room = ("start", start_slots) if item == -1 else ("item", slots)
        mine = holders[kind]
        begins = free_at
        if len(mine) >= room:
            # all but room - 1 of those before it must have left
            times = sorted(left.get(one, 1 << 60) for one in mine)
            begins = max(begins, times[len(mine) - room])
        if begins >= 1 << 60:
            return False
        stage, short = problem.stages[at], 0 if scenarios.short is None else int(scenarios.short[0])
        start = (stage.start, *stage.short_starts)[short] if stage.short_starts else stage.start
        unit = start if item == -1 else stage.items[item]
        assert unit is not None
        mine.append(todo.pop(0))
        free_at = arrived[at, item] = begins + unit.copy_ns
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
        now += int(scenarios.lead_ns[0, at])
        if scenarios.start_lead_ns is not None and (at, -1) in order:
            now += int(scenarios.start_lead_ns[0, at])
        left[at, -1] = now
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
    with pytest.raises(OptionError, match="at most 200 copies, not 255"):
        solve_joint(Problem(stages, wide, 10, 1), LIMITS)
