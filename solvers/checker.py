"""The independent checker: every way in which a schedule breaks a problem's rules.

It shares no code with any back end and knows nothing of how a schedule was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from solvers.counting import counted
from solvers.errors import OptionError
from solvers.outcome import Bound, Schedule, StageChoice
from solvers.problem import Problem, Stage
from solvers.proof import covers_all_slots, proven_ns
from solvers.proof_cache import proven_cached

__all__ = ["Violation", "check_bound", "check_proofs", "check_schedule", "used_bytes"]


class Violation(NamedTuple):
    """One broken rule: its name, where it is broken, and a sentence."""

    reason: str
    where: str
    message: str


def used_bytes(problem: Problem, schedule: Schedule) -> int:
    """Memory of residents and slots."""
    total = schedule.slots * problem.slot_bytes
    streamed = 0
    for stage, choice in zip(problem.stages, schedule.stages, strict=True):
        total += sum(stage.items[item].held_bytes for item in choice.resident)
        if stage.start is not None:
            if choice.start_resident:
                total += stage.start.held_bytes
            else:
                streamed = max(streamed, stage.start.held_bytes)
    return total + schedule.start_slots * streamed


def check_schedule(problem: Problem, schedule: Schedule) -> Iterator[Violation]:
    """Yield all violations; a schedule that yields none can be replayed."""
    if len(schedule.stages) != len(problem.stages):
        message = f"{counted(len(schedule.stages), 'stage')} instead of {len(problem.stages)}"
        yield Violation("stage_count", "schedule", message)
        return
    sound = True
    for index, (stage, choice) in enumerate(zip(problem.stages, schedule.stages, strict=True)):
        for violation in _check_stage(stage, choice, f"stage {index}"):
            sound = sound and violation.reason != "item_range"
            yield violation
    yield from _check_slots(problem, schedule)
    yield from _check_host(problem, schedule)
    if sound:
        used = used_bytes(problem, schedule)
        if used > problem.capacity_bytes:
            message = f"needs {used} bytes of {problem.capacity_bytes}"
            yield Violation("capacity", "schedule", message)


def _check_stage(stage: Stage, choice: StageChoice, where: str) -> Iterator[Violation]:
    count = len(stage.items)
    if choice.start_resident and stage.start is None:
        yield Violation("no_start", where, "a start unit is resident where there is none")
    if choice.waits and not choice.looks_ahead:
        yield Violation("waits", where, "waits for names, which nobody says")
    for name, items in (("resident", choice.resident), ("prefetch", choice.prefetch)):
        outside = [item for item in items if not 0 <= item < count]
        if outside:
            message = f"{name} item {outside[0]} of only {count}"
            yield Violation("item_range", where, message)
        if len(set(items)) != len(items):
            yield Violation(f"{name}_duplicate", where, f"a {name} item stands twice")
    if list(choice.resident) != sorted(choice.resident):
        yield Violation("resident_order", where, "resident items do not ascend")
    both = sorted(set(choice.resident) & set(choice.prefetch))
    if both:
        message = f"item {both[0]} is resident and prefetched"
        yield Violation("resident_and_prefetch", where, message)
    if stage.sequential:
        kept = len(choice.resident)
        if set(choice.resident) != set(range(kept)):
            yield Violation("sequential_residents", where, "residents are not the first items")
        elif list(choice.prefetch) != list(range(kept, count)):
            message = "items that are not resident are not prefetched in index order"
            yield Violation("sequential_prefetch", where, message)


def _check_slots(problem: Problem, schedule: Schedule) -> Iterator[Violation]:
    for name in ("slots", "start_slots", "reserve"):
        if getattr(schedule, name) < 0:
            yield Violation("negative", name, f"{name} is {getattr(schedule, name)}")
    pairs = list(zip(problem.stages, schedule.stages, strict=True))
    streams_start = any(s.start is not None and not c.start_resident for s, c in pairs)
    streams_item = any(len(c.resident) < len(s.items) for s, c in pairs)
    on_demand = any(len(c.resident) + len(c.prefetch) < len(s.items) for s, c in pairs)
    if streams_start and schedule.start_slots < 1:
        yield Violation("start_slots", "start_slots", "start units stream, but have no slot")
    if streams_item and schedule.slots < 1:
        yield Violation("slots", "slots", "items stream, but have no slot")
    if schedule.reserve > max(schedule.slots, 0):
        yield Violation(
            "reserve",
            "reserve",
            f"{schedule.reserve} reserved of {counted(schedule.slots, 'slot')}",
        )
    if streams_item and schedule.reserve < 1 and (on_demand or schedule.eviction != "none"):
        message = "copies on demand need a slot that prefetches leave to them"
        yield Violation("reserve_missing", "reserve", message)
    if schedule.hold is not None and (schedule.hold < 0 or not streams_start):
        what = f"{counted(schedule.hold, 'stage')} on" if streams_start else "no start unit streams"
        yield Violation("hold", "hold", f"copies ahead are held back, but {what}")
    largest = max((item.size_bytes for s, _ in pairs for item in s.items), default=0)
    if streams_item and largest > problem.slot_bytes:
        message = f"a slot has {problem.slot_bytes} bytes, an item {largest}"
        yield Violation("slot_bytes", "slots", message)


def _check_host(problem: Problem, schedule: Schedule) -> Iterator[Violation]:
    host = schedule.host
    if host is None:
        return
    if problem.scenarios.host_work_ns is None:
        yield Violation("host_missing", "host", "items for a host where none works on them")
    if host.rows < 1 or not 1 <= host.percent <= 100:
        message = f"{host.percent} in a hundred, of {counted(host.rows, 'row')} at most"
        yield Violation("host_range", "host", message)


def check_bound(objective_ns: int, bound: Bound | None) -> Iterator[Violation]:
    """A bound never exceeds what a schedule reaches."""
    if bound is not None and bound.value_ns > objective_ns:
        message = f"the bound {bound.value_ns} ns exceeds the objective {objective_ns} ns"
        yield Violation("bound", "bound", message)


def check_proofs(problem: Problem, bound: Bound) -> Iterator[Violation]:
    """A bound is what the multipliers that came with it prove, for every number of slots."""
    if bound.policies == "cache":
        yield from _check_cached(problem, bound)
        return
    if not covers_all_slots(problem, bound.proofs):
        yield Violation("proof_cover", "bound", "some number of slots has no proof")
    for index, proof in enumerate(bound.proofs):
        where = f"proof {index}"
        try:
            value = proven_ns(problem, proof)
        except OptionError as error:
            yield Violation("proof_form", where, str(error))
            continue
        if value is None or value < bound.value_ns:
            message = f"its multipliers prove {value} ns, not {bound.value_ns} ns"
            yield Violation("proof_value", where, message)


def _check_cached(problem: Problem, bound: Bound) -> Iterator[Violation]:
    if bound.cached is None:
        yield Violation("proof_cover", "bound", "what caches can do has no proof")
        return
    try:
        value = proven_cached(problem, bound.cached)
    except OptionError as error:
        yield Violation("proof_form", "proof", str(error))
        return
    if value < bound.value_ns:
        message = f"its multipliers prove {value}, not {bound.value_ns}"
        yield Violation("proof_value", "proof", message)
