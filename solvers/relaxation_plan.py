"""The rows of the class ``plan`` in the relaxation's program: see ``solvers.proof_plan``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.outcome import Integers, PlanProof
from solvers.problem import Problem
from solvers.program import MS, Floats, Indices, Program
from solvers.proof_plan import PlanTimes
from solvers.relaxation_host import HostRows

__all__ = ["Columns", "PlanRows"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns that the rows share with the rest of the program: residents [stages, items], start
    units kept [stages], slots, room of the start slots, durations [passes, stages]; ``follows``
    [passes, stages] is False where a run begins; ``pace`` is the most copy time (ms) for a MiB of
    start slot."""

    resident: Indices
    kept: Indices
    slots: Indices
    room: Indices
    lasts: Indices
    follows: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    pace: float


class PlanRows:
    """Puts the rows into a program, and makes multipliers of their duals.

    Parameters
    ----------
    problem, program
        Whose rows, and where they go.
    has
        What is in the program already.
    host
        Rows of a host; None where none works.
    serial
        There is one slot, and no host.
    """

    def __init__(
        self,
        problem: Problem,
        program: Program,
        has: Columns,
        host: HostRows | None = None,
        *,
        serial: bool = False,
    ) -> None:
        times = PlanTimes(problem)
        passes, stages, width = shape = problem.scenarios.demand.shape
        active = problem.scenarios.demand > 0
        copy, start = problem.copy_ns / MS, problem.start_ns / MS
        copies, gain = active * copy, times.gain / MS
        longest = float(copy.max(initial=0.0))
        useful = (active.any(axis=0) & (copy > 0)).astype(np.float64)
        part = program.column((stages, width), 0.0, useful)
        beyond = program.column((stages,))
        waits = program.column((stages,), 0.0, start)
        excess = program.column((passes, stages))
        before = np.roll(excess.ravel(), 1).reshape(passes, stages)
        parts, residents = (np.broadcast_to(one, shape) for one in (part, has.resident))

        self._share = program.row((stages, width), -1.0)
        program.put(self._share, has.resident, -1.0)
        program.put(self._share, part, -1.0)
        fixed = times.fixed / MS
        after, end = copies, times.least_end / MS
        if serial:
            after, end = after + problem.scenarios.work_ns / MS, 0.0 * end
        self._late = program.row((passes, stages), fixed + end + after.sum(2))
        program.put(self._late[:, :, None], residents, after)
        self._whole = program.row((passes, stages), fixed + times.work / MS + gain.sum(2))
        program.put(self._whole[:, :, None], residents, gain)
        if host is not None:
            host.put(self._late, copies)
            host.put(self._whole, gain + problem.scenarios.work_ns / MS)
        for rows in (self._late, self._whole):
            program.put(rows, has.lasts, 1.0)
            program.put(rows[:, :, None], parts, copies)
            program.put(rows, excess, -1.0)
            program.put(rows, waits, -1.0)
            program.put(rows, has.kept[None, :], problem.start_lead_ns / MS)
            program.put(rows[has.follows], before[has.follows], 1.0)
        self._chain = program.row((stages,), start - times.most_before / MS)
        if stages > 1:  # with one stage it is its own predecessor
            program.put(self._chain, np.roll(beyond, 1), 1.0)
            program.put(self._chain, beyond, -1.0)
        program.put(self._chain, waits, 1.0)
        program.put(self._chain, has.kept, start - times.most_longer / MS)
        program.put(self._chain[:, None], part, -copy)
        self._wait = program.row((stages,), -start)
        program.put(self._wait, waits, -1.0)
        program.put(self._wait, has.kept, -start)
        self._sets = program.row((stages,), 0.0)
        program.put(self._sets[:, None], part, -copy)
        program.put(self._sets, beyond, -1.0)
        self._carry = program.row((passes, stages), 0.0)
        program.put(self._carry, excess, -1.0)
        for rows in (self._sets, self._carry):
            program.put(rows, has.slots, longest)
            program.put(rows, has.room, has.pace)

    def proof(self, duals: Floats, integers: Callable[[Floats], Integers], per: int) -> PlanProof:
        """Multipliers; ``per`` as in ``solvers.proof_plan``."""
        return PlanProof(
            # the row's unit in the proof is 1, its dual's ms
            share=integers(duals[self._share] * MS),
            late=integers(duals[self._late]),
            whole=integers(duals[self._whole]),
            carry=integers(duals[self._carry] / per),
            chain=integers(duals[self._chain]),
            wait=integers(duals[self._wait]),
            sets=integers(duals[self._sets] / per),
        )
