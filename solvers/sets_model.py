"""The sets model, as rows of integers, for every exact back end (design: level b).

For each unit a binary *resident*, for each item a binary *prefetch*; and for each stage of each
pass its duration t and the copy work y that the channel is ahead by at its end. Slots are the
hint's: a schedule's worth moves with them in steps that no sum of copies sees, so the search varies
them. With C all computation of a stage, L that up to the end of its lead, and sums over items,
weighted with how often they are demanded (control variate):

    t >= C
    t >= copies of (demanded or prefetched, not resident) + y - y before
    t >= L + copies of (demanded, neither resident nor prefetched)
    0 <= y <= slots' worth of copies
    residents + slots <= capacity

Copies may be paused and have no order. Each prefetch is charged in full, where the runtime drops
what the router did not choose; so the model's optimum is a good choice of sets, not a proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from solvers.layout import START, settled
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem

__all__ = ["IntegerModel", "Row", "SetsModel"]

_UNIT_NS = 1_000
"""Durations in the model are in microseconds."""
_UNIT_BYTES = 4_096
"""Memory in the model is in blocks; sizes round up, the capacity down."""


@dataclass(frozen=True, slots=True)
class Row:
    """``sum of coefficients x columns >= lower``."""

    columns: tuple[int, ...]
    coefficients: tuple[int, ...]
    lower: int


class IntegerModel(Protocol):
    """What the exact back ends solve.

    Columns 0 to ``binaries`` - 1 are binary, the others integers from 0 to ``upper``; ``rows`` are
    the constraints, ``cost`` the minimised sum (column -> coefficient).
    """

    upper: list[int]
    binaries: int
    rows: list[Row]
    cost: dict[int, int]

    def hinted(self) -> dict[int, int]:
        """Values of the binary columns to start from."""
        ...


@dataclass
class SetsModel:
    """An ``IntegerModel``.

    Attributes
    ----------
    resident, prefetch
        (stage, item or ``START``) -> column.
    terms
        Coefficients in all rows: how large the model is.
    """

    problem: Problem
    hint: Schedule
    resident: dict[tuple[int, int], int] = field(default_factory=dict)
    prefetch: dict[tuple[int, int], int] = field(default_factory=dict)
    upper: list[int] = field(default_factory=list)
    binaries: int = 0
    rows: list[Row] = field(default_factory=list)
    cost: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._variables()
        self._memory()
        self._clocks()

    @property
    def terms(self) -> int:
        """See the class."""
        return sum(len(row.columns) for row in self.rows)

    def _column(self, upper: int) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def _variables(self) -> None:
        for index, stage in enumerate(self.problem.stages):
            if stage.start is not None:
                self.resident[index, START] = self._column(1)
            for item in range(len(stage.items)):
                self.resident[index, item] = self._column(1)
                if not stage.sequential:
                    self.prefetch[index, item] = self._column(1)
        self.binaries = len(self.upper)

    def _memory(self) -> None:
        problem, hint = self.problem, self.hint
        largest = int(problem.start_bytes.max(initial=0))
        room = problem.capacity_bytes - hint.slots * problem.slot_bytes - hint.start_slots * largest
        columns, sizes = [], []
        for (index, item), column in self.resident.items():
            stage = problem.stages[index]
            unit = stage.start if item == START else stage.items[item]
            if unit is None:
                continue
            columns.append(column)
            sizes.append(-(-unit.held_bytes // _UNIT_BYTES))
            if not (hint.start_slots if item == START else hint.slots):
                self.rows.append(Row((column,), (1,), 1))
        self.rows.append(
            Row(tuple(columns), tuple(-size for size in sizes), -(max(room, 0) // _UNIT_BYTES))
        )
        for key, column in self.prefetch.items():
            self.rows.append(Row((column, self.resident[key]), (-1, -1), -1))
        for index, stage in enumerate(problem.stages):
            if stage.sequential:
                for item in range(1, len(stage.items)):
                    pair = (self.resident[index, item - 1], self.resident[index, item])
                    self.rows.append(Row(pair, (1, -1), 0))

    def _clocks(self) -> None:
        problem, hint, scenarios = self.problem, self.hint, self.problem.scenarios
        slot_ns = int(problem.copy_ns.max(initial=0))
        start_ns = int(problem.pass_start_ns.max(initial=0))
        ahead = (hint.slots * slot_ns + hint.start_slots * start_ns) // _UNIT_NS + 1
        longest = int((scenarios.compute_ns + problem.start_lead_ns).max(initial=0))
        longest += int(problem.copy_ns.sum())
        longest = (longest + start_ns * len(problem.stages)) // _UNIT_NS + ahead + 2
        demanded = np.clip(problem.demanded, 0.0, 1.0)
        restarts = frozenset(scenarios.run_starts)
        before: int | None = None
        for index in range(scenarios.passes):
            before = None if index in restarts else before
            for at, stage in enumerate(problem.stages):
                t, y = self._column(longest), self._column(ahead)
                self.cost[t] = int(scenarios.weight[index])
                self.rows.append(Row((t,), (1,), int(scenarios.compute_ns[index, at]) // _UNIT_NS))
                longer = int(problem.start_lead_ns[index, at]) // _UNIT_NS
                if longer:
                    least = int(scenarios.compute_ns[index, at]) // _UNIT_NS + longer
                    self._add({t: 1, self.resident[at, START]: longer}, least)
                busy: dict[int, int] = {t: 1, y: -1}
                late: dict[int, int] = {t: 1}
                if before is not None:
                    busy[before] = 1
                total = late_total = 0
                for item, unit in enumerate(stage.items):
                    copy = unit.copy_ns // _UNIT_NS
                    part = round(copy * float(demanded[index, at, item]))
                    total += part
                    busy[self.resident[at, item]] = part
                    if not stage.sequential:
                        late_total += part
                        busy[self.prefetch[at, item]] = part - copy
                        late[self.resident[at, item]] = part
                        late[self.prefetch[at, item]] = part
                if stage.start is not None:
                    copy = int(problem.pass_start_ns[index, at]) // _UNIT_NS
                    total += copy
                    busy[self.resident[at, START]] = copy
                self._add(busy, total)
                if late_total:
                    lead = int(scenarios.prologue_ns[index, at] + scenarios.lead_ns[index, at])
                    self._add(late, lead // _UNIT_NS + late_total)
                before = y

    def _add(self, coefficients: dict[int, int], lower: int) -> None:
        kept = {column: value for column, value in coefficients.items() if value}
        self.rows.append(Row(tuple(kept), tuple(kept.values()), lower))

    def hinted(self) -> dict[int, int]:
        """The hint's sets, as values of the binary columns."""
        values = {}
        for (index, item), column in self.resident.items():
            choice = self.hint.stages[index]
            kept = choice.start_resident if item == START else item in choice.resident
            values[column] = int(kept)
        for (index, item), column in self.prefetch.items():
            values[column] = int(item in self.hint.stages[index].prefetch)
        return values

    def schedules(self, values: dict[int, int]) -> list[Schedule]:
        """Values of the binary columns as schedules: with their prefetches, and the hint's."""
        weight = self.problem.scenarios.weight
        share = np.tensordot(weight, self.problem.demanded, axes=1).tolist()
        found = []
        for own in (True, False):
            choices = []
            for index, stage in enumerate(self.problem.stages):
                items = range(len(stage.items))
                kept = tuple(i for i in items if values[self.resident[index, i]])
                if stage.sequential:
                    ahead = tuple(i for i in items if i not in kept)
                elif own:
                    chosen = [i for i in items if values[self.prefetch[index, i]]]
                    ahead = tuple(i for _, i in sorted((-share[index][i], i) for i in chosen))
                else:
                    ahead = tuple(i for i in self.hint.stages[index].prefetch if i not in kept)
                first = stage.start is not None and bool(values[self.resident[index, START]])
                choices.append(StageChoice(first, kept, ahead))
            hint = self.hint
            found.append(
                settled(
                    self.problem,
                    tuple(choices),
                    hint.slots,
                    hint.start_slots,
                    hint.reserve,
                    hold=hint.hold,
                )
            )
        return found
