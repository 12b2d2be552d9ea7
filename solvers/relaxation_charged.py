"""The rows that charge what is copied ahead in vain: see ``solvers.proof_charged``.

A column for what is copied ahead of each item in each pass would be too many: there are columns of
those that look worth it, and of more where the duals say so. That no more is copied ahead of an
item than streams of it is a row for each of them; where the item is demanded by none and no program
has made any of it resident, that is the column's end, and the proof, which knows better, only
gains.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from solvers.outcome import ChargedProof, Integers, Proof
from solvers.price import PARTS
from solvers.problem import Problem
from solvers.program import MS, Floats, Indices, Program
from solvers.proof_charged import extents, gains
from solvers.proof_plan import PlanTimes

__all__ = ["Ahead", "ChargedRows"]

Bools = npt.NDArray[np.bool_]

_AT_ONCE = 30_000
"""Columns added at once, at most."""
_LIKELY = 4
"""Items of each stage that have columns in all passes from the start."""
_SMALL = 1e-4
"""What all columns not there take off less of the bound than this share is left."""
_HIDDEN = 0.3
"""Share of all time that ``whole`` accounts for, from which on an interior point is worth it."""


def _first_columns(problem: Problem, resident: Floats) -> Bools:
    """[passes, stages, items]: those demanded that are not resident, and of each stage the few most
    likely ones of these in all passes."""
    asked, real = problem.scenarios.demand > 0, problem.copy_ns > 0
    streams = real & (resident < 1.0 - 1e-6)
    worth = np.where(streams, problem.demanded.mean(axis=0), -np.inf)
    likely = np.zeros(streams.shape, dtype=bool)
    ranked = np.argsort(-worth, axis=1, kind="stable")[:, :_LIKELY]
    np.put_along_axis(likely, ranked, True, axis=1)
    found: Bools = (likely | asked) & streams
    return found


def _more_columns(problem: Problem, proof: Proof, columns: Bools, value_ms: float) -> Bools | None:
    """Those without that take most off the bound; None where all together take next to nothing.

    What an item in all passes together takes off counts as far as it is not made up for by memory
    for it: c is what a resident costs by the rest of the proof.
    """
    charged, scenarios = proof.charged, problem.scenarios
    if charged is None:
        return None
    rows = (proof.busy, charged.late, charged.whole, charged.fit, proof.held)
    busy, late, whole, fit, held = (
        (array.astype(np.float64) / proof.scale)[:, :, None] for array in rows
    )
    lost = np.maximum(np.max(gains(problem, [busy, late, whole, fit]), axis=0), 0.0)
    saved = (busy + late + held) * problem.copy_ns + held * scenarios.work_ns
    saved = (scenarios.demand > 0) * saved + whole * PlanTimes(problem).gain
    cost = problem.item_bytes * (proof.memory / proof.scale) - saved.sum(axis=0)
    every = lost.sum(axis=0)
    share = np.clip(cost - problem.correction + every, 0.0, every) / np.maximum(every, 1e-9)
    lost = np.where(columns, 0.0, lost * share)
    if lost.sum() <= _SMALL * abs(value_ms) * MS:
        return None
    least = 0.0
    if np.count_nonzero(lost) > _AT_ONCE:
        least = float(np.partition(lost.ravel(), -_AT_ONCE)[-_AT_ONCE])
    found: Bools = lost > least
    return found


class Ahead:
    """What has columns so far: nothing, to begin with.

    Attributes
    ----------
    columns
        [passes, stages, items]: which copies ahead.
    contested
        [stages, items]: which items a program has made resident, wholly or in part.
    interior
        Whether programs are solved by an interior point. The simplex method takes a fifth of its
        time where copies are waited for; where they hide behind work there are many optima, and
        what it says of columns that are not there is less to the point.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._weight = int(problem.scenarios.weight.sum()) * len(problem.stages)
        self.columns: Bools = np.zeros(problem.scenarios.demand.shape, dtype=bool)
        self.contested: Bools = np.zeros(problem.copy_ns.shape, dtype=bool)
        self.interior = True

    def widen(self, proof: Proof, resident: Floats, value_ms: float) -> bool:
        """More, after a program with the columns so far; False where that gains next to nothing."""
        contested = self.contested | (resident > 1e-6)
        more: Bools | None = _first_columns(self._problem, resident)
        if proof.charged is not None and not self.columns.any():
            hidden = int(proof.charged.whole.sum()) / proof.scale
            self.interior = hidden > _HIDDEN * self._weight
        if self.columns.any():
            more = _more_columns(self._problem, proof, self.columns, value_ms)
        if more is None or not (more & ~self.columns).any():
            return False
        self.columns, self.contested = self.columns | more, contested
        return True


class ChargedRows:
    """Puts columns and rows into a program, and makes multipliers of the duals.

    Parameters
    ----------
    problem, program
        Whose rows, and where they go.
    resident, kept, slots, lasts, ahead
        Columns that are there: residents [stages, items], start units kept [stages], slots,
        durations and what is copied ahead [passes, stages].
    follows
        [passes, stages]: False where a run begins.
    busy
        Rows of the channel.
    copied
        Which copies ahead have columns.
    serial
        There is one slot.
    """

    def __init__(
        self,
        problem: Problem,
        program: Program,
        resident: Indices,
        kept: Indices,
        slots: Indices,
        lasts: Indices,
        ahead: Indices,
        follows: Bools,
        busy: Indices,
        copied: Ahead,
        *,
        serial: bool,
    ) -> None:
        times, scenarios, price = PlanTimes(problem), problem.scenarios, problem.price
        if price is None:
            raise ValueError("copies ahead have no price")
        passes, stages, _ = shape = scenarios.demand.shape
        rows = passes, stages
        active = scenarios.demand > 0
        copy, gain = problem.copy_ns / MS, times.gain / MS
        start, fixed = problem.pass_start_ns / MS, times.fixed / MS
        residents = np.broadcast_to(resident, shape)
        waits = program.column(rows, 0.0, start)
        before = np.roll(ahead.ravel(), 1).reshape(rows)

        after, end = active * copy, times.least_work / MS
        if serial:
            after, end = after + scenarios.work_ns / MS, 0.0 * end
        self._late = program.row(rows, fixed + end + after.sum(2))
        program.put(self._late[:, :, None], residents, after)
        self._whole = program.row(rows, fixed + times.work / MS + gain.sum(2))
        program.put(self._whole[:, :, None], residents, gain)
        for each in (self._late, self._whole):
            program.put(each, lasts, 1.0)
            program.put(each, waits, -1.0)
            program.put(each, kept[None, :], problem.start_lead_ns / MS)
        self._start = program.row(rows, start - scenarios.prologue_ns / MS)
        program.put(self._start, waits, 1.0)
        program.put(self._start[follows], before[follows], 1.0)
        program.put(self._start, kept[None, :], start)
        self._fit = program.row(rows, 0.0)
        program.put(self._fit, slots, float(copy.max(initial=0.0)))

        columns, contested = copied.columns & (problem.copy_ns > 0), copied.contested
        places = index, stage, item = np.nonzero(columns & (active | contested))
        at, asked = (index, stage), active[places].astype(np.float64)
        cap = program.row((len(index),), -1.0)
        program.put(cap, resident[stage, item], -1.0)
        every = extents(problem)
        for extent in every:
            most = extent[places] / MS
            waited = price.waited_ps(problem.copy_ns, extent)[places] / MS
            own = program.column(
                (len(index),),
                0.0,
                (most > 0).astype(np.float64),
                -price.ppm[places] * (waited / PARTS),
            )
            program.put(cap, own, -1.0)
            program.put(self._late[at], own, asked * most)
            program.put(self._whole[at], own, asked * np.minimum(most, gain[places]))
            program.put(busy[at], own, (asked - 1.0) * most)
            program.put(self._fit[at], own, -most)

        # in vain: the first part of a copy is worth no less than the rest
        places = index, stage, _ = np.nonzero(columns & ~active & ~contested)
        at, before_it = (index, stage), np.zeros_like(every[0])
        for extent in (price.first_ns(problem.copy_ns), every[0]):
            ends = [price.waited_ps(problem.copy_ns, one)[places] for one in (before_it, extent)]
            most = (extent - before_it)[places] / MS
            own = program.column(
                (len(index),),
                0.0,
                (most > 0).astype(np.float64),
                -price.ppm[places] * ((ends[1] - ends[0]) / MS / PARTS),
            )
            program.put(busy[at], own, -most)
            program.put(self._fit[at], own, -most)
            before_it = extent

    def proof(self, duals: Floats, integers: Callable[[Floats], Integers]) -> ChargedProof:
        """Multipliers."""
        return ChargedProof(
            late=integers(duals[self._late]),
            whole=integers(duals[self._whole]),
            start=integers(duals[self._start]),
            fit=integers(duals[self._fit]),
        )
