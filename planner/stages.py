"""Stages of the problem and layers of a policy: which is which, and one from the other.

Elsewhere a layer is one stage, which waits for its dense part. Where the keys and values of each
batch are copied by themselves (``Policy.kv`` is ``batches``), batch k of n of layer l is stage
l (n + 1) + k, which waits for those of the batch in that layer, and the layer's experts are stage
l (n + 1) + n, which waits for nothing. The last stage is the head either way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from planner.documents import FormName, LayerPolicy, ModelSpec, Policy
from planner.factors import LeadTimes
from planner.sides import parts_of
from solvers.outcome import HostShare, Schedule, StageChoice
from solvers.problem import Scenarios

__all__ = ["Grid", "Start", "batch_times", "layer_policies", "schedule_of", "spread"]

Int64 = npt.NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)


class Start(NamedTuple):
    """What a stage waits for: a layer's start unit, or keys and values of one of its batches."""

    layer: int
    batch: int | None


@dataclass(frozen=True)
class Grid:
    """Which stage is whose: of so many ``layers``, of ``each`` so many stages."""

    layers: int
    each: int

    @property
    def stages(self) -> int:
        """All stages, with the head's."""
        return self.layers * self.each + 1

    @property
    def batches(self) -> tuple[int | None, ...]:
        """What the stages of a layer wait for, in order: batches, or (None) its dense part."""
        return (None,) if self.each == 1 else tuple(range(self.each - 1))

    @property
    def starts(self) -> list[Start | None]:
        """What each stage waits for, in order; of the head, and of experts alone, None."""
        found: list[Start | None] = []
        for layer in range(self.layers):
            found += [Start(layer, batch) for batch in self.batches]
            found += [None] * (self.each > 1)
        return [*found, None]

    def layer(self, stage: int) -> int:
        """The layer of a stage; the number of layers for the head."""
        return stage // self.each

    def batch(self, stage: int) -> int:
        """The batch whose attention alone is a stage; -1 for others."""
        part = stage % self.each
        return part if part < self.each - 1 and stage < self.stages - 1 else -1


def layer_policies(
    schedule: Schedule,
    each: int,
    raw: Sequence[frozenset[int]],
    forms: Sequence[tuple[FormName, ...]],
) -> tuple[LayerPolicy, ...]:
    """The plan's form of a schedule's choices for layers of ``each`` so many stages; formats and
    forms are by layer."""
    stages = schedule.stages[:-1]
    found = []
    for first, own_raw, own_forms in zip(range(0, len(stages), each), raw, forms, strict=True):
        *batches, choice = stages[first : first + each]
        found.append(
            LayerPolicy(
                choice.start_resident or each > 1,
                choice.resident,
                choice.prefetch,
                "lookahead" if choice.looks_ahead else "plan",
                tuple(sorted(own_raw - set(choice.resident))),
                own_forms,
                choice.waits,
                tuple(batch for batch, one in enumerate(batches) if one.start_resident),
            )
        )
    return tuple(found)


def schedule_of(policy: Policy) -> Schedule:
    """The solvers' form of a policy: the inverse of ``Encoding.policy``, but that it knows of no
    other predictor than ``lookahead``."""
    stages: list[StageChoice] = []
    for layer in policy.layers:
        batches = range(policy.stages_each - 1)
        stages += [StageChoice(batch in layer.kv_resident) for batch in batches]
        starts = layer.dense_resident and not batches
        looks = layer.predictor == "lookahead"
        stages.append(StageChoice(starts, layer.resident, layer.prefetch, looks, layer.waits))
    kept = policy.resident_head_tiles
    head = StageChoice(False, tuple(range(kept)), tuple(range(kept, policy.head_tiles)))
    host = None if policy.host is None else HostShare(policy.host.rows, policy.host.percent)
    sizes = policy.slots, policy.start_slots, policy.reserve
    return Schedule((*stages, head), *sizes, policy.eviction, host, policy.hold)


def batch_times(
    model: ModelSpec,
    batches: int,
    lead: Callable[[int], LeadTimes],
    wrote: Callable[..., int],
) -> Int64:
    """[layers, 2, batches]: in a pass attention of each batch, and writing back what it adds.

    Parameters
    ----------
    model
        Whose layers; those that are alike take as long.
    batches
        Of a full group.
    lead
        Of a layer.
    wrote
        Writing back of a layer what ``batch`` adds, in ns.
    """
    found: dict[tuple[object, ...], tuple[list[int], list[int]]] = {}
    made = []
    for layer in model.layers:
        like = parts_of(model, layer.index), layer.kv_bytes_per_token
        if like not in found:
            writes = [wrote(layer.index, batch=batch) for batch in range(batches)]
            found[like] = lead(layer.index).of_batches(batches), writes
        made.append(found[like])
    return np.array(made, dtype=np.int64)


def spread(scenarios: Scenarios, times: Int64) -> Scenarios:
    """Passes whose stages are layers, with each batch's attention as a stage of its own.

    Parameters
    ----------
    scenarios
        With all of a layer's lead in one stage, and nothing written back.
    times
        [passes, layers, 2, batches]: what attention of each batch takes of that, and writing back
        what it adds where that does not stay.
    """
    attention, back = times[:, :, 0], times[:, :, 1]
    _, layers, batches = attention.shape
    grid = Grid(layers, batches + 1)
    last = grid.stages - 1
    experts = slice(batches, last, grid.each)

    def placed(table: npt.NDArray[_T]) -> npt.NDArray[_T]:
        made = np.zeros((len(table), grid.stages, *table.shape[2:]), dtype=table.dtype)
        made[:, experts], made[:, last] = table[:, :-1], table[:, -1]
        return made

    lead, mean = placed(scenarios.lead_ns), scenarios.mean_demanded
    prologue, writes = np.zeros_like(lead), np.zeros_like(lead)
    prologue[:, 0] = scenarios.prologue_ns[:, 0]
    lead[:, experts] -= attention.sum(axis=2)
    for batch in range(batches):
        lead[:, batch : last : grid.each] = attention[:, :, batch]
        writes[:, batch : last : grid.each] = back[:, :, batch]
    return dataclasses.replace(
        scenarios,
        prologue_ns=prologue,
        lead_ns=lead,
        demand=placed(scenarios.demand),
        work_ns=placed(scenarios.work_ns),
        epilogue_ns=placed(scenarios.epilogue_ns),
        mean_demanded=None if mean is None else placed(mean),
        start_lead_ns=writes,
    )
