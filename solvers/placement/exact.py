"""Placement as an integer program: expected load of the fullest device, by CP-SAT or HiGHS.

For each stage: ``x[i, c, d]`` says that item i has c copies and one of them is on device d, and
``y[i, c]`` that it has c copies, so that its weight share / c is linear. ``z[s]`` is the fullest
device's load in scenario s.

    minimise  mean of z[s]
    z[s] >= sum of share[s, i] / c x[i, c, d]     for each s, d
    z[s] >= the scenario's own bound
    sum over c of y[i, c] = 1,  sum over d of x[i, c, d] = c y[i, c],  x[i, c, d] <= y[i, c]
    copies on a device <= its room,  all copies <= items + replicas

All numbers are integers: shares in millionths, rounded down, so that the bound holds for the true
ones. Both engines start from what local search found and can only improve it. A stage beyond
``MOST_TERMS`` terms is left to the search: its bound is then that of ``solvers.placement.bounds``.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import cast

import numpy as np

from solvers.exact import ExactSolver
from solvers.outcome import Stop
from solvers.placement.bounds import mean_bound, scenario_bounds, stage_bounds
from solvers.placement.choose import Candidate, Origins, choose
from solvers.placement.problem import Bools, Floats, Int64, Placement, PlacementProblem
from solvers.placement.rules import RULES
from solvers.placement.search import search
from solvers.registry import Limits, load
from solvers.sets_model import Row
from solvers.told import Told, untold

__all__ = [
    "ENGINES",
    "MOST_TERMS",
    "Placed",
    "StageModel",
    "place_items",
    "solve_exactly",
]

MOST_TERMS = 100_000
"""Terms of a stage's model that gets anywhere in its share of the time."""
_UNIT = 1_000_000

ENGINES = ("cpsat", "milp")
"""The back ends that solve a stage's model."""


class StageModel:
    """One stage's integer program, a ``solvers.sets_model.IntegerModel``.

    Parameters
    ----------
    share
        [scenarios, items]; scenarios without load left out.
    floor
        [scenarios]: what no placement is below.
    room
        [devices].
    replicas
        Copies beyond one for each item.
    held
        [items, devices]: the placement to start from.
    """

    def __init__(
        self, share: Floats, floor: Floats, room: Int64, replicas: int, held: Bools
    ) -> None:
        self.scenarios, self.items = len(share), int(share.shape[1])
        self.devices = len(room)
        self.most = min(self.devices, 1 + replicas)
        self.binaries = self.items * self.most * (self.devices + 1)
        self.rows: list[Row] = []
        self.held = held
        base: Int64 = np.floor(floor * _UNIT).astype(np.int64)
        self.upper = [1] * self.binaries + [_UNIT - int(low) for low in base]
        self.cost = {self.binaries + index: 1 for index in range(self.scenarios)}
        self.offset = int(base.sum())
        items, counts, devices = range(self.items), range(self.most), range(self.devices)
        for item in items:
            chosen = [self._y(item, count) for count in counts]
            self._equal(chosen, [1] * self.most, 1)
            for count in counts:
                there = [self._x(item, count, device) for device in devices]
                self._equal([*there, chosen[count]], [1] * self.devices + [-count - 1], 0)
                self.rows += [Row((chosen[count], at), (1, -1), 0) for at in there]
        scaled = np.floor(
            share[:, :, None] * _UNIT / np.arange(1, self.most + 1)[None, None, :]
        ).astype(np.int64)
        flat = scaled.reshape(self.scenarios, -1)
        for device in devices:
            there = [self._x(item, count, device) for item in items for count in counts]
            self._at_least(there, [-1] * len(there), -int(room[device]))
            for index in range(self.scenarios):
                terms = np.flatnonzero(flat[index])
                columns = [there[at] for at in terms.tolist()]
                weights = (-flat[index, terms]).tolist()
                slack = self.binaries + index
                self._at_least([*columns, slack], [*weights, 1], -int(base[index]))
        chosen = [self._y(item, count) for item in items for count in counts]
        weights = [-(count + 1) for _ in items for count in counts]
        self._at_least(chosen, weights, -(self.items + replicas))

    def _x(self, item: int, count: int, device: int) -> int:
        return (item * self.most + count) * self.devices + device

    def _y(self, item: int, count: int) -> int:
        return (self.items * self.devices + item) * self.most + count

    def _equal(self, columns: list[int], coefficients: list[int], value: int) -> None:
        self._at_least(columns, coefficients, value)
        self._at_least(columns, [-one for one in coefficients], -value)

    def _at_least(self, columns: list[int], coefficients: list[int], lower: int) -> None:
        self.rows.append(Row(tuple(columns), tuple(coefficients), lower))

    def hinted(self) -> dict[int, int]:
        """The binaries of ``held``."""
        values = dict.fromkeys(range(self.binaries), 0)
        for item in range(self.items):
            count = min(int(self.held[item].sum()), self.most) - 1
            values[self._y(item, count)] = 1
            for device in np.flatnonzero(self.held[item]).tolist():
                values[self._x(item, count, device)] = 1
        return values

    def decode(self, values: dict[int, int]) -> Bools:
        """[items, devices] of a solution."""
        held = np.zeros((self.items, self.devices), dtype=np.bool_)
        for item in range(self.items):
            for count in range(self.most):
                for device in range(self.devices):
                    if values[self._x(item, count, device)]:
                        held[item, device] = True
        return held


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement, a bound on ``average_max_load`` of the fitted scenarios, why it stopped, and
    what was compared on which scenarios to choose by (see ``solvers.placement.choose``)."""

    placement: Placement
    bound: float
    stop: Stop
    candidates: tuple[Candidate, ...] = ()


def place_items(
    problem: PlacementProblem,
    method: str,
    limits: Limits,
    origins: Origins | None = None,
    progress: Told = untold,
) -> Placed:
    """A placement by any rule or engine; the arguments are as for ``solve_exactly``."""
    if method not in RULES:
        return solve_exactly(problem, method, limits, origins, progress)
    bound = mean_bound(problem, stage_bounds(problem))
    return Placed(RULES[method](problem), bound, Stop.RULE)


def solve_exactly(
    problem: PlacementProblem,
    engine: str,
    limits: Limits,
    origins: Origins | None = None,
    progress: Told = untold,
) -> Placed:
    """Rules, local search, then an integer program for each stage that is small enough.

    Parameters
    ----------
    problem
        With the scenarios that are fitted.
    engine
        ``cpsat`` or ``milp``.
    limits
        ``work`` and ``seconds`` are shared evenly by the stages.
    origins
        Which scenarios share no sequence, so that what is learnt from some is judged by others.
        None: all are of their own.
    progress
        Told what is being done, and of each stage's integer program.
    """
    solver = cast(ExactSolver, load(engine))
    deadline = time.monotonic() + limits.seconds
    progress(0, 0, "choosing between rules and a search")
    choice = choose(problem, limits, origins or Origins())
    searched = choice.searched
    progress(0, 0, "local search")
    held = search(
        problem,
        [choice.start, *(rule(problem) for rule in RULES.values())],
        only=searched,
        seed=limits.seed,
        seconds=limits.seconds / 3,
    ).held.copy()
    scenarios, stages, items = problem.load.shape
    asked = problem.asked
    floor = scenario_bounds(problem)
    most = min(problem.devices, 1 + problem.replicas)
    small = scenarios * items * most * problem.devices <= MOST_TERMS
    bounds, optimal = np.zeros(stages), small
    for stage in range(stages):
        progress(stage, stages, "integer programs")
        share, low = problem.share[asked[:, stage], stage], floor[asked[:, stage], stage]
        if not len(share):
            continue
        bounds[stage] = low.mean()
        left = (deadline - time.monotonic()) / (stages - stage)
        if not small or left <= 0:
            optimal = False
            continue
        model = StageModel(share, low, problem.room[stage], problem.replicas, held[stage])
        solved = solver.solve_model(model, Limits(limits.work / stages, left, limits.seed))
        if solved is None:
            optimal = False
            continue
        better = model.decode(solved.values)
        before, after = _value(share, held[stage]), _value(share, better)
        proven = (model.offset + math.floor(solved.bound)) / _UNIT / len(share)
        bounds[stage] = max(bounds[stage], min(proven, before, after))
        if searched[stage] and after < before:
            held[stage] = better
        optimal = optimal and solved.optimal
    optimal = optimal and bool(searched.all())
    stop = Stop.OPTIMAL if optimal else Stop.TIME_LIMIT
    return Placed(Placement(held), mean_bound(problem, bounds), stop, choice.candidates)


def _value(share: Floats, held: Bools) -> float:
    """Mean load of the fullest device."""
    part = held / held.sum(axis=1, keepdims=True)
    return float((share @ part).max(axis=1).mean())
