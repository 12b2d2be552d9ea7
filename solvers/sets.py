"""Candidate schedules by rule, judged by the replay: the search that the exact models start from.

Residents come from a value for each unit, prefetches from a threshold on how often an item is
demanded; slots, reserve and threshold are searched one after another, the replay deciding.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from solvers.layout import START, Layout, whole_in_memory
from solvers.outcome import HostShare, Schedule
from solvers.problem import Problem
from solvers.relaxation import Relaxed
from solvers.replay import Credit, objective

__all__ = ["Knobs", "Search", "demand_share", "optimistic", "unit_order"]


_FIRST = ((8, 0), (4, 0), (4, 2), (2, 2), (2, 1), (1, 1), (0, 2), (0, 1))
"""Slots and start slots to begin with; one of the last three fits where anything does."""

_EACH = 4
"""Of so many passes one is replayed first, where that leaves ``_FEWEST``."""
_FEWEST = 8
_HOPELESS = 0.02
"""What is worse by this share on these passes is not replayed on all."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What one candidate is made from.

    Attributes
    ----------
    slots, start_slots
        Of the layout; ``start_slots`` 0 keeps all start units.
    reserve
        Slots left to copies on demand.
    threshold
        Items demanded in at least this share of passes are prefetched; above 1: none, below 0: all.
    """

    slots: int
    start_slots: int
    reserve: int
    threshold: float


def demand_share(problem: Problem) -> npt.NDArray[np.float64]:
    """[stages, items]: share of passes that demand an item, by the passes' weights."""
    weight = problem.scenarios.weight.astype(np.float64)
    total = max(float(weight.sum()), 1.0)
    share: npt.NDArray[np.float64] = np.tensordot(weight, problem.demanded, axes=1) / total
    return share


def unit_order(problem: Problem, relaxed: Relaxed | None) -> list[tuple[int, int]]:
    """All units, the one most worth its memory first.

    By the relaxation's share, where there is one, then by expected copy time saved for each byte
    held; ties by stage and item, so that the order is the same each time.
    """
    share = demand_share(problem)
    ranked: list[tuple[float, float, int, int]] = []
    for index, stage in enumerate(problem.stages):
        if stage.start is not None:
            chosen = float(relaxed.start_resident[index]) if relaxed else 0.0
            worth = stage.start.copy_ns / max(stage.start.held_bytes, 1)
            ranked.append((-round(chosen, 6), -worth, index, START))
        for item, unit in enumerate(stage.items):
            chosen = float(relaxed.resident[index, item]) if relaxed else 0.0
            worth = float(share[index, item]) * unit.copy_ns / max(unit.held_bytes, 1)
            ranked.append((-round(chosen, 6), -worth, index, item))
    return [(index, item) for _, _, index, item in sorted(ranked)]


def optimistic(problem: Problem, credit: Credit | None = None) -> int:
    """What the passes take if copies and computation overlap wholly, with the best residents.

    The larger of all computation and all copies that a fractional choice of residents leaves; a
    quick guide to which problems are worth solving. Where a host may work on items, copies and its
    work are weighed together, in the proportion that tells most. A channel with ``credit`` copies
    no faster than at its peak, and is never ahead of its lasting rate by more than its depth.
    """
    if problem.measure == "bytes":
        return 0
    shares = (1.0,) if problem.scenarios.host_work_ns is None else _HOST_SHARES
    return max(_overlapped(problem, share, credit) for share in shares)


_HOST_SHARES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


def _overlapped(problem: Problem, share: float, credit: Credit | None) -> int:
    """``optimistic`` with copies counted by a share, and the host's work by the rest: whoever
    serves an item takes no less than the smaller of both."""
    scenarios = problem.scenarios
    weight = scenarios.weight.astype(np.float64)
    demand = (scenarios.demand > 0).astype(np.float64)
    each = demand * problem.copy_ns * share
    compute = float((scenarios.compute_ns.sum(axis=1) * weight).sum())
    if scenarios.host_work_ns is not None:
        several = np.array([not stage.sequential for stage in problem.stages])
        hosted = np.minimum(each, scenarios.host_work_ns * (1.0 - share))
        each = np.where(several[:, None], hosted, each)
        spared = (scenarios.work_ns.sum(axis=2) * several).sum(axis=1)
        compute -= float((spared * weight).sum())
    worth = np.tensordot(weight, each, axes=1)
    starts = [stage.start for stage in problem.stages if stage.start is not None]
    held = [problem.item_bytes.ravel(), np.array([s.held_bytes for s in starts], dtype=np.int64)]
    there = np.array([stage.start is not None for stage in problem.stages], dtype=bool)
    saved = [worth.ravel(), share * (weight @ problem.pass_start_ns)[there]]
    sizes, values = np.concatenate(held), np.concatenate(saved)
    real = sizes > 0
    sizes, values = sizes[real], values[real]
    order = np.argsort(-values / sizes, kind="stable")
    filled = np.cumsum(sizes[order])
    kept = np.clip((problem.capacity_bytes - (filled - sizes[order])) / sizes[order], 0.0, 1.0)
    copies = float(values.sum() - (values[order] * kept).sum())
    if credit is not None:
        copies = _ahead_ns(problem, share, credit, copies)
    if problem.measure == "idle":
        return int(max(copies - compute, 0.0)) if scenarios.host_work_ns is None else 0
    return int(max(copies, compute))


def _ahead_ns(problem: Problem, share: float, credit: Credit, copies: float) -> float:
    """The least that ``copies``, in which the channel's count by ``share``, take with its credit.

    Over passes p of weight w that begin with credit c, of lasting copy time W, a pass takes t_p >=
    W_p - c_p + c_(p+1), as rests alone give credit back, and by weight all of them no less than sum
    w W minus the depth for the first pass's weight and each rise of it. Nor does a pass take less
    than its copies at the peak.
    """
    peak = credit.peak_ppm / 1_000_000
    weight, rises = problem.scenarios.weight.tolist(), 0
    for run in problem.scenarios.runs():
        own = [0, *weight[run.start : run.stop]]
        rises += sum(max(after - before, 0) for before, after in pairwise(own))
    fastest = copies / (share / peak + 1.0 - share)
    return max(fastest, copies - share * credit.depth_ns * rises)


def _sampled(problem: Problem) -> Problem | None:
    """The problem with few of its passes; None where all are few."""
    scenarios = problem.scenarios
    if scenarios.passes < _EACH * _FEWEST or problem.measure != "time" or problem.ahead is not None:
        return None
    few = scenarios.every(_EACH)
    shares = problem.correction * int(few.weight.sum()) // max(int(scenarios.weight.sum()), 1)
    price = problem.price
    if price is not None:
        price = price.of([index for run in scenarios.runs() for index in run[::_EACH]])
        shares = price.correction_ns(problem.copy_ns)
    return problem.replace(scenarios=few, correction_ns=shares, price=price)


@dataclass
class Search:
    """Candidates tried so far, and the best of them.

    A candidate that on every fourth pass is clearly worse than the best is not replayed on all.

    Parameters
    ----------
    problem
        Whose scenarios the replay uses.
    order
        Units, the most worthy first.
    deadline
        ``time.monotonic`` value after which no further candidate is tried.
    """

    problem: Problem
    order: list[tuple[int, int]]
    deadline: float = float("inf")
    best: Schedule | None = None
    best_value: int = 0
    best_knobs: Knobs | None = None
    knobs_value: int = 0
    tried: set[Schedule] = field(default_factory=set)
    out_of_time: bool = False
    _best_early: int | None = None
    _knobs_early: int | None = None

    def __post_init__(self) -> None:
        self._few = _sampled(self.problem)
        share = demand_share(self.problem)
        self._share = share
        ranked = np.argsort(-np.round(share, 9), axis=1, kind="stable").tolist()
        self._ranked = [
            [item for item in row if item < len(stage.items)]
            for row, stage in zip(ranked, self.problem.stages, strict=True)
        ]

    def build(self, knobs: Knobs) -> Schedule | None:
        """The candidate that ``knobs`` describe; None where it does not fit."""
        layout = Layout(self.problem, knobs.slots, knobs.start_slots)
        if not layout.fits:
            return None
        layout.fill(self.order)
        prefetch = [
            [item for item in ranked if self._share[index, item] >= knobs.threshold]
            for index, ranked in enumerate(self._ranked)
        ]
        return layout.schedule(prefetch, knobs.reserve)

    def try_schedule(self, schedule: Schedule | None, knobs: Knobs | None = None) -> bool:
        """Replay a candidate; returns whether it is the best so far."""
        if schedule is None or schedule in self.tried:
            return False
        if self.best is not None and time.monotonic() > self.deadline:
            self.out_of_time = True
            return False
        self.tried.add(schedule)
        # a cache lives on what passes in a row have in common
        few = self._few if schedule.eviction == "none" else None
        early = None if few is None else objective(few, schedule)
        rival = self._best_early if knobs is None else self._knobs_early
        if early is not None and rival is not None and early - rival > _HOPELESS * abs(rival):
            return False
        taken = objective(self.problem, schedule)
        if knobs is not None and (self.best_knobs is None or taken < self.knobs_value):
            self.best_knobs, self.knobs_value, self._knobs_early = knobs, taken, early
        if self.best is not None and taken >= self.best_value:
            return False
        self.best, self.best_value, self._best_early = schedule, taken, early
        return True

    def run_few(self) -> None:
        """A first look: the first slots that fit, with everything prefetched, half, or nothing."""
        if self.try_schedule(whole_in_memory(self.problem)):
            return
        for slots, start_slots in _FIRST:
            for threshold in (-1.0, 0.5, 2.0):
                knobs = Knobs(slots, start_slots, int(threshold > 0), threshold)
                self.try_schedule(self.build(knobs), knobs)
            if self.best is not None:
                break
        whole = max(int(self.problem.scenarios.demand.max(initial=0)), 1)
        if self.best is not None and self.problem.scenarios.host_work_ns is not None:
            for percent in (50, 100):
                self.try_schedule(self.best.replace(host=HostShare(whole, percent)))

    def run(self, rounds: int = 2) -> None:
        """Search slots, threshold, reserve and start slots in turn, ``rounds`` times."""
        if self.try_schedule(whole_in_memory(self.problem)):
            return
        for slots, start_slots in _FIRST:
            for knobs in (
                Knobs(slots, start_slots, 1, 0.5),
                Knobs(slots, start_slots, 0, -1.0),
            ):
                self.try_schedule(self.build(knobs), knobs)
        widest = max((len(stage.items) for stage in self.problem.stages), default=1)
        several = sorted({1, 2, 3, 4, 6, 8, 12, 16, *(widest * k // 2 for k in (1, 2, 3, 4))})
        for _ in range(rounds):
            before = self.knobs_value
            for turn in ("threshold", "slots", "reserve", "start_slots"):
                for knobs in _neighbours(self.best_knobs, turn, several):
                    self.try_schedule(self.build(knobs), knobs)
            if self.knobs_value == before:
                return


def _neighbours(knobs: Knobs | None, turn: str, several: list[int]) -> list[Knobs]:
    """Candidates that differ in one knob."""
    if knobs is None:
        return []
    if turn == "threshold":
        return [replace(knobs, threshold=at) for at in (2.0, 0.9, 0.7, 0.5, 0.3, 0.15, 0.05, -1.0)]
    if turn == "slots":
        return [replace(knobs, slots=s, reserve=min(knobs.reserve, s)) for s in several]
    if turn == "reserve":
        sizes = {0, 1, 2, knobs.slots // 4, knobs.slots // 2, max(knobs.slots - 1, 0)}
        return [replace(knobs, reserve=size) for size in sorted(sizes)]
    return [replace(knobs, start_slots=size) for size in (0, 1, 2, 3)]
