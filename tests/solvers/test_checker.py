"""The checker accepts what is valid and names what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.checker import check_bound, check_schedule, used_bytes
from solvers.outcome import Bound, Schedule, StageChoice
from solvers.problem import Problem, Stage


@pytest.fixture
def problem(make: Any) -> Problem:
    """Two stages of four items and a sequential one of three; starts of 7 bytes, items of 5."""
    item, start = make.unit(10, 5), make.unit(10, 7)
    stages = (
        Stage(start, (item,) * 4),
        Stage(start, (item,) * 4),
        Stage(None, (item,) * 3, sequential=True),
    )
    scenarios = make.scenarios([[[1, 0, 2, 0], [0, 1, 0, 3], [1, 1, 1, 0]]])
    return Problem(stages, scenarios, capacity_bytes=60, slot_bytes=6)


@pytest.fixture
def schedule() -> Schedule:
    """Residents 3 x 5 + 7, slots 3 x 6 + 1 x 7: 47 bytes."""
    return Schedule(
        (
            StageChoice(True, (0, 2), (1,)),
            StageChoice(False, (), (3, 1)),
            StageChoice(False, (0,), (1, 2)),
        ),
        slots=3,
        start_slots=1,
        reserve=1,
    )


def test_memory_is_residents_and_slots(problem: Problem, schedule: Schedule) -> None:
    assert used_bytes(problem, schedule) == 47
    assert list(check_schedule(problem, schedule)) == []
    assert list(check_schedule(problem.replace(capacity_bytes=47), schedule)) == []
    tight = list(check_schedule(problem.replace(capacity_bytes=46), schedule))
    assert [violation.reason for violation in tight] == ["capacity"]
    assert "47 bytes of 46" in tight[0].message


def test_no_memory_for_start_slots_when_all_stay(problem: Problem, schedule: Schedule) -> None:
    stages = tuple(
        replace(choice, start_resident=index < 2) for index, choice in enumerate(schedule.stages)
    )
    # 3 x 5 + 2 x 7 + 3 x 6; the unused start slot costs nothing
    assert used_bytes(problem, schedule.replace(stages=stages)) == 47


def _stage(schedule: Schedule, index: int, **changes: Any) -> Schedule:
    stages = list(schedule.stages)
    stages[index] = replace(stages[index], **changes)
    return schedule.replace(stages=tuple(stages))


MUTATIONS: dict[str, Callable[[Schedule], Schedule]] = {
    "stage_count": lambda s: s.replace(stages=s.stages[:2]),
    "no_start": lambda s: _stage(s, 2, start_resident=True),
    "item_range": lambda s: _stage(s, 0, prefetch=(4,)),
    "resident_duplicate": lambda s: _stage(s, 0, resident=(0, 0)),
    "prefetch_duplicate": lambda s: _stage(s, 1, prefetch=(3, 3)),
    "resident_order": lambda s: _stage(s, 0, resident=(2, 0)),
    "resident_and_prefetch": lambda s: _stage(s, 0, prefetch=(2,)),
    "sequential_residents": lambda s: _stage(s, 2, resident=(1,), prefetch=(0, 2)),
    "sequential_prefetch": lambda s: _stage(s, 2, prefetch=(2, 1)),
    "negative": lambda s: s.replace(reserve=-1),
    "start_slots": lambda s: s.replace(start_slots=0),
    "slots": lambda s: s.replace(slots=0, reserve=0),
    "reserve": lambda s: s.replace(reserve=4),
    "reserve_missing": lambda s: s.replace(reserve=0),
    "capacity": lambda s: s.replace(slots=6),
    "hold": lambda s: s.replace(hold=-1),
}


@pytest.mark.parametrize("reason", MUTATIONS)
def test_each_fault_is_named(problem: Problem, schedule: Schedule, reason: str) -> None:
    found = Counter(v.reason for v in check_schedule(problem, MUTATIONS[reason](schedule)))
    assert reason in found
    # a fault names itself, and at most what follows from it
    follows = {
        "slots": {"reserve_missing"},
        "negative": {"reserve_missing"},
        "resident_duplicate": set(),
    }
    assert set(found) - {reason} <= follows.get(reason, set())


def test_slots_must_hold_the_largest_item(problem: Problem, schedule: Schedule) -> None:
    found = list(check_schedule(problem.replace(slot_bytes=4), schedule))
    assert [violation.reason for violation in found] == ["slot_bytes"]


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32 - 1))
def test_valid_schedules_are_accepted_and_random_faults_found(make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = make.problem(rng)
    schedule = make.schedule(rng, problem)
    assert list(check_schedule(problem, schedule)) == []
    index = int(rng.integers(0, len(problem.stages)))
    choice, count = schedule.stages[index], len(problem.stages[index].items)
    faults = [
        ("item_range", _stage(schedule, index, resident=(*choice.resident, count))),
        ("item_range", _stage(schedule, index, prefetch=(-1, *choice.prefetch))),
        ("reserve", schedule.replace(reserve=schedule.slots + int(rng.integers(1, 5)))),
        ("capacity", schedule.replace(slots=1 + problem.capacity_bytes // problem.slot_bytes)),
    ]
    if choice.resident:
        twice = (choice.resident[0], *choice.resident)
        both = (*choice.prefetch, choice.resident[-1])
        faults.append(("resident_duplicate", _stage(schedule, index, resident=twice)))
        faults.append(("resident_and_prefetch", _stage(schedule, index, prefetch=both)))
    for reason, broken in faults:
        assert reason in {violation.reason for violation in check_schedule(problem, broken)}


def test_a_bound_above_the_objective_is_refused() -> None:
    bound = Bound(11, "clairvoyant")
    assert list(check_bound(11, bound)) == []
    assert [violation.reason for violation in check_bound(10, bound)] == ["bound"]
    assert list(check_bound(10, None)) == []


def _without(values: tuple[int, ...], at: int) -> tuple[int, ...]:
    return (*values[:at], *values[at + 1 :])


def one_fault(
    rng: np.random.Generator, problem: Problem, schedule: Schedule
) -> tuple[str, Schedule] | None:
    """A random change that breaks one named rule; None where this schedule has no place for it."""
    index = int(rng.integers(0, len(problem.stages)))
    stage, choice = problem.stages[index], schedule.stages[index]
    count = len(stage.items)
    others = [item for item in range(count) if item not in choice.resident]
    streams = any(
        len(c.resident) < len(s.items) for s, c in zip(problem.stages, schedule.stages, strict=True)
    )
    starts = any(
        s.start is not None and not c.start_resident
        for s, c in zip(problem.stages, schedule.stages, strict=True)
    )
    reason = str(rng.choice(sorted(MUTATIONS)))
    any_item = int(rng.integers(0, max(count, 1)))
    changed: Schedule | None = None
    match reason:
        case "stage_count":
            changed = schedule.replace(stages=schedule.stages[:-1])
        case "no_start" if stage.start is None:
            changed = _stage(schedule, index, start_resident=True)
        case "item_range":
            wrong = int(rng.choice([-1 - any_item, count + any_item]))
            changed = _stage(schedule, index, prefetch=(*choice.prefetch, wrong))
        case "resident_duplicate" if choice.resident:
            item = int(rng.choice(choice.resident))
            changed = _stage(schedule, index, resident=tuple(sorted((*choice.resident, item))))
        case "prefetch_duplicate" if choice.prefetch:
            item = int(rng.choice(choice.prefetch))
            changed = _stage(schedule, index, prefetch=(*choice.prefetch, item))
        case "resident_order" if len(choice.resident) > 1:
            changed = _stage(schedule, index, resident=choice.resident[::-1])
        case "resident_and_prefetch" if choice.resident:
            item = int(rng.choice(choice.resident))
            place = int(rng.integers(0, len(choice.prefetch) + 1))
            ahead = (*choice.prefetch[:place], item, *choice.prefetch[place:])
            changed = _stage(schedule, index, prefetch=ahead)
        case "sequential_residents" if stage.sequential and len(others) > 1:
            kept = tuple(sorted((*choice.resident, int(rng.choice(others[1:])))))
            changed = _stage(schedule, index, resident=kept)
        case "sequential_prefetch" if stage.sequential and choice.prefetch:
            at = int(rng.integers(0, len(choice.prefetch)))
            changed = _stage(schedule, index, prefetch=_without(choice.prefetch, at))
        case "negative":
            name = str(rng.choice(["slots", "start_slots", "reserve"]))
            changed = schedule.replace(**{name: -int(rng.integers(1, 9))})
        case "start_slots" if starts:
            changed = schedule.replace(start_slots=0)
        case "slots" if streams:
            changed = schedule.replace(slots=0, reserve=0)
        case "reserve":
            changed = schedule.replace(reserve=schedule.slots + int(rng.integers(1, 9)))
        case "reserve_missing" if streams:
            needs = schedule.eviction != "none" or any(
                len(c.resident) + len(c.prefetch) < len(s.items)
                for s, c in zip(problem.stages, schedule.stages, strict=True)
            )
            changed = schedule.replace(reserve=0) if needs else None
        case "capacity":
            more = problem.capacity_bytes // problem.slot_bytes + int(rng.integers(1, 9))
            changed = schedule.replace(slots=more)
        case "hold":
            # below 0, or where there is nothing to hold back
            hold = int(rng.integers(-3, 0 if starts else 9))
            changed = schedule.replace(hold=hold)
    return None if changed is None else (reason, changed)


def test_a_thousand_random_faults_are_found_and_named(make: Any) -> None:
    rng = np.random.default_rng(11)
    found: Counter[str] = Counter()
    while sum(found.values()) < 3_000:
        problem = make.problem(rng)
        schedule = make.schedule(rng, problem)
        assert not list(check_schedule(problem, schedule))
        for _ in range(5):
            fault = one_fault(rng, problem, schedule)
            if fault is None:
                continue
            reason, broken = fault
            assert reason in {violation.reason for violation in check_schedule(problem, broken)}
            found[reason] += 1
    # every kind was met, none by a single lucky case
    assert set(found) == set(MUTATIONS)
    assert min(found.values()) >= 10
