"""One n and b with its problems: what solvers are given, and what a policy of it is worth."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.credit import credit_of
from planner.documents import Predicted
from planner.encode import Encoding
from planner.factors import Factors
from planner.objectives import Objective
from planner.overlap import overlap
from planner.predict import Judged, predict
from planner.scenarios import PassShape, Sequences, Split, draw_counts, pass_shapes
from planner.smallest import smallest_budget_bytes
from solvers.belady import cached_bound
from solvers.outcome import Bound, BoundClass, Schedule
from solvers.problem import Problem, Scenarios
from solvers.relaxation import plan_bound, relax
from solvers.replay import Credit, Replay, measure, replay

__all__ = ["Candidate", "Figures", "SetName"]

SetName = Literal["fit", "choose", "judge"]

_PASSES = {"fit": 16, "choose": 32, "judge": 48}
_PASSES_FEW = {"fit": 48, "choose": 128, "judge": 192}
"""Passes that each set holds, and with groups of few sequences, whose passes differ more."""
_FEW = 8
_MOST_ITEMS = {"fit": 16_000, "choose": 60_000, "judge": 60_000}
"""Items of all passes of a set: what a replay's time grows with."""
_BOUND_STAGES = 4_000
"""Stages of all passes, up to which the bound of the class ``plan`` takes seconds."""
_TURNS = 3
"""Of copies and computation slowing each other; each halves what is missing, about."""
_SETTLED = 0.002
"""Share by which factors still move when they have settled."""


class Figures(NamedTuple):
    """What a plan says of its policy on the judging sequences; names are those of ``Plan``."""

    objective: float
    bound: float | None
    bound_class: BoundClass | None
    gap: float | None
    predicted: Predicted


@dataclass(eq=False)
class Candidate:
    """One n and b, with its problems.

    Attributes
    ----------
    encoding
        Of this n and b.
    sequences, split, seed
        Where scenarios come from.
    objective
        What is minimised.
    factors
        Slowdown of copies and computation beside each other.
    """

    encoding: Encoding
    sequences: Sequences
    split: Split
    seed: int
    objective: Objective
    factors: Factors = field(default_factory=Factors)
    _scenarios: dict[tuple[str, Factors], Scenarios] = field(default_factory=dict)
    _said: dict[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    _last: tuple[object, Replay] | None = None
    _pass_seconds: float = 0.0

    def shapes(self, which: SetName) -> tuple[PassShape, ...]:
        """The passes of one run of the workload."""
        workload, group = self.encoding.workload, self.encoding.group
        return pass_shapes(
            requests=workload.requests,
            prompt_tokens=workload.prompt_tokens,
            new_tokens=workload.new_tokens,
            group=group,
            decode_passes=8 if group <= _FEW else (3 if which == "fit" else 5),
        )

    def _runs(self, which: SetName) -> int:
        wanted = (_PASSES_FEW if self.encoding.group <= _FEW else _PASSES)[which]
        model = self.encoding.profile.model
        items = sum(layer.experts for layer in model.layers) + self.encoding.tiling[1]
        wanted = min(wanted, _MOST_ITEMS[which] // items)
        fewest = 2 if which != "fit" or self.encoding.group <= _FEW else 1
        return max(wanted // len(self.shapes(which)), fewest)

    def _drawn(self, which: SetName, sequences: Sequences) -> npt.NDArray[np.int32]:
        """[passes, moe_layers, experts]: tokens of each expert in a set's passes."""
        number = ("fit", "choose", "judge").index(which)
        generator = np.random.default_rng([self.seed, 2, number, self.encoding.group])
        members, shapes = getattr(self.split, which), self.shapes(which)
        runs = range(self._runs(which))
        return np.concatenate([draw_counts(sequences, members, shapes, generator) for _ in runs])

    def _ahead(self, which: SetName) -> npt.NDArray[np.int32] | None:
        """[passes, stages, items]: what the routers say of the same passes a layer ahead."""
        ahead = self.encoding.profile.arrays.ahead
        if ahead is None or self.encoding.kv == "batches":
            return None
        if which not in self._said:
            counts = self._drawn(which, replace(self.sequences, experts=ahead))
            said = np.zeros(self.scenarios(which).demand.shape, dtype=np.int32)
            said[:, list(self.encoding.profile.model.moe_layers), : counts.shape[2]] = counts
            self._said[which] = said
        return self._said[which]

    def scenarios(self, which: SetName) -> Scenarios:
        """The set's passes, with their times under the present factors."""
        key = (which, self.factors)
        if key in self._scenarios:
            return self._scenarios[key]
        shapes, runs = self.shapes(which), self._runs(which)
        members = getattr(self.split, which)
        counts = self._drawn(which, self.sequences)
        mean = None
        if which == "fit":
            # sequences are drawn independently: with one token each, the chance that none of g
            # chooses an expert is a power; prefill keeps its own means
            share = self.sequences.token_shares(members)
            active = (counts > 0).reshape(runs, len(shapes), *counts.shape[1:]).mean(axis=0)
            mean = np.stack(
                [
                    active[index]
                    if shape.phase == "prefill"
                    else 1.0 - (1.0 - share) ** shape.sequences
                    for index, shape in enumerate(shapes)
                ]
            )
            mean = np.tile(mean, (runs, 1, 1))
        # a single group starts with nothing copied; of several, only the first one does (and it is
        # the one whose first token counts)
        single = shapes[-1].group == 0 and shapes[0].weight == 1
        single = single or self.objective.counts == "first"
        starts = tuple(range(0, runs * len(shapes), len(shapes))) if single else (0,)
        scenarios = self.encoding.scenarios(shapes * runs, counts, self.factors, mean, starts)
        self._scenarios[key] = scenarios
        return scenarios

    def problem(self, which: SetName, *, plain: bool = False) -> Problem:
        """The problem on one set; ``plain`` with each pass's own weight and time measured."""
        model = self.encoding.profile.model
        scenarios = self.scenarios(which)
        if not plain:
            shapes = self.shapes(which)
            weight = np.array([self.objective.weight(shape) for shape in shapes], dtype=np.int64)
            scenarios = scenarios.with_weight(np.tile(weight, scenarios.passes // len(shapes)))
        return Problem(
            self.encoding.stages(self.factors, self.shapes(which)),
            scenarios,
            max(self.encoding.capacity_bytes, 0),
            self.encoding.slot_bytes,
            max(layer.top_k for layer in model.layers),
            "time" if plain or self.objective.measure == "memory" else self.objective.measure,
            ahead=self._ahead(which),
        )

    def judged(self) -> Judged:
        """What predictions are made from."""
        return Judged(
            self.encoding, self.problem("judge", plain=True), self.shapes("judge"), self.factors
        )

    def value(self, which: SetName, total: int) -> float:
        """A weighted sum over a set's passes, in the objective's unit."""
        if self.objective.measure == "memory":
            return float(total)
        runs = self.scenarios(which).passes // len(self.shapes(which))
        return total / runs / self.objective.per(self.encoding.workload, self.shapes(which))

    def bound(self, schedule: Schedule) -> Bound | None:
        """No policy with this n and b, fixed residents and no eviction caching is faster on the
        judging sequences, with a host that takes any experts in any pass, where there is one. For a
        ``schedule`` that caches what a clairvoyant cache would need beside such a host, or all
        computation, split between both. None where neither speaks of the objective."""
        if self.objective.measure == "memory":
            encoding = self.encoding
            return Bound(smallest_budget_bytes(encoding.profile, encoding.workload), "plan")
        problem = self.problem("judge")
        if problem.measure != "time":
            return None
        if schedule.eviction != "none":
            return cached_bound(problem, schedule)
        relaxed = relax(problem)
        return None if relaxed is None else relaxed.bound

    def both_bounds(self) -> tuple[Bound | None, Bound | None]:
        """Likewise for schedules without caching, of the classes ``plan`` (where that does not take
        long) and ``clairvoyant``; None where the objective is not a time."""
        if self.objective.measure != "time":
            return None, None
        return plan_bound(self.problem("judge"), _BOUND_STAGES)

    def score(self, which: SetName, schedule: Schedule, credit: Credit | None = None) -> float:
        """The objective of a schedule on one set, in its unit; with ``credit`` of the link."""
        if self.objective.measure == "memory":
            return float(self.peak_bytes(schedule))
        result = self._replayed(which, schedule, credit)
        return self.value(which, measure(self.problem(which), result))

    def _replayed(self, which: SetName, schedule: Schedule, credit: Credit | None) -> Replay:
        """A replay, which knows no weights; the last one is kept, and how long a pass took."""
        key = self.encoding, self.factors, which, schedule, credit
        if self._last is None or self._last[0] != key:
            problem, began = self.problem(which), time.thread_time()
            self._last = key, replay(problem, schedule, credit=credit)
            self._pass_seconds = (time.thread_time() - began) / problem.scenarios.passes
        return self._last[1]

    def seconds(self, which: SetName) -> float:
        """Processor time of a replay of a set, by that of the last one; 0 before there is one."""
        return self._pass_seconds * self._runs(which) * len(self.shapes(which))

    def promised(self, which: SetName, schedule: Schedule) -> float:
        """Likewise, with all credit that the link has: what policies are compared by."""
        return self.score(which, schedule, credit_of(self.encoding))

    def figures(self, schedule: Schedule) -> Figures:
        """Objective, bound and prediction of a schedule."""
        value = self.score("judge", schedule)
        proven = self.bound(schedule)
        lower = None if proven is None else self.value("judge", proven.value_ns)
        replayed = self._replayed("judge", schedule, credit_of(self.encoding))
        predicted = predict(self.judged(), schedule, replayed)
        if predicted.credit_ns is not None:
            predicted = replace(predicted, objective=self.promised("judge", schedule))
        return Figures(
            objective=value,
            bound=lower,
            bound_class=None if proven is None else proven.policies,
            gap=None if lower is None or value <= 0 else (value - lower) / value,
            predicted=predicted,
        )

    def peak_bytes(self, schedule: Schedule) -> int:
        """Device memory under a schedule."""
        return self.encoding.account(schedule).peak_bytes

    def set_factors(self, schedule: Schedule) -> None:
        """How much copies and computation overlap under ``schedule``, and so slow each other.

        What is slowed takes longer, and overlaps otherwise: so several times, or until it settles.
        """
        for _ in range(_TURNS):
            before = self.factors
            self.factors = overlap(
                self.encoding,
                lambda: self.problem("fit", plain=True),
                self.shapes("fit"),
                schedule,
                before,
            )
            pairs = zip(self.factors, before, strict=True)
            if all(abs(one - other) <= _SETTLED * other for one, other in pairs):
                break

    def under(self, schedule: Schedule) -> Candidate:
        """The same with the factors of this very schedule."""
        own = copy(self)
        own.set_factors(schedule)
        return own
