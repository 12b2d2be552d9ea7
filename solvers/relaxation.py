"""A lower bound for every schedule without eviction caching, as a linear program (HiGHS).

Variables: each item's and start unit's resident share, the slots, and for each stage of each pass
its duration t and the copy work y that the channel is ahead by at its end. With C the stage's
computation and W its copy work (what is demanded and not resident):

    t >= C                                compute does one thing at a time
    t >= W(resident) + y - y before       so does the channel
    0 <= y <= slots' worth of copies      what is ahead lies in slots
    residents + slots <= capacity

Prefetches may know the demand and waste nothing, and copies have no order: so it holds for every
policy with fixed residents, in particular for every schedule of class ``plan``. It does not
hold for ``lru``, whose contents outlive their use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from solvers.outcome import Bound
from solvers.problem import Problem

__all__ = ["QuietHighs", "Relaxed", "relax"]

_MS = 1e6
"""The program counts in milliseconds and MiB, which suits the simplex method."""
_MIB = float(1 << 20)
_SAFETY = 1e-6
"""Share that is taken off the optimum: a simplex optimum is exact only to about 1e-9."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The relaxation's optimum.

    ``resident`` [stages, items] and ``start_resident`` [stages] are shares from 0 to 1;
    ``saved_ns_per_byte`` is what one more byte of memory would save (a shadow price).
    """

    bound: Bound
    resident: npt.NDArray[np.float64]
    start_resident: npt.NDArray[np.float64]
    slots: float
    saved_ns_per_byte: float


class _Rows:
    """A linear program's rows, collected as triplets."""

    def __init__(self) -> None:
        self.rows: list[npt.NDArray[np.int64]] = []
        self.columns: list[npt.NDArray[np.int64]] = []
        self.values: list[npt.NDArray[np.float64]] = []
        self.lower: list[float] = []

    def add(
        self, columns: npt.NDArray[np.int64], values: npt.NDArray[np.float64], lower: float
    ) -> None:
        """A row: values x columns >= lower."""
        self.rows.append(np.full(len(columns), len(self.lower), dtype=np.int64))
        self.columns.append(columns)
        self.values.append(values)
        self.lower.append(lower)


def relax(
    problem: Problem, *, exact_demand: bool = True, iteration_limit: int = 200_000
) -> Relaxed | None:
    """Solve the relaxation.

    Parameters
    ----------
    problem
        With at least one pass.
    exact_demand
        Use what the scenarios demand, for a bound on these scenarios; otherwise the control
        variate, for better residents (and then the value is no bound for these scenarios).
    iteration_limit
        Of the simplex method, a limit on work that does not depend on the clock.

    Returns
    -------
    Relaxed or None
        None where the program has no solution or the limit was reached.
    """
    scenarios = problem.scenarios
    passes, stages, width = scenarios.demand.shape
    demand = (scenarios.demand > 0).astype(np.float64) if exact_demand else problem.demanded
    copy_ms = problem.copy_ns / _MS
    held_mib = problem.item_bytes / _MIB
    start_ms = np.array([s.start.copy_ns if s.start else 0 for s in problem.stages]) / _MS
    start_mib = np.array([s.start.held_bytes if s.start else 0 for s in problem.stages]) / _MIB
    used = np.flatnonzero(demand.any(axis=0).ravel() & (copy_ms.ravel() > 0))
    column_of = np.full(stages * width, -1, dtype=np.int64)
    column_of[used] = np.arange(len(used))
    starts = len(used) + np.arange(stages)
    slots, start_room = len(used) + stages, len(used) + stages + 1
    durations = start_room + 1 + np.arange(passes * stages).reshape(passes, stages)
    ahead = durations + passes * stages
    columns = start_room + 1 + 2 * passes * stages

    lower = np.zeros(columns)
    upper = np.full(columns, highspy.kHighsInf)
    cost = np.zeros(columns)
    upper[: len(used) + stages] = 1.0
    if int(problem.item_bytes.sum()) > problem.capacity_bytes:
        lower[slots] = 1.0
    lower[durations] = scenarios.compute_ns / _MS
    cost[durations] = np.repeat(scenarios.weight[:, None], stages, axis=1)

    rows = _Rows()
    # -(residents + slots) >= -capacity
    rows.add(
        np.concatenate([np.arange(len(used)), starts, [slots, start_room]]),
        -np.concatenate(
            [held_mib.ravel()[used], start_mib, [problem.slot_bytes / _MIB, 1.0]],
        ),
        -problem.capacity_bytes / _MIB,
    )
    for at in np.flatnonzero(start_mib).tolist():
        # a start slot holds the largest start unit that streams
        room = float(start_mib[at])
        rows.add(np.array([start_room, int(starts[at])]), np.array([1.0, room]), room)
    per_slot = float(copy_ms.max(initial=0.0))
    per_start_mib = float(
        np.divide(start_ms, start_mib, out=np.zeros_like(start_ms), where=start_mib > 0).max()
    )
    before: int = -1
    restarts = frozenset(scenarios.run_starts)
    for index in range(passes):
        before = -1 if index in restarts else before
        for stage in range(stages):
            share = demand[index, stage] * copy_ms[stage]
            items = np.flatnonzero((share != 0) & (column_of[stage * width :][:width] >= 0))
            work = float(share[items].sum()) + start_ms[stage]
            t, y = int(durations[index, stage]), int(ahead[index, stage])
            row_columns = [column_of[stage * width + items], np.array([starts[stage], t, y])]
            row_values = [share[items], np.array([start_ms[stage], 1.0, -1.0])]
            if before >= 0:
                row_columns.append(np.array([before]))
                row_values.append(np.array([1.0]))
            rows.add(np.concatenate(row_columns), np.concatenate(row_values), work)
            rows.add(
                np.array([slots, start_room, y]), np.array([per_slot, per_start_mib, -1.0]), 0.0
            )
            before = y
    solution = _solve(rows, cost, lower, upper, iteration_limit)
    if solution is None:
        return None
    value, columns_at, memory_price = solution
    resident = np.zeros(stages * width)
    resident[used] = columns_at[: len(used)]
    return Relaxed(
        Bound(math.floor(value * _MS * (1.0 - _SAFETY)), "clairvoyant"),
        resident.reshape(stages, width),
        columns_at[starts],
        float(columns_at[slots]),
        memory_price * _MS / _MIB,
    )


class QuietHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS whose constructor prints nothing: the callbacks it would set up print a banner."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()


def _solve(
    rows: _Rows,
    cost: npt.NDArray[np.float64],
    lower: npt.NDArray[np.float64],
    upper: npt.NDArray[np.float64],
    iteration_limit: int,
) -> tuple[float, npt.NDArray[np.float64], float] | None:
    """Optimum, solution and the first row's dual; None where there is none."""
    row_index = np.concatenate(rows.rows)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(cost), len(rows.lower)
    program.col_cost_, program.col_lower_, program.col_upper_ = cost, lower, upper
    program.row_lower_ = np.array(rows.lower)
    program.row_upper_ = np.full(len(rows.lower), highspy.kHighsInf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(row_index, np.arange(len(rows.lower) + 1))
    program.a_matrix_.index_ = np.concatenate(rows.columns)
    program.a_matrix_.value_ = np.concatenate(rows.values)
    solver = QuietHighs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("solver", "simplex")
    solver.setOptionValue("simplex_iteration_limit", iteration_limit)
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    value = float(solver.getInfo().objective_function_value)
    return value, np.array(found.col_value), abs(float(found.row_dual[0]))
