"""What passes demand, and how long their computation takes: the data of a problem.

Tables of [passes, stages] or [passes, stages, items], in integers, checked once and then read only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError

__all__ = ["Scenarios"]

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Scenarios:
    """Passes, laid end to end in the order in which they run.

    Attributes
    ----------
    prologue_ns
        [passes, stages]: computed before the start unit is waited for.
    lead_ns
        [passes, stages]: computed once the start unit is there; then the demand is known.
    demand
        [passes, stages, items]: rows asked of each item; 0 where it is not demanded.
    work_ns
        [passes, stages, items]: time of the work on each demanded item; 0 elsewhere.
    epilogue_ns
        [passes, stages]: computed at a stage's end.
    weight
        [passes]: how many passes of the whole each one stands for.
    mean_demanded
        [passes, stages, items]: probability that the item is demanded in a pass of this kind, from
        more data than the scenarios themselves; None where there is no better estimate.
    start_lead_ns
        [passes, stages]: added to the lead where the stage's start unit is not resident (it takes
        back what it changed); None: nothing.
    run_starts
        Passes at which a new run begins, with nothing but the residents in memory; others go on
        from the pass before.
    host_work_ns
        [passes, stages, items]: time of the work on each demanded item where it lies, on the host,
        with what its rows take there and back; None: there is no host that works.
    asking_ns
        [passes, stages]: added to the lead where a later stage looks ahead from this one; None: 0.
    short
        [passes]: 0 where stages copy their whole ``start``, else, counted from 1, which of their
        ``short_starts`` instead; None: all are whole.
    """

    prologue_ns: Int64
    lead_ns: Int64
    demand: Int32
    work_ns: Int64
    epilogue_ns: Int64
    weight: Int64
    mean_demanded: npt.NDArray[np.float64] | None = None
    run_starts: tuple[int, ...] = (0,)
    start_lead_ns: Int64 | None = None
    host_work_ns: Int64 | None = None
    short: Int64 | None = None
    asking_ns: Int64 | None = None

    def __post_init__(self) -> None:
        passes, stages, _ = self.demand.shape
        host = () if self.host_work_ns is None else ("host_work_ns",)
        if host and getattr(self, *host).shape != self.demand.shape:
            raise OptionError("scenarios: host_work_ns does not fit demand")
        leads = ("start_lead_ns", "asking_ns")
        back = tuple(name for name in leads if getattr(self, name) is not None)
        for name in ("prologue_ns", "lead_ns", "epilogue_ns", *back):
            if getattr(self, name).shape != (passes, stages):
                raise OptionError(f"scenarios: {name} is not [{passes}, {stages}]")
        if self.work_ns.shape != self.demand.shape or self.weight.shape != (passes,):
            raise OptionError("scenarios: work_ns or weight does not fit demand")
        if self.short is not None:
            if self.short.shape != (passes,):
                raise OptionError(f"scenarios: short is not [{passes}]")
            if passes and int(self.short.min()) < 0:
                raise OptionError("scenarios: short has a negative entry")
            self.short.setflags(write=False)
        always = ("prologue_ns", "lead_ns", "demand", "work_ns", "epilogue_ns", "weight")
        for name in (*always, *back, *host):
            array = getattr(self, name)
            if array.size and int(array.min()) < 0:
                raise OptionError(f"scenarios: {name} has a negative entry")
            array.setflags(write=False)
        starts = self.run_starts
        if passes and (starts[:1] != (0,) or list(starts) != sorted(set(starts))):
            raise OptionError("scenarios: run_starts does not ascend from 0")
        if passes and starts[-1] >= passes:
            raise OptionError("scenarios: a run begins after the last pass")
        for name in ("work_ns", *host):
            if bool((getattr(self, name)[self.demand == 0] != 0).any()):
                raise OptionError("scenarios: work on an item that is not demanded")

    @property
    def passes(self) -> int:
        """Number of passes."""
        return int(self.demand.shape[0])

    @cached_property
    def shortened(self) -> list[int]:
        """[passes]: ``short``, 0 without."""
        return [0] * self.passes if self.short is None else self.short.tolist()

    @cached_property
    def order(self) -> list[list[list[tuple[int, int]]]]:
        """[passes][stages]: demanded (item, work_ns), most rows first, ties by index."""
        table: list[list[list[tuple[int, int]]]] = []
        ranked = np.argsort(-self.demand, axis=2, kind="stable")
        counts = (self.demand > 0).sum(axis=2)
        for index in range(self.passes):
            row = []
            for stage in range(self.demand.shape[1]):
                chosen = ranked[index, stage, : counts[index, stage]]
                work = self.work_ns[index, stage, chosen]
                row.append(list(zip(chosen.tolist(), work.tolist(), strict=True)))
            table.append(row)
        return table

    @cached_property
    def compute_ns(self) -> Int64:
        """[passes, stages]: all computation of a stage."""
        total: Int64 = self.prologue_ns + self.lead_ns + self.work_ns.sum(axis=2) + self.epilogue_ns
        return total

    def runs(self) -> list[range]:
        """The passes of each run."""
        ends = [*self.run_starts[1:], self.passes]
        return [range(*pair) for pair in zip(self.run_starts, ends, strict=True)]

    def with_weight(self, weight: Int64) -> Scenarios:
        """The same passes, counted otherwise."""
        return dataclasses.replace(self, weight=weight)

    def take_runs(self, count: int) -> Scenarios:
        """Only the first ``count`` runs."""
        return self.take_passes(([*self.run_starts, self.passes])[min(count, len(self.run_starts))])

    def take_passes(self, count: int) -> Scenarios:
        """Only the first ``count`` passes."""
        return self._taken(range(min(count, self.passes)))

    def every(self, step: int) -> Scenarios:
        """Only every so many passes of each run."""
        return self._taken([index for run in self.runs() for index in run[::step]])

    def _taken(self, passes: Sequence[int]) -> Scenarios:
        """Only these passes, in ascending order; a run begins with the first that is left of it."""
        kept = np.array(passes, dtype=np.int64)
        arrays = {
            one.name: array[kept]
            for one in dataclasses.fields(self)
            if isinstance(array := getattr(self, one.name), np.ndarray)
        }
        starts = {int(np.searchsorted(kept, start)) for start in self.run_starts}
        return dataclasses.replace(self, **arrays, run_starts=tuple(sorted(starts - {len(kept)})))
