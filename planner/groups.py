"""Level (a): which n and b to look at, and the problems that each of them gives."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.attention import attention_ns
from planner.credit import credit_of
from planner.documents import Predicted, Workload
from planner.encode import Encoding
from planner.factors import Factors
from planner.forms import with_forms
from planner.kv import Below, Place, kv_places
from planner.objectives import Objective
from planner.overlap import overlap
from planner.predict import Judged, predict
from planner.profiles import Profile
from planner.scenarios import (
    PassShape,
    Sequences,
    Split,
    draw_counts,
    pass_shapes,
    split_sequences,
)
from solvers.belady import cached_bound
from solvers.layout import smallest_capacity
from solvers.outcome import Bound, BoundClass, Schedule
from solvers.problem import Problem, Scenarios
from solvers.relaxation import plan_bound, relax
from solvers.replay import Credit, Replay, measure, replay

__all__ = [
    "CHUNK_BYTES",
    "Candidate",
    "Figures",
    "batch_sizes",
    "candidates",
    "group_sizes",
    "needed_bytes",
    "smallest_account",
    "smallest_budget_bytes",
]

SetName = Literal["fit", "choose", "judge"]

CHUNK_BYTES = (4 << 20, 1 << 20, 256 << 10)
"""Pieces of a copy, the first that fits; small ones only where memory is very tight."""
_PASSES = {"fit": 16, "choose": 32, "judge": 48}
_PASSES_FEW = {"fit": 48, "choose": 128, "judge": 192}
"""Passes that each set holds, and with groups of few sequences, whose passes differ more."""
_FEW = 8
_MOST_ITEMS = {"fit": 16_000, "choose": 60_000, "judge": 60_000}
"""Items of all passes of a set: what a replay's time grows with."""
_BOUND_STAGES = 4_000
"""Stages of all passes, up to which the bound of the class ``plan`` takes seconds."""
_MOST_STAGES = 512
"""Of a pass, where each batch of a layer is one: what searching and bounding take grows with it."""


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
        """How much copies and computation overlap under ``schedule``, and so slow each other."""
        self.factors = overlap(
            self.encoding,
            lambda: self.problem("fit", plain=True),
            self.shapes("fit"),
            schedule,
            self.factors,
        )


def group_sizes(requests: int) -> list[int]:
    """Sequences of a group: all requests, or an equal share of them; the largest first."""
    parts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024]
    sizes = {-(-requests // part) for part in parts if part <= requests} | {1}
    return sorted(sizes, reverse=True)


def batch_sizes(group: int) -> list[int]:
    """Sequences of a batch in a group."""
    return sorted({-(-group // (1 << power)) for power in range(group.bit_length() + 1)})


def candidates(
    profile: Profile,
    workload: Workload,
    memory_bytes: int,
    seed: int,
    objective: Objective,
    kv: Place = "auto",
) -> list[Candidate]:
    """All n and b that fit: for each group size the batch sizes whose attention is fastest and
    whose workspace is least.

    With ``kv`` ``auto`` those are looked at, too, whose keys and values lie below: of groups for
    which they would take more than half of the budget, and of all groups where nothing else fits.
    """
    sequences = Sequences.of(profile.arrays, profile.routing.experts)
    split = split_sequences(sequences.count, seed)
    groups = group_sizes(workload.requests)
    found: list[Encoding] = []
    places = kv_places(profile.model, profile.hardware.device, kv)
    if None in places:
        for group in groups:
            found += _of_group(profile, workload, memory_bytes, group, None)
    on_device = bool(found)
    for place in (place for place in places if place is not None):
        for group in groups:
            if on_device and 2 * _kv(profile, workload, group) <= memory_bytes:
                break  # groups only become smaller
            found += _of_group(profile, workload, memory_bytes, group, place)
    return [Candidate(one, sequences, split, seed, objective) for one in found]


def _kv(profile: Profile, workload: Workload, group: int) -> int:
    """Bytes of a group's keys and values in all layers."""
    return Encoding(profile, workload, 1, group, 0, CHUNK_BYTES[0], "below").kept.all_bytes


def _of_group(
    profile: Profile, workload: Workload, memory_bytes: int, group: int, kv: Below
) -> list[Encoding]:
    chosen: dict[object, Encoding] = {}
    whole = Encoding(profile, workload, 1, group, memory_bytes, CHUNK_BYTES[0], kv)
    for view in with_forms(whole):
        fitting: list[tuple[int, int, Encoding]] = []
        for batch in batch_sizes(group):
            encoding = _fitting(view, workload, memory_bytes, (-(-group // batch), batch), kv)
            if encoding is not None:
                # with two slots for what is copied of keys and values
                taken = 2 * encoding.kept.room_bytes(0) - encoding.capacity_bytes
                fitting.append((attention_ns(encoding), taken, encoding))
        best = []
        for ranked in ([(a, m, e) for a, m, e in fitting], [(m, a, e) for a, m, e in fitting]):
            best += sorted(ranked, key=lambda entry: entry[:2])[:1]
        if kv == "batches":  # between slots that are small and copies that are few
            best += fitting[len(fitting) // 2 :][:1]
        chosen |= {(view.forms, one.batch_size): one for _, _, one in best}
    return list(chosen.values())


def _fitting(
    profile: Profile, workload: Workload, memory_bytes: int, shape: tuple[int, int], kv: Below
) -> Encoding | None:
    for chunk in CHUNK_BYTES:
        encoding = Encoding(profile, workload, *shape, memory_bytes, chunk, kv)
        if kv == "batches" and encoding.grid.stages > _MOST_STAGES:
            return None
        if encoding.capacity_bytes >= smallest_capacity_of(encoding):
            return encoding
    return None


def smallest_capacity_of(encoding: Encoding) -> int:
    """Least memory for residents and slots."""
    # of batches that are copied by themselves one is like the other
    few = replace(encoding, n_batches=1) if encoding.kv == "batches" else encoding
    return smallest_capacity(few.stages(Factors()), encoding.slot_bytes)


def needed_bytes(encoding: Encoding) -> int:
    """The smallest device budget with which an n and b works."""
    return encoding.fixed_bytes + smallest_capacity_of(encoding)


def smallest_budget_bytes(profile: Profile, workload: Workload, kv: Place = "auto") -> int:
    """The smallest device budget with which any n and b works: one sequence at a time."""
    return smallest_account(profile, workload, kv)[0]


def smallest_account(
    profile: Profile, workload: Workload, kv: Place = "auto"
) -> tuple[int, dict[str, int]]:
    """The smallest budget, and what it is for: purpose -> bytes."""
    accounts = []
    whole = replace(profile, forms=())
    views = with_forms(Encoding(whole, workload, 1, 1, 0, CHUNK_BYTES[0]))
    places = kv_places(profile.model, profile.hardware.device, kv)
    for view, place, chunk in itertools.product(views, places, CHUNK_BYTES):
        encoding = Encoding(view, workload, 1, 1, 0, chunk, place)
        total = needed_bytes(encoding)
        purposes = dict(encoding.fixed.by_purpose)
        starts = [stage.start.held_bytes for stage in encoding.stages(Factors()) if stage.start]
        purposes["kv" if place == "batches" else "dense_slots"] += max(starts, default=0)
        purposes["slots"] += total - sum(purposes.values())
        accounts.append((total, purposes))
    return min(accounts, key=lambda entry: entry[0])
