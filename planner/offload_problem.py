"""One of many devices as a problem: its own experts, asked for by the tokens of all devices.

Devices go through a layer in step: nobody goes on before all have computed their experts. So each
waits for the one that gets most rows, and its copies go on meanwhile; what others wait for copies,
and exchanges themselves, are left out: they leave more time for copies, never less. Dense parts and
the head are on every device, whose experts alone are to be placed in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planner.balance_simulator import copies_of
from planner.candidate import Candidate, SetName
from planner.documents import ExpertPlacement, KeptExperts
from planner.encode import Encoding
from planner.objectives import objective_named
from planner.scenarios import PassShape, Sequences, Split
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage

__all__ = ["DeviceCandidate", "DeviceGroup", "OwnExperts"]

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class OwnExperts:
    """A device's experts as items of stages, and back.

    Parameters
    ----------
    placement
        Where experts lie.
    device
        Which device.
    layers
        Of the whole model.

    Attributes
    ----------
    copies, turns
        [moe layers, experts]: how many copies an expert has, and which turn this device's takes
        (row g goes to copy (g + expert) mod copies); -1 where it has none.
    """

    def __init__(self, placement: ExpertPlacement, device: int, layers: int) -> None:
        held = copies_of(placement)
        number = np.arange(placement.experts)
        self.copies: Int64 = held.max(axis=2)
        copy = held[:, :, device]
        self.turns: Int64 = np.where(copy > 0, (copy - 1 - number) % self.copies, -1)
        self._moe = [one.layer for one in placement.layers]
        self._experts = placement.held(device)
        self._stages = layers + 1

    @property
    def count(self) -> int:
        """How many it has."""
        return sum(map(len, self._experts))

    def rows(self, counts: npt.NDArray[np.int32]) -> Int64:
        """[..., moe layers, experts]: rows of this device, of ``counts`` on all devices."""
        shared = (counts + self.copies - 1 - self.turns) // self.copies
        rows: Int64 = np.where(self.turns >= 0, shared, 0)
        return rows

    def asked(self, share: Floats, tokens: int) -> Floats:
        """[moe layers, experts]: probability that any of ``tokens`` tokens, each of which chooses
        an expert with probability ``share``, comes to this device: more than its turn choose it."""
        few: Floats = np.zeros_like(share)
        with np.errstate(divide="ignore"):
            chosen, not_chosen = np.log(share), np.log1p(-share)
        for hits in range(int(self.turns.max(initial=-1)) + 1):
            ways = math.lgamma(tokens + 1) - math.lgamma(hits + 1) - math.lgamma(tokens - hits + 1)
            # 0 ln 0 is 0 here
            some = hits * chosen if hits else 0.0
            rest = (tokens - hits) * not_chosen if tokens > hits else 0.0
            few += np.where(self.turns >= hits, np.exp(ways + some + rest), 0.0)
            if hits == tokens:
                break
        asked: Floats = np.where(self.turns >= 0, np.clip(1.0 - few, 0.0, 1.0), 0.0)
        return asked

    def stages(self, whole: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The model's stages with this device's experts as the only items."""
        found = [Stage(None, ())] * self._stages
        for layer, experts in zip(self._moe, self._experts, strict=True):
            found[layer] = Stage(None, tuple(whole[layer].items[expert] for expert in experts))
        return tuple(found)

    def scenarios(self, whole: Scenarios, after_ns: Int64) -> Scenarios:
        """The model's scenarios with this device's experts as the only items.

        Parameters
        ----------
        whole
            With all experts as items.
        after_ns
            [passes, moe layers]: what is waited for after the experts.
        """
        most = max(map(len, self._experts))
        shape = (*whole.demand.shape[:2], most)
        demand, work = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int64)
        mean = None if whole.mean_demanded is None else np.zeros(shape)
        epilogue = whole.epilogue_ns.copy()
        # tiles of the head are all there
        epilogue[:, -1] += whole.work_ns[:, -1].sum(axis=1)
        epilogue[:, self._moe] += after_ns
        for layer, experts in zip(self._moe, self._experts, strict=True):
            own, some = list(experts), slice(len(experts))
            demand[:, layer, some] = whole.demand[:, layer, own]
            work[:, layer, some] = whole.work_ns[:, layer, own]
            if mean is not None and whole.mean_demanded is not None:
                mean[:, layer, some] = whole.mean_demanded[:, layer, own]
        return replace(whole, demand=demand, work_ns=work, epilogue_ns=epilogue, mean_demanded=mean)

    def kept(self, schedule: Schedule) -> tuple[KeptExperts, ...]:
        """A schedule of this device's items, as its experts."""
        return tuple(
            KeptExperts(
                tuple(experts[item] for item in schedule.stages[layer].resident),
                tuple(experts[item] for item in schedule.stages[layer].prefetch),
            )
            for layer, experts in zip(self._moe, self._experts, strict=True)
        )

    def choices(self, kept: tuple[KeptExperts, ...]) -> tuple[StageChoice, ...]:
        """The inverse of ``kept``, for experts that are all this device's."""
        found = [StageChoice()] * self._stages
        for layer, experts, one in zip(self._moe, self._experts, kept, strict=True):
            item = {expert: at for at, expert in enumerate(experts)}
            resident, prefetch = (
                tuple(item[expert] for expert in listed) for listed in (one.resident, one.prefetch)
            )
            found[layer] = StageChoice(False, resident, prefetch)
        return tuple(found)


@dataclass(eq=False)
class DeviceGroup:
    """What the devices of a placement have in common.

    Attributes
    ----------
    placement
        Where experts lie.
    encoding
        Of a batch on every device; its budget is the memory for experts on one.
    sequences, split, seed
        Where scenarios come from.
    """

    placement: ExpertPlacement
    encoding: Encoding
    sequences: Sequences
    split: Split
    seed: int
    _busiest: dict[str, Int64] = field(default_factory=dict)

    @cached_property
    def own(self) -> tuple[OwnExperts, ...]:
        """Each device's experts."""
        layers = len(self.encoding.profile.model.layers)
        devices = range(self.placement.devices)
        return tuple(OwnExperts(self.placement, device, layers) for device in devices)

    def expert_ns(self, shapes: tuple[PassShape, ...], rows: Int64) -> Int64:
        """[passes, moe layers]: time that a device's ``rows`` take, copies aside."""
        each = [
            self.encoding.expert_times(one, 1.0, shape.phase).sum(axis=1)
            for one, shape in zip(rows.astype(np.int32), shapes, strict=True)
        ]
        found: Int64 = np.stack(each)
        return found

    def busiest_ns(
        self, which: str, shapes: tuple[PassShape, ...], counts: npt.NDArray[np.int32]
    ) -> Int64:
        """[passes, moe layers]: likewise, of the device that computes longest."""
        if which not in self._busiest:
            times = [self.expert_ns(shapes, own.rows(counts)) for own in self.own]
            self._busiest[which] = np.maximum.reduce(times)
        return self._busiest[which]


class DeviceCandidate(Candidate):
    """One device, with its problems."""

    def __init__(self, group: DeviceGroup, device: int) -> None:
        objective = objective_named("throughput", group.encoding.workload)
        super().__init__(group.encoding, group.sequences, group.split, group.seed, objective)
        self._group, self._device = group, device
        self.own = group.own[device]

    def scenarios(self, which: SetName) -> Scenarios:
        """The set's passes as this device meets them, timed under the present factors."""
        key = (which, self.factors)
        if key in self._scenarios:
            return self._scenarios[key]
        group, devices = self._group, self._group.placement.devices
        runs, counts = self._runs(which), self._drawn(which, self.sequences)
        whole = self.shapes(which)
        # the devices that have a sequence more than others hold them up
        shapes = tuple(shape._replace(sequences=-(-shape.sequences // devices)) for shape in whole)
        rows = self.own.rows(counts)
        mean = None
        if which == "fit":
            share = self.sequences.token_shares(getattr(self.split, which))
            means = (rows > 0).reshape(runs, len(shapes), *rows.shape[1:]).mean(axis=0)
            for index, shape in enumerate(whole):
                if shape.phase == "decode":
                    means[index] = self.own.asked(share, shape.sequences)
            mean = np.tile(means, (runs, 1, 1))
        alone = replace(self.encoding, n_batches=1)
        single = whole[-1].group == 0 and whole[0].weight == 1
        starts = tuple(range(0, runs * len(whole), len(whole))) if single else (0,)
        passes = shapes * runs
        made = alone.scenarios(passes, rows.astype(np.int32), self.factors, mean, starts)
        after = group.busiest_ns(which, passes, counts) - group.expert_ns(passes, rows)
        scenarios = self._scenarios[key] = self.own.scenarios(made, after)
        return scenarios

    def problem(self, which: SetName, *, plain: bool = False) -> Problem:
        """The problem of this device on one set; passes count as often as they stand for."""
        model = self.encoding.profile.model
        return Problem(
            self.own.stages(self.encoding.stages(self.factors)),
            self.scenarios(which),
            self.encoding.memory_bytes,
            self.encoding.slot_bytes,
            max(layer.top_k for layer in model.layers),
        )
