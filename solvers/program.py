"""Linear programs, put together in blocks and solved by HiGHS."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable

import highspy
import numpy as np
import numpy.typing as npt

__all__ = ["MIB", "MS", "Floats", "Indices", "Program", "QuietHighs"]

MS = 1e6
"""Programs count in milliseconds and MiB, which suits the simplex method."""
MIB = float(1 << 20)

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_Answer = tuple[float, Floats, Floats]

_KEPT = 8
_answers: OrderedDict[bytes, _Answer] = OrderedDict()
"""Answers to the last few programs, by all of their numbers: a checker asks what the maker of a
plan has just asked, and nobody has to believe an answer (``solvers.proof``)."""


class Program:
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

    def solve(
        self, iteration_limit: int, *, interior: bool = False, seconds: float = math.inf
    ) -> _Answer | None:
        """Optimum, columns and duals; None where there is none or a limit was reached.

        By the simplex method, or by an interior point, which is faster for large programs and
        less exact.
        """
        row, column, value = (np.concatenate(part) for part in zip(*self._terms, strict=True))
        order = np.argsort(row, kind="stable")
        lower, upper, cost = (np.concatenate(part) for part in zip(*self._ends, strict=True))
        least = np.concatenate(self._least)
        start = np.searchsorted(row[order], np.arange(self.rows + 1))
        index, value = column[order], value[order]
        arrays = lower, upper, cost, least, start, index, value
        key = _fingerprint(arrays, f"{iteration_limit} {interior}")
        kept = _answers.get(key)
        if kept is not None or seconds <= 0:
            return kept
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.columns, self.rows
        program.col_cost_, program.col_lower_, program.col_upper_ = cost, lower, upper
        program.row_lower_ = least
        program.row_upper_ = np.full(self.rows, highspy.kHighsInf)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = start
        program.a_matrix_.index_, program.a_matrix_.value_ = index, value
        solver = QuietHighs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("run_crossover", "off")
        solver.setOptionValue("simplex_iteration_limit", iteration_limit)
        solver.setOptionValue("time_limit", seconds)
        solver.passModel(program)
        for method in ("ipm", "simplex") if interior else ("simplex",):
            solver.setOptionValue("solver", method)
            solver.run()
            if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
                found = solver.getSolution()
                value_found = float(solver.getInfo().objective_function_value)
                answer = value_found, np.array(found.col_value), np.array(found.row_dual)
                return _keep(key, answer)
        return None


def _fingerprint(arrays: Iterable[npt.NDArray[np.generic]], how: str) -> bytes:
    digest = hashlib.blake2b(how.encode())
    for array in arrays:
        digest.update(f" {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.digest()


def _keep(key: bytes, answer: _Answer) -> _Answer:
    for array in answer[1:]:
        array.flags.writeable = False
    _answers[key] = answer
    while len(_answers) > _KEPT:
        _answers.popitem(last=False)
    return answer


class QuietHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS whose constructor prints nothing: the callbacks it would set up print a banner."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()
