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
from solvers.placement.problem import Bools, Floats, Int64, Placement, PlacementProblem, fullest
from solvers.placement.rules import RULES
from solvers.placement.search import search
from solvers.registry import Limits, load
from solvers.sets_model import Row

__all__ = ["ENGINES", "MOST_TERMS", "Placed", "StageModel", "place_items", "solve_exactly"]

MOST_TERMS = 100_000
"""Terms of a stage's model that gets anywhere in its share of the time."""
_UNIT = 1_000_000
_SURE = 3.0
"""Standard errors of a gain that is not chance."""
_LEAST_SCENARIOS = 16
"""With fewer, no half is left to judge by."""
_MANY_KINDS = 16
"""With fewer kinds, how much two of them differ is not known well enough to judge a stage alone."""

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
    """A placement, a bound on ``average_max_load`` of the fitted scenarios, and why it stopped."""

    placement: Placement
    bound: float
    stop: Stop


def place_items(
    problem: PlacementProblem, method: str, limits: Limits, kinds: Int64 | None = None
) -> Placed:
    """A placement by any rule or engine; ``limits`` and ``kinds`` are as for ``solve_exactly``."""
    if method not in RULES:
        return solve_exactly(problem, method, limits, kinds)
    bound = mean_bound(problem, stage_bounds(problem))
    return Placed(RULES[method](problem), bound, Stop.RULE)


def solve_exactly(
    problem: PlacementProblem, engine: str, limits: Limits, kinds: Int64 | None = None
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
    kinds
        [scenarios]: what kind each one is of (a text domain). What is learnt from some kinds is
        judged by others, so that what holds for a kind alone is not learnt. None: every other
        scenario judges.
    """
    solver = cast(ExactSolver, load(engine))
    deadline = time.monotonic() + limits.seconds
    start, searched = _validated(problem, limits, kinds)
    held = search(
        problem,
        [start, *(rule(problem) for rule in RULES.values())],
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
    stop = Stop.OPTIMAL if optimal and bool(searched.all()) else Stop.TIME_LIMIT
    return Placed(Placement(held), mean_bound(problem, bounds), stop)


def _validated(
    problem: PlacementProblem, limits: Limits, kinds: Int64 | None
) -> tuple[Placement, Bools]:
    """A rule's placement of each stage, and the stages where searching pays.

    The rule is ``replicate`` (without replicas: greedy by mean load) unless another surely beats it
    on scenarios that neither has seen. A search fits scenarios' noise as well as what they have in
    common. So it is tried on one half of the scenarios and used where it beats the rule on the
    other half by more than three standard errors of the paired difference: with many stages,
    chance passes a lower bar.
    """
    rules = [rule(problem) for rule in RULES.values()]
    if len(problem.load) < _LEAST_SCENARIOS:
        values = np.stack([fullest(problem, one).mean(axis=0) for one in rules])
        return _pick(rules, np.argmin(values, axis=0)), np.ones(values.shape[1], dtype=np.bool_)
    if kinds is not None and 2 < len(np.unique(kinds)) < _MANY_KINDS:
        return _by_left_out_kind(problem, rules, limits, kinds)
    even = (np.arange(len(problem.load)) if kinds is None else kinds) % 2 == 0
    if even.all():
        even = np.arange(len(problem.load)) % 2 == 0
    half, other = problem.take(even), problem.take(~even)
    learnt = [rule(half) for rule in RULES.values()]
    loads = np.stack([fullest(other, one) for one in learnt])
    plain = list(RULES).index("replicate")
    # rules learn noise, too: anti-correlation fits correlations that are none
    sure = np.stack([_sure_gain(loads[plain], one) for one in loads])
    picked = np.where(sure.max(axis=0) > 0, np.argmax(sure, axis=0), plain)
    ours = search(half, learnt, seed=limits.seed, seconds=limits.seconds / 3)
    gain = _sure_gain(fullest(other, _pick(learnt, picked)), fullest(other, ours))
    return _pick(rules, picked), gain > 0


def _by_left_out_kind(
    problem: PlacementProblem, rules: list[Placement], limits: Limits, kinds: Int64
) -> tuple[Placement, Bools]:
    """The rule, or searching, that did best on kinds that it had not seen; of all stages alike.

    Each kind is left out in turn, and all kinds count alike. Kinds differ more than scenarios of
    one, so with few of them no gain is sure: what has been best so far is taken, over all stages,
    since a single one's best is chance.
    """
    names = np.unique(kinds)
    seconds = limits.seconds / 3 / len(names)
    value = np.zeros(len(RULES) + 1)
    for name in names:
        seen, left_out = problem.take(kinds != name), problem.take(kinds == name)
        learnt = [rule(seen) for rule in RULES.values()]
        learnt.append(search(seen, learnt, kicks=2, seed=limits.seed, seconds=seconds))
        value += [fullest(left_out, one).mean() for one in learnt]
    best = int(np.argmin(value))
    searched = np.full(len(rules[0].held), best == len(rules))
    return (rules[0] if best == len(rules) else rules[best]), searched


def _sure_gain(before: Floats, after: Floats) -> Floats:
    """[stages]: mean of before - after [scenarios, stages], less what may be chance."""
    gain = before - after
    error = gain.std(axis=0, ddof=1) / math.sqrt(len(gain))
    sure: Floats = gain.mean(axis=0) - _SURE * error
    return sure


def _pick(placements: list[Placement], which: Int64) -> Placement:
    """Stage by stage one of several placements."""
    held = [placements[at].held[stage] for stage, at in enumerate(which.tolist())]
    return Placement(np.stack(held))


def _value(share: Floats, held: Bools) -> float:
    """Mean load of the fullest device."""
    part = held / held.sum(axis=1, keepdims=True)
    return float((share @ part).max(axis=1).mean())
