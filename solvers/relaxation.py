"""A lower bound for every schedule without eviction caching, as linear programs (HiGHS).

The inequalities, and why they hold, stand in ``solvers.proof``; here they become the rows of a
linear program whose duals, rounded to integers, are the proof. The number of slots is an integer:
with one slot or two it is fixed, which costs memory or makes copies wait for work to end; with
more the program may choose a fraction. The bound is the least of these programs'.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from solvers.outcome import Bound, BoundClass, HostProof, Proof
from solvers.problem import Problem
from solvers.program import MIB, MS, Floats, Program
from solvers.proof import proven_ns
from solvers.proof_host import least_ns
from solvers.relaxation_charged import Ahead, ChargedRows
from solvers.relaxation_host import HostRows
from solvers.relaxation_plan import Columns, PlanRows

__all__ = ["Relaxed", "plan_bound", "relax"]

_SCALE = 1 << 50
"""Multipliers are rounded to integers in units of 1 / this."""
_LARGE = 1_000
"""Stages of all passes, beyond which the simplex method takes several times as long."""
_TURNS = 4
"""Programs, at most, with ever more of what may be copied ahead."""
_FIXED_SLOTS = 2
"""Up to this many slots, each number has a program of its own."""


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


@dataclass(frozen=True, slots=True)
class _Solved:
    """One program's optimum."""

    value: float
    proof: Proof
    proven_ns: int | None
    resident: Floats
    start_resident: Floats
    slots: float
    memory_price: float


@dataclass(slots=True)
class _Case:
    """Slots from ``least`` to ``last`` or on, the best of its programs, and how many it may have
    yet."""

    least: int
    last: int | None
    turns: int
    best: _Solved | None = None

    @property
    def found(self) -> _Solved:
        """``best``, which is there."""
        if self.best is None:
            raise ValueError("no program of these slots was solved")
        return self.best

    def proven(self) -> int:
        """By the best, in ns."""
        return self.found.proven_ns or 0


def relax(
    problem: Problem,
    *,
    exact_demand: bool = True,
    policies: BoundClass = "clairvoyant",
    iteration_limit: int = 200_000,
    every_slot: bool = True,
    seconds: float = math.inf,
) -> Relaxed | None:
    """Solve the relaxation.

    Parameters
    ----------
    problem
        With at least one pass.
    exact_demand
        Use what the scenarios demand, for a bound on these scenarios; otherwise the control
        variate, for better residents (and then the value is no bound for these scenarios).
    policies
        ``clairvoyant``, or ``plan`` for more rows, and a bound that holds for that class only.
        Where copies ahead have a price, rows that charge them, and ``plan``, are all there is.
    iteration_limit
        Of the simplex method, a limit on work that does not depend on the clock.
    every_slot
        Whether small numbers of slots have programs of their own, for a tighter bound.
    seconds
        A cap on the clock for all programs together.

    Returns
    -------
    Relaxed or None
        None where the program has no solution or a limit was reached.
    """
    deadline = time.monotonic() + seconds
    most = problem.capacity_bytes // max(problem.slot_bytes, 1)
    streams = int(problem.item_bytes.sum()) > problem.capacity_bytes
    if streams and most < 1:
        return None
    limits = iteration_limit, deadline
    charges = exact_demand and problem.price is not None
    policies = "plan" if charges else policies
    turns = (_TURNS if every_slot else 2) if charges else 1
    ahead = Ahead(problem) if charges else None

    def solve(case: _Case) -> bool:
        one = _solve(problem, case.least, case.last, exact_demand, policies, limits, ahead)
        case.turns -= 1
        if one is None or (ahead is not None and one.proven_ns is None):
            return False
        if case.best is None or (one.proven_ns or 0) > (case.best.proven_ns or 0):
            case.best = one
        if ahead is None or not ahead.widen(one.proof, one.resident, one.value):
            case.turns = 0
        return True

    def refine(cases: list[_Case], enough: Callable[[], bool] = lambda: False) -> None:
        """Again with more that may be copied ahead, for as long as what proves least may gain."""
        while not enough():
            weakest = min(cases, key=_Case.proven)
            if weakest.turns < 1 or not solve(weakest):
                break

    first = _Case(int(streams), None, turns)
    if not solve(first):
        return None

    def few() -> bool:
        each = every_slot and exact_demand and streams
        return each and first.found.slots < _FIXED_SLOTS + 1

    refine([first], lambda: few() and first.turns < turns - 1)
    cases = [first]
    if few():
        ends: list[tuple[int, int | None]] = [(k, k) for k in range(1, _FIXED_SLOTS + 1)]
        ends.append((_FIXED_SLOTS + 1, None))
        own = [_Case(*each, turns) for each in ends if each[0] <= most]
        # a program without a solution stands for slots that leave no room for the rest
        if all(map(solve, own)):
            cases = own
        refine(cases)
    solved = [case.found for case in cases]
    best = min(solved, key=lambda one: one.value)
    bound = Bound(math.floor(best.value * MS), policies)
    if exact_demand:
        values = [one.proven_ns for one in solved if one.proven_ns is not None]
        if len(values) < len(solved):
            return None
        bound = Bound(min(values), policies, tuple(one.proof for one in solved))
    return Relaxed(
        bound, best.resident, best.start_resident, best.slots, best.memory_price * MS / MIB
    )


def _solve(
    problem: Problem,
    least_slots: int,
    most_slots: int | None,
    exact_demand: bool,
    policies: BoundClass,
    limits: tuple[int, float],
    copied: Ahead | None = None,
) -> _Solved | None:
    """One program: slots from ``least_slots`` on, or as many as that and no more; ``limits`` are
    iterations, and a moment of ``time.monotonic``; ``copied`` what may be copied ahead, where it is
    charged."""
    scenarios = problem.scenarios
    passes, stages, width = shape = scenarios.demand.shape
    fixed = least_slots == most_slots
    demand = (scenarios.demand > 0).astype(np.float64) if exact_demand else problem.demanded
    copy, work = problem.copy_ns / MS, scenarios.work_ns / MS
    start, start_held = problem.pass_start_ns / MS, problem.start_bytes / MIB
    longest_start, longer = start.max(axis=0), problem.start_lead_ns / MS
    longest = float(copy.max(initial=0.0))
    pace = float(
        np.divide(
            longest_start, start_held, out=np.zeros_like(longest_start), where=start_held > 0
        ).max(initial=0)
    )

    program = Program()
    # demands that are shifted hold the correction already
    cost = -problem.correction / MS if exact_demand else np.zeros((stages, width))
    useful = (demand.any(axis=0) & (copy > 0)) | (cost < 0)
    resident = program.column((stages, width), 0.0, useful.astype(np.float64), cost)
    kept = program.column((stages,), 0.0, (start_held > 0).astype(np.float64))
    slots = program.column((1,), float(least_slots), float(most_slots or math.inf))
    start_room = program.column((1,))
    weight = scenarios.weight[:, None].astype(np.float64)
    lasts = program.column((passes, stages), least_ns(problem) / MS, cost=weight)
    ahead = program.column((passes, stages))
    before = np.roll(ahead.ravel(), 1).reshape(passes, stages)
    follows = np.ones((passes, stages), dtype=bool)
    follows[list(scenarios.run_starts), 0] = False

    memory = program.row((1,), -problem.capacity_bytes / MIB)
    program.put(memory, resident.ravel(), -problem.item_bytes.ravel() / MIB)
    program.put(memory, kept, -start_held)
    program.put(memory, slots, -problem.slot_bytes / MIB)
    program.put(memory, start_room, -1.0)
    room = program.row((stages,), start_held)
    program.put(room, start_room, (start_held > 0).astype(np.float64))
    program.put(room, kept, start_held)
    busy = program.row((passes, stages), (demand * copy).sum(axis=2) + start)
    program.put(busy, lasts, 1.0)
    program.put(busy, ahead, -1.0)
    program.put(busy[follows], before[follows], 1.0)
    program.put(busy, kept[None, :], start)
    back = np.zeros((0, 0), dtype=np.int64)
    if longer.any():
        back = program.row((passes, stages), least_ns(problem) / MS + longer)
        program.put(back, lasts, 1.0)
        program.put(back, kept[None, :], longer)
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
    host = None
    if scenarios.host_work_ns is not None:
        host = HostRows(problem, program, resident, lasts)
        host.put(busy, demand * copy)
        if fixed:
            host.put(holding, demand * copy + work)
    extra = None
    charged = None
    if copied is not None:
        charged = ChargedRows(
            problem,
            program,
            resident,
            kept,
            slots,
            lasts,
            ahead,
            follows,
            busy,
            copied,
            serial=fixed and least_slots == 1,
        )
    elif policies == "plan":
        shared = Columns(resident, kept, slots, start_room, lasts, follows, pace)
        serial = fixed and least_slots == 1 and host is None
        extra = PlanRows(problem, program, shared, host, serial=serial)
    large = extra is not None or host is not None or passes * stages > _LARGE
    if copied is not None:
        large = copied.interior
    iterations, deadline = limits
    left = deadline - time.monotonic()
    solution = program.solve(iterations, interior=large, seconds=left)
    if solution is None:
        return None
    value, found, duals = solution
    # the ahead rows' unit in the proof: the copy time of a start unit for each of its bytes
    per = 1
    ratios = longest_start / np.where(start_held > 0, start_held, np.inf)
    if ratios.size and ratios.max() > 0:
        unit = problem.stages[int(ratios.argmax())].start
        per = unit.held_bytes if unit is not None else 1
    zero = np.zeros((passes, stages))
    plan = extra.proof(duals, _integers, per) if extra is not None else None
    proof = _fitting(
        problem,
        Proof(
            least_slots,
            most_slots,
            _SCALE,
            int(_integers(duals[memory] * (MS / MIB))[0]),
            _integers(duals[room] * (MS / MIB)),
            _integers(duals[busy]),
            _integers(duals[room_ahead] / per),
            _integers(duals[holding] if fixed else zero),
            plan,
            None if host is None else host.proof(duals, _integers),
            _integers(duals[back]) if longer.any() else None,
            None if charged is None else charged.proof(duals, _integers),
        ),
    )
    return _Solved(
        value,
        proof,
        proven_ns(problem, proof) if exact_demand else None,
        found[resident],
        found[kept],
        float(found[slots][0]),
        abs(float(duals[memory][0])),
    )


def _integers(duals: Floats) -> npt.NDArray[np.object_]:
    """Multipliers as Python integers, rounded down, none negative."""
    found = [int(max(float(dual), 0.0) * _SCALE) for dual in duals.ravel()]
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(duals.shape)


def _fitting(problem: Problem, proof: Proof) -> Proof:
    """The proof, its multipliers cut where those of a stage's duration sum to more than its weight
    by a rounding error."""
    slots, plan, charged, host, back = (
        proof.least_slots,
        proof.plan,
        proof.charged,
        proof.host,
        proof.back,
    )
    left = problem.scenarios.weight.astype(object)[:, None] * _SCALE
    held = np.minimum(proof.held, left // max(slots, 1))
    left = left - held * slots
    if plan is not None:
        late = np.minimum(plan.late, left)
        whole = np.minimum(plan.whole, left - late)
        plan = replace(plan, late=late, whole=whole)
        left = left - late - whole
    if charged is not None:
        late = np.minimum(charged.late, left)
        whole = np.minimum(charged.whole, left - late)
        charged = replace(charged, late=late, whole=whole)
        left = left - late - whole
    if host is not None:
        work = np.minimum(host.work, left)
        host = HostProof(work, np.minimum(host.host, left - work))
        left = left - work - host.host
    if back is not None:
        back = np.minimum(back, left)
        left = left - back
    return replace(
        proof,
        busy=np.minimum(proof.busy, left),
        held=held,
        plan=plan,
        charged=charged,
        host=host,
        back=back,
    )


def plan_bound(
    problem: Problem, most_stages: int | None = None
) -> tuple[Bound | None, Bound | None]:
    """The bounds of the classes ``plan`` and ``clairvoyant``; the first is never the lower one.

    A bound for all schedules is one for those of the class ``plan``. With more than ``most_stages``
    stages of passes, whose programs take long, there is only the clairvoyant one, twice. Where
    copies ahead have a price, the clairvoyant bound is without it (who knows the demand pays it),
    and the other one of another objective.
    """
    priced = problem.price is not None
    every = relax(problem.replace(price=None))
    wide = every.bound if every is not None else None
    stages = problem.scenarios.passes * len(problem.stages)
    if most_stages is not None and stages > most_stages:
        return wide, wide
    own = relax(problem, policies="plan")
    tight = own.bound if own is not None else None
    if not priced and wide is not None and (tight is None or tight.value_ns <= wide.value_ns):
        tight = replace(wide, policies="plan")
    return tight, wide
