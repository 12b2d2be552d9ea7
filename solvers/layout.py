"""Puts residents and slots into memory: the account that every back end builds schedules with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solvers.outcome import Eviction, HostShare, Outcome, Schedule, StageChoice, Stop
from solvers.problem import Problem, Stage

__all__ = [
    "HOLDS",
    "START",
    "Layout",
    "infeasible",
    "settled",
    "smallest_capacity",
    "whole_in_memory",
]

START = -1
"""Stands for a stage's start unit where items are listed."""
HOLDS = (1, 0, 2)
"""From how many stages on copies may be held back, the most promising first: with 1, what the next
stage's lead waits for is not held."""


def smallest_capacity(stages: Sequence[Stage], slot_bytes: int) -> int:
    """The least capacity with which the problem has a schedule.

    One slot of each kind: a start slot holds the largest start unit, and making the largest
    resident instead saves nothing. Items fit without a slot where all of them together are smaller.
    """
    starts = [stage.start.held_bytes for stage in stages if stage.start is not None]
    items = [item.held_bytes for stage in stages for item in stage.items]
    return max(starts, default=0) + min(sum(items), slot_bytes if items else 0)


def infeasible(problem: Problem) -> Outcome | None:
    """What a back end returns where no schedule fits; None where one does."""
    smallest = smallest_capacity(problem.stages, problem.slot_bytes)
    if problem.capacity_bytes < smallest:
        return Outcome(Stop.INFEASIBLE, None, None, smallest)
    return None


def whole_in_memory(problem: Problem) -> Schedule | None:
    """Everything resident, where it fits."""
    need = sum(
        (stage.start.held_bytes if stage.start else 0)
        + sum(item.held_bytes for item in stage.items)
        for stage in problem.stages
    )
    if need > problem.capacity_bytes:
        return None
    return Schedule(
        tuple(
            StageChoice(stage.start is not None, tuple(range(len(stage.items))), ())
            for stage in problem.stages
        ),
        slots=0,
        start_slots=0,
        reserve=0,
    )


@dataclass
class Layout:
    """Memory being filled. Slots are set aside first; residents are added while they fit.

    Parameters
    ----------
    problem
        Whose capacity is filled.
    slots, start_slots
        Slots for items, and for start units (0: all units of the kind become residents).
    """

    problem: Problem
    slots: int
    start_slots: int
    free_bytes: int = 0
    starts: list[bool] = field(default_factory=list)
    residents: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        stages = self.problem.stages
        self.starts = [False] * len(stages)
        self.residents = [set() for _ in stages]
        held = self.problem.start_bytes.tolist()
        self.free_bytes = self.problem.capacity_bytes - self.slots * self.problem.slot_bytes
        self.free_bytes -= self.start_slots * max(held, default=0)
        if not self.start_slots:
            self.free_bytes -= sum(held)
            self.starts = [stage.start is not None for stage in stages]
        if not self.slots:
            self.free_bytes -= sum(item.held_bytes for stage in stages for item in stage.items)
            self.residents = [set(range(len(stage.items))) for stage in stages]

    @property
    def fits(self) -> bool:
        """Whether slots (and start units, if all are resident) fit at all."""
        return self.free_bytes >= 0

    def add(self, stage: int, item: int) -> bool:
        """Make an item (or ``START``) resident if it fits and may be; returns whether it is."""
        one = self.problem.stages[stage]
        if item == START:
            if one.start is None or self.starts[stage] or one.start.held_bytes > self.free_bytes:
                return self.starts[stage]
            self.starts[stage] = True
            self.free_bytes -= one.start.held_bytes
            return True
        kept = self.residents[stage]
        if item in kept:
            return True
        if one.sequential and item != len(kept):
            return False
        size = one.items[item].held_bytes
        if size > self.free_bytes:
            return False
        kept.add(item)
        self.free_bytes -= size
        return True

    def fill(self, order: Iterable[tuple[int, int]]) -> None:
        """Add all of these that fit, in this order."""
        for stage, item in order:
            self.add(stage, item)

    def schedule(
        self,
        prefetch: Sequence[Sequence[int]],
        reserve: int,
        eviction: Eviction = "none",
    ) -> Schedule:
        """The finished schedule; residents are left out of ``prefetch`` ([stages] item lists).

        ``reserve`` is raised to 1 where a copy may be demanded, and cut to the slots.
        """
        choices = []
        for index, stage in enumerate(self.problem.stages):
            kept = self.residents[index]
            wanted = range(len(stage.items)) if stage.sequential else prefetch[index]
            ahead = tuple(item for item in wanted if item not in kept)
            choices.append(StageChoice(self.starts[index], tuple(sorted(kept)), ahead))
        return settled(
            self.problem, tuple(choices), self.slots, self.start_slots, reserve, eviction
        )


def settled(
    problem: Problem,
    stages: tuple[StageChoice, ...],
    slots: int,
    start_slots: int,
    reserve: int,
    eviction: Eviction = "none",
    host: HostShare | None = None,
    hold: int | None = None,
) -> Schedule:
    """A schedule with these stages, and slots, reserve, host and hold as they must be with them:
    none where nothing of the kind streams, and a reserve where a copy may be demanded."""
    pairs = list(zip(stages, problem.stages, strict=True))
    streams = any(len(choice.resident) < len(stage.items) for choice, stage in pairs)
    starts = any(stage.start and not choice.start_resident for choice, stage in pairs)
    on_demand = eviction != "none" or any(
        len(choice.resident) + len(choice.prefetch) < len(stage.items) for choice, stage in pairs
    )
    kept = slots if streams else 0
    return Schedule(
        stages,
        slots=kept,
        start_slots=start_slots if starts else 0,
        reserve=min(max(reserve, int(on_demand)), kept),
        eviction=eviction,
        host=host if kept else None,
        hold=hold if starts else None,
    )
