"""Measuring experts that are computed in host memory, through the executor's own host path.

A bench whose policy gives the host all that routers demand: the runtime hands their rows to its
``HostWorker``, and what is measured are the events that a real run records, with the copy channel
at rest and with it copying other experts in vain. The way of the rows is timed around what brings
them to the host and adds their outputs; on a GPU, from when the call begins until it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from executor.operations import Operations
from planner.documents import CostProfile, Curve, Event, HostExperts
from planner.documents.base import Source
from planner.memory import EXPERT_TILE_ROWS
from profiler.bench import Bench
from profiler.compute import EXPERT_ROWS, Cell, measure_cell
from profiler.correct import corrected
from profiler.curves import fit_curve
from profiler.layout import BenchPlan, Layout
from profiler.samples import PassSamples
from profiler.seen import Step
from profiler.tasks import Task

__all__ = ["HostSamples", "host_tasks", "refit_host"]

KIND: Literal["host_expert"] = "host_expert"


@dataclass(slots=True)
class HostSamples:
    """Durations of experts on the host with the channel at rest and busy, and of their rows' way
    (``host_way``, in ``alone``)."""

    alone: PassSamples = field(default_factory=PassSamples)
    beside: PassSamples = field(default_factory=PassSamples)

    def fit(self, source: Source = "measured") -> tuple[Curve | None, HostExperts | None]:
        """Curves of all of it; None where nothing was measured."""
        alone, beside, way = (
            self.alone.rows(KIND), self.beside.rows(KIND), self.alone.rows("host_way")
        )  # fmt: skip
        if not alone or not beside or not way:
            return None, None
        others = HostExperts(fit_curve(beside, source), fit_curve(way, source))
        return fit_curve(alone, source), others


def host_tasks(
    layouts: Sequence[Layout],
    groups: Sequence[Sequence[Cell]],
    make_bench: Callable[[BenchPlan], Bench],
    samples: HostSamples,
    cell_ns: int,
) -> list[Task]:
    """One task for decode and one for prefill, of the passes that bring the most tokens.

    Parameters
    ----------
    layouts
        Whose first is taken that holds a bench.
    groups
        Passes, each group smallest first.
    make_bench
        Makes one.
    samples
        Where durations go.
    cell_ns
        How long to measure each kind of pass.
    """
    tasks = []
    for decode in (True, False):
        own = [cells for cells in groups if (cells[0].prompt_tokens is None) == decode]
        cells, plan = _fitting(layouts, max(own, key=lambda cells: cells[-1].tokens))
        if plan is None:
            continue

        def task(plan: BenchPlan = plan, cells: Sequence[Cell] = cells) -> None:
            with make_bench(plan) as bench:
                ways = _Ways(bench.device.operations)
                for cell in cells:
                    for on, into in ((False, samples.alone), (True, samples.beside)):
                        bench.stream(on=on)
                        measure_cell(bench, cell, into, cell_ns, kind=KIND)
                    ways.into(samples.alone)

        kind = "decode" if decode else "prefill"
        estimate = 2 * (cell_ns + 50_000_000) * len(cells) + 200_000_000
        tasks.append(Task(f"experts on the host, {kind}", estimate, task))
    return tasks


def _fitting(
    layouts: Sequence[Layout], cells: Sequence[Cell]
) -> tuple[Sequence[Cell], BenchPlan | None]:
    """The cells that fit, and a bench for the largest of them."""
    for end in range(len(cells), 0, -1):
        for layout in layouts:
            plan = layout.hosting(cells[end - 1].workload)
            if plan is not None:
                return cells[:end], plan
    return (), None


class _Ways:
    """Times what brings rows to the host and adds their outputs."""

    def __init__(self, operations: Operations) -> None:
        there, back = operations.host_rows, operations.add_outputs
        going: dict[int, int] = {}
        self._found: list[tuple[int, int]] = []

        def rows(expert: int) -> torch.Tensor:
            begin = time.perf_counter_ns()
            found = there(expert)
            going[expert] = time.perf_counter_ns() - begin
            return found

        def add(expert: int, outputs: torch.Tensor) -> None:
            begin = time.perf_counter_ns()
            back(expert, outputs)
            took = time.perf_counter_ns() - begin
            self._found.append((len(outputs), going.pop(expert) + took))

        # on the instance, as a bench replaces its router
        vars(operations).update(host_rows=rows, add_outputs=add)

    def into(self, samples: PassSamples) -> None:
        """What was timed since the last call, of sizes that experts are measured at."""
        for rows, took in self._found:
            if rows in EXPERT_ROWS:
                samples.by_rows["host_way", rows].append(took)
        self._found.clear()


# --- corrections by runs -------------------------------------------------------------------------


def refit_host(costs: CostProfile, events: Iterable[Event]) -> tuple[CostProfile, Step | None]:
    """Correct a measured host's curves, both alike, by a run's events, held against what is said of
    an expert beside copies.

    None, and the costs as they were, where there is nothing to correct: figures from data sheets
    hold the way of the rows, which no event does, and stay.
    """
    own = [event for event in events if event.kind == KIND and event.rows]
    if costs.hosting is None or costs.host_expert is None or not own:
        return costs, None
    after = _moved(costs, own)
    held_out = None
    if len(own) > 1:
        held_out = _took(own[1::2]) / max(_says(_moved(costs, own[::2]), own[1::2]), 1)
    step = Step(KIND, len(own), _took(own), _says(costs, own), _says(after, own), held_out)
    return after, step


def _moved(costs: CostProfile, events: Sequence[Event]) -> CostProfile:
    alone, measured = costs.host_expert, costs.hosting
    if alone is None or measured is None:
        return costs
    samples = [
        (one.rows, float(_took([one])), float(max(_says(costs, [one]), 1))) for one in events
    ]
    return replace(
        costs,
        host_expert=corrected(alone, samples, longer=False),
        hosting=replace(measured, beside=corrected(measured.beside, samples, longer=False)),
    )


def _took(events: Iterable[Event]) -> int:
    return sum(one.end_ns - one.start_ns for one in events)


def _says(costs: CostProfile, events: Iterable[Event]) -> int:
    if costs.hosting is None:
        return 0
    curve = costs.hosting.beside
    return sum(curve.tiled(one.rows, EXPERT_TILE_ROWS) for one in events)
