"""A lower bound for every schedule without eviction caching, as linear programs (HiGHS).

The inequalities, and why they hold, stand in ``solvers.proof``; here they become the rows of a
linear program whose duals, rounded to integers, are the proof. The number of slots is an integer:
with one slot or two it is fixed, which costs memory or makes copies wait for work to end; with
more the program may choose a fraction. The bound is the least of these programs'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from solvers.outcome import Bound, Proof
from solvers.problem import Problem
from solvers.proof import proven_ns

__all__ = ["QuietHighs", "Relaxed", "relax"]

_MS = 1e6
"""The program counts in milliseconds and MiB, which suits the simplex method."""
_MIB = float(1 << 20)
_SCALE = 1 << 50
"""Multipliers are rounded to integers in units of 1 / this."""
_FIXED_SLOTS = 2
"""Up to this many slots, each number has a program of its own."""

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The relaxation's optimum.

    ``resident`` [stages, items] and ``start_resident`` [stages] are shares from 0 to 1, of the
    program with the least optimum; ``saved_ns_per_byte`` is what one more byte of memory would save
    (a shadow price).
    """

    bound: Bound
    resident: npt.NDArray[np.float64]
    start_resident: npt.NDArray[np.float64]
    slots: float
    saved_ns_per_byte: float


class _Program:
    """A linear program, put together in blocks: columns from ``lower`` to ``upper``, and rows
    ``sum of values x columns >= least``."""

    def __init__(self) -> None:
        self.columns = self.rows = 0
        self._ends: list[tuple[Floats, Floats, Floats]] = []
        self._least: list[Floats] = []
        self._terms: list[tuple[Indices, Indices, Floats]] = []

    def column(
        self,
        shape: tuple[int, ...],
        lower: float | Floats = 0.0,
        upper: float | Floats = highspy.kHighsInf,
        cost: float | Floats = 0.0,
    ) -> Indices:
        """A block of columns; returns their numbers."""
        count = math.prod(shape)
        numbers = np.arange(self.columns, self.columns + count).reshape(shape)
        self.columns += count
        low, high, price = (
            np.broadcast_to(np.asarray(each, dtype=np.float64), shape).ravel()
            for each in (lower, upper, cost)
        )
        self._ends.append((low, high, price))
        return numbers

    def row(self, shape: tuple[int, ...], least: float | Floats) -> Indices:
        """A block of rows; returns their numbers."""
        count = math.prod(shape)
        numbers = np.arange(self.rows, self.rows + count).reshape(shape)
        self.rows += count
        self._least.append(np.broadcast_to(np.asarray(least, dtype=np.float64), shape).ravel())
        return numbers

    def put(self, rows: Indices, columns: Indices, values: float | Floats) -> None:
        """Coefficients, broadcast against each other; zeros are left out."""
        at, of, value = np.broadcast_arrays(rows, columns, np.asarray(values, dtype=np.float64))
        kept = value != 0
        self._terms.append((at[kept], of[kept], value[kept]))

    def solve(self, iteration_limit: int) -> tuple[float, Floats, Floats] | None:
        """Optimum, columns and duals; None where there is none or the limit was reached."""
        row, column, value = (np.concatenate(part) for part in zip(*self._terms, strict=True))
        order = np.argsort(row, kind="stable")
        lower, upper, cost = (np.concatenate(part) for part in zip(*self._ends, strict=True))
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.columns, self.rows
        program.col_cost_, program.col_lower_, program.col_upper_ = cost, lower, upper
        program.row_lower_ = np.concatenate(self._least)
        program.row_upper_ = np.full(self.rows, highspy.kHighsInf)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.searchsorted(row[order], np.arange(self.rows + 1))
        program.a_matrix_.index_, program.a_matrix_.value_ = column[order], value[order]
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
        value_found = float(solver.getInfo().objective_function_value)
        return value_found, np.array(found.col_value), np.array(found.row_dual)


class QuietHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS whose constructor prints nothing: the callbacks it would set up print a banner."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()


@dataclass(frozen=True, slots=True)
class _Solved:
    """One program's optimum."""

    value: float
    proof: Proof
    resident: Floats
    start_resident: Floats
    slots: float
    memory_price: float


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
    most = problem.capacity_bytes // max(problem.slot_bytes, 1)
    streams = int(problem.item_bytes.sum()) > problem.capacity_bytes
    if streams and most < 1:
        return None
    first = _solve(problem, int(streams), None, exact_demand, iteration_limit)
    if first is None:
        return None
    solved = [first]
    if exact_demand and streams and first.slots < _FIXED_SLOTS + 1:
        cases: list[tuple[int, int | None]] = [(k, k) for k in range(1, _FIXED_SLOTS + 1)]
        cases.append((_FIXED_SLOTS + 1, None))
        for least, last in cases:
            if least <= most:
                one = _solve(problem, least, last, exact_demand, iteration_limit)
                if one is None:
                    break
                solved.append(one)
        else:
            # a program without a solution stands for slots that leave no room for the rest
            solved = solved[1:]
    best = min(solved, key=lambda one: one.value)
    proofs = tuple(one.proof for one in solved)
    bound = Bound(math.floor(best.value * _MS), "clairvoyant")
    if exact_demand:
        values = [proven_ns(problem, proof) for proof in proofs]
        if any(value is None for value in values):
            return None
        bound = Bound(min(value for value in values if value is not None), "clairvoyant", proofs)
    return Relaxed(
        bound,
        best.resident,
        best.start_resident,
        best.slots,
        best.memory_price * _MS / _MIB,
    )


def _solve(
    problem: Problem,
    least_slots: int,
    most_slots: int | None,
    exact_demand: bool,
    iteration_limit: int,
) -> _Solved | None:
    """One program: slots from ``least_slots`` on, or as many as that and no more."""
    scenarios = problem.scenarios
    passes, stages, width = shape = scenarios.demand.shape
    fixed = least_slots == most_slots
    demand = (scenarios.demand > 0).astype(np.float64) if exact_demand else problem.demanded
    copy, work = problem.copy_ns / _MS, scenarios.work_ns / _MS
    start, start_held = problem.start_ns / _MS, problem.start_bytes / _MIB
    longest = float(copy.max(initial=0.0))
    pace = float(
        np.divide(start, start_held, out=np.zeros_like(start), where=start_held > 0).max(initial=0)
    )

    program = _Program()
    resident = program.column(
        (stages, width), 0.0, (demand.any(axis=0) & (copy > 0)).astype(np.float64)
    )
    kept = program.column((stages,), 0.0, (start_held > 0).astype(np.float64))
    slots = program.column((1,), float(least_slots), float(most_slots or highspy.kHighsInf))
    start_room = program.column((1,))
    weight = scenarios.weight[:, None].astype(np.float64)
    lasts = program.column((passes, stages), scenarios.compute_ns / _MS, cost=weight)
    ahead = program.column((passes, stages))
    before = np.roll(ahead.ravel(), 1).reshape(passes, stages)
    follows = np.ones((passes, stages), dtype=bool)
    follows[list(scenarios.run_starts), 0] = False

    memory = program.row((1,), -problem.capacity_bytes / _MIB)
    program.put(memory, resident.ravel(), -problem.item_bytes.ravel() / _MIB)
    program.put(memory, kept, -start_held)
    program.put(memory, slots, -problem.slot_bytes / _MIB)
    program.put(memory, start_room, -1.0)
    room = program.row((stages,), start_held)
    program.put(room, start_room, (start_held > 0).astype(np.float64))
    program.put(room, kept, start_held)
    busy = program.row((passes, stages), (demand * copy).sum(axis=2) + start)
    program.put(busy, lasts, 1.0)
    program.put(busy, ahead, -1.0)
    program.put(busy[follows], before[follows], 1.0)
    program.put(busy, kept[None, :], start[None, :])
    program.put(busy[:, :, None], np.broadcast_to(resident, shape), demand * copy)
    room_ahead = program.row((passes, stages), 0.0)
    program.put(room_ahead, slots, longest)
    program.put(room_ahead, start_room, pace)
    program.put(room_ahead, ahead, -1.0)
    holding = np.zeros((0, 0), dtype=np.int64)
    if fixed:
        items_ahead = program.column((passes, stages), 0.0, longest * least_slots)
        items_before = np.roll(items_ahead.ravel(), 1).reshape(passes, stages)
        time_held = demand * copy + work
        holding = program.row((passes, stages), time_held.sum(axis=2))
        program.put(holding, lasts, float(least_slots))
        program.put(holding, items_ahead, -1.0)
        program.put(holding[follows], items_before[follows], 1.0)
        program.put(holding[:, :, None], np.broadcast_to(resident, shape), time_held)
    solution = program.solve(iteration_limit)
    if solution is None:
        return None
    value, columns, duals = solution
    # the ahead rows' unit in the proof: the copy time of a start unit for each of its bytes
    per = 1
    ratios = start / np.where(start_held > 0, start_held, np.inf)
    if ratios.size and ratios.max() > 0:
        unit = problem.stages[int(ratios.argmax())].start
        per = unit.held_bytes if unit is not None else 1
    zero = np.zeros((passes, stages))
    proof = Proof(
        least_slots,
        most_slots,
        _SCALE,
        int(_integers(duals[memory] * (_MS / _MIB))[0]),
        _integers(duals[room] * (_MS / _MIB)),
        *_fitting(
            problem,
            _integers(duals[busy]),
            _integers(duals[holding] if fixed else zero),
            _integers(duals[room_ahead] / per),
            least_slots,
        ),
    )
    return _Solved(
        value,
        proof,
        columns[resident],
        columns[kept],
        float(columns[slots][0]),
        abs(float(duals[memory][0])),
    )


def _integers(duals: Floats) -> npt.NDArray[np.object_]:
    """Multipliers as Python integers, rounded down, none negative."""
    found = [int(max(float(dual), 0.0) * _SCALE) for dual in duals.ravel()]
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(duals.shape)


def _fitting(
    problem: Problem,
    busy: npt.NDArray[np.object_],
    held: npt.NDArray[np.object_],
    ahead: npt.NDArray[np.object_],
    slots: int,
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Busy, ahead and held multipliers, cut where the duals of a stage's duration sum to more than
    its weight by a rounding error."""
    weight = problem.scenarios.weight.astype(object)[:, None] * _SCALE
    held = np.minimum(held, weight // max(slots, 1))
    busy = np.minimum(busy, weight - held * slots)
    return busy, ahead, held
