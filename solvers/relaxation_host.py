"""The rows of a host that works on items in the relaxation: see ``solvers.proof_host``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solvers.outcome import HostProof, Integers
from solvers.problem import Problem
from solvers.program import MS, Floats, Indices, Program
from solvers.proof_host import able, least_ns

__all__ = ["HostRows"]


class HostRows:
    """Puts columns for what the host takes, and their rows, into a program, and makes multipliers
    of the duals.

    Parameters
    ----------
    problem, program
        With a host; where its rows go.
    resident, lasts
        Columns of residents [stages, items] and of durations [passes, stages].
    """

    def __init__(
        self, problem: Problem, program: Program, resident: Indices, lasts: Indices
    ) -> None:
        self._program = program
        self._places = passes, stages, items = np.nonzero(able(problem))
        self.count = len(passes)
        self._taken = program.column((self.count,), 0.0, 1.0)
        left = program.row((self.count,), -1.0)
        program.put(left, self._taken, -1.0)
        program.put(left, resident[stages, items], -1.0)
        scenarios = problem.scenarios
        host = np.zeros(scenarios.demand.shape)
        if scenarios.host_work_ns is not None:
            host = scenarios.host_work_ns / MS
        shape = lasts.shape
        self._work = program.row(shape, scenarios.compute_ns / MS)
        self._host = program.row(shape, least_ns(problem) / MS)
        for rows, values in ((self._work, scenarios.work_ns / MS), (self._host, -host)):
            program.put(rows, lasts, 1.0)
            self.put(rows, values)

    def put(self, rows: Indices, values: Floats) -> None:
        """What all of an item's work on the host adds to rows [passes, stages]: values [passes,
        stages, items]."""
        passes, stages, _ = self._places
        self._program.put(rows[passes, stages], self._taken, values[self._places])

    def proof(self, duals: Floats, integers: Callable[[Floats], Integers]) -> HostProof:
        """Multipliers."""
        return HostProof(integers(duals[self._work]), integers(duals[self._host]))
