"""Measuring a machine and a model: all benches, one hardware and one cost document."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import get_args

from executor.memory import Backend, CpuBackend
from executor.reference import Reference
from executor.source import WeightSource
from executor.threads import ComputeThreads
from planner.documents import (
    OWN,
    Channel,
    CostProfile,
    Curve,
    Figure,
    FormName,
    Hardware,
    ModelSpec,
    RawCopies,
    Surface,
    ThreadTimes,
    ThreadUse,
    document_hash,
)
from planner.documents.base import Source
from planner.documents.costs import OperationKind
from planner.smallest import CHUNK_BYTES
from profiler.bench import Bench, Tokens
from profiler.burst import Rested
from profiler.compute import Cell, decode_cells, fitting, measure_cell, prefill_cells, too_little
from profiler.contention import contend, kind_slowdowns, slowdowns
from profiler.curves import drifting, fit_curve, fit_surface
from profiler.effort import Effort
from profiler.forms import FormSamples, Pairs, form_curves, form_slowdowns
from profiler.host import HostSamples, host_tasks
from profiler.in_runs import as_in_runs
from profiler.kv import WriteSamples, measure_writes
from profiler.layout import SLOTS, BenchPlan, Layout, copying
from profiler.link import CopySample, copies_alone, copies_for_a_moment, fit_link
from profiler.machine import describe_machine
from profiler.observed import Observed
from profiler.samples import PassSamples
from profiler.tasks import Task
from profiler.threads import measure_threads
from solvers.counting import counted

__all__ = ["Measurement"]

_MOST_PREFILL_TOKENS = 1024
"""Attention and experts compute in tiles of fewer rows: more tokens cost in proportion."""
_CONTENTION_CELLS = 8
"""Contention takes as long as so many kinds of pass: it is a difference, which needs more."""
_REFERENCE_NS = 25_000_000
"""For each of these in a cell one moment of the reference after it: about a quarter more time.
Single moments of 5 ms scattered by 0.23 where the means of five seconds did by 0.14, four by 0.17.
"""


@dataclass(slots=True)
class Measurement:
    """Everything that is measured of one machine and one model, and how.

    Parameters
    ----------
    source
        Weights.
    memory_bytes
        Device budget of every bench.
    tokens
        What is embedded.
    paced_bytes_per_second
        Bandwidth to hold reads to.
    effort
        How long.
    backend
        Kind of device.

    Attributes
    ----------
    runs
        What real runs beside the measuring did.
    threads
        What computes; where it is not given, ``choose_threads`` finds it.
    """

    source: WeightSource
    memory_bytes: int
    tokens: Tokens
    paced_bytes_per_second: int | None = None
    effort: Effort = field(default_factory=Effort)
    backend: Backend = field(default_factory=CpuBackend)
    samples: PassSamples = field(default_factory=PassSamples)
    copies: list[CopySample] = field(default_factory=list)
    pairs: Pairs = field(default_factory=list)
    prefill_pairs: Pairs = field(default_factory=list)
    raw_copies: list[CopySample] = field(default_factory=list)
    rested: Rested = field(default_factory=Rested)
    raw_pairs: Pairs = field(default_factory=list)
    writes: WriteSamples = field(default_factory=WriteSamples)
    form_samples: dict[FormName, FormSamples] = field(default_factory=dict)
    host: HostSamples = field(default_factory=HostSamples)
    runs: list[Observed] = field(default_factory=list)
    threads: ThreadTimes | None = None
    reference: Reference = field(default_factory=Reference)
    order: Random = field(default_factory=lambda: Random(0))

    def __post_init__(self) -> None:
        self.reference.moments = max(self.effort.cell_ns // _REFERENCE_NS, 1)

    @property
    def model(self) -> ModelSpec:
        """The whole model."""
        return self.source.model

    @property
    def _tag(self) -> Source:
        return "paced" if self.paced_bytes_per_second else "measured"

    def tasks(self) -> list[Task]:
        """What there is to measure, with estimates.

        Raises
        ------
        BudgetError
            If the budget does not hold the smallest bench.
        """
        rounds = (task for _ in range(self.effort.rounds) for task in self._round())
        return [*self.burst_tasks(), *rounds]

    def _round(self) -> list[Task]:
        layout = Layout(self.model, self.memory_bytes)
        tasks = []
        for chunk in CHUNK_BYTES:
            tasks += self.link_tasks(chunk)
            if self.source.both:
                tasks += self.link_tasks(chunk, raw=True)
        tasks.append(Task("writes of keys and values", 12 * self.effort.cell_ns, self._writes))
        groups = [*decode_cells(self.model), *prefill_cells(self.model, _MOST_PREFILL_TOKENS)]
        for cells in groups:
            fitted, plan = fitting(layout, cells)
            if plan is None:
                continue
            first = fitted[0]
            kind = "decode" if first.prompt_tokens is None else "prefill"
            what = f"{kind} at {counted(first.context, 'token')}"
            estimate = (self.effort.cell_ns + 50_000_000) * len(fitted) + 100_000_000
            tasks.append(Task(what, estimate, self._compute(fitted, plan)))
        decoding = any(task.what.startswith("decode") for task in tasks)
        if not decoding or not any(task.what.startswith("prefill") for task in tasks):
            raise too_little(self.model, self.memory_bytes)
        tasks += self._form_tasks(groups)
        if self.backend.link == "h2d" and not self.model.encoder:
            sizes = self.model, self.memory_bytes
            layouts = [
                Layout(*sizes, slots, stream=True, chunk_bytes=self._beside_chunk)
                for slots in SLOTS[:-1]
            ]
            tasks += host_tasks(layouts, groups, self._bench, self.host, self.effort.cell_ns)
        tasks += self._contention_tasks()
        if self.source.both:
            tasks += self._contention_tasks(raw=True)
        for one in self.model.forms or ():
            tasks += self._contention_tasks(form=one.name)
        return tasks

    def choose_threads(self) -> None:
        """Measure how many threads serve best what comes after, where the CPU computes."""
        sizes = self.model, self.memory_bytes
        if self.backend.name == "cpu" and self.threads is None:
            self.threads = measure_threads(*sizes, self._bench, self.effort.cell_ns)
        self.reference.threads = ComputeThreads(self.use)

    @property
    def use(self) -> ThreadUse | None:
        """Of ``threads``."""
        return None if self.threads is None else self.threads.use

    # --- copies -------------------------------------------------------------------------------

    def link_tasks(self, chunk: int, *, raw: bool = False) -> list[Task]:
        """Copies alone, with as many slots as fit; none where this chunk size does not fit.

        ``raw``: of experts as they are, of a store that has them compressed, too.
        """
        copies = self.raw_copies if raw else self.copies
        plan = copying(self.model, self.memory_bytes, chunk, raw=raw)
        if plan is None:
            return []
        filled = plan.policy.slots * self.model.layers[plan.moe_layer].expert_bytes

        def task() -> None:
            with self._bench(plan) as bench:
                # first touches of the slots' pages, which a run has behind it
                copies_alone(bench, self.order)
                for _ in range(self.effort.fills):
                    copies.extend(copies_for_a_moment(bench, self.order, self.effort.moment_ns))
                    self.reference.take()

        what = "copies of raw experts" if raw else "copies"
        estimate = filled + max(filled, self.effort.moment_ns) * self.effort.fills + 200_000_000
        return [Task(f"{what} in pieces of {chunk >> 10} KiB", estimate, task)]

    def burst_tasks(self, most: int = 5) -> list[Task]:
        """Does a drive that has rested read ahead of the rate that lasts? Not asked where reads are
        paced. ``most``: streams of each link."""
        if self.paced_bytes_per_second or self.backend.link != "disk" or not self.effort.stream_ns:
            return []
        how = self.source, self.memory_bytes, self._bench, self.order, self.effort.stream_ns
        return self.rested.tasks(*how, most)

    def _writes(self) -> None:
        each_ns = self.effort.cell_ns // 2
        sizes = self.source, self.backend.name, self.memory_bytes
        measure_writes(*sizes, self.writes, each_ns, self.order)
        self.reference.take()

    # --- computation --------------------------------------------------------------------------

    def _compute(
        self, cells: Sequence[Cell], plan: BenchPlan, samples: PassSamples | None = None
    ) -> Callable[[], None]:
        into = self.samples if samples is None else samples

        def task() -> None:
            with self._bench(plan) as bench:
                for cell in cells:
                    measure_cell(bench, cell, into, self.effort.cell_ns)
                    self.reference.take()

        return task

    def _form_tasks(self, groups: Sequence[Sequence[Cell]]) -> list[Task]:
        """Experts in each quantized form that the store has beside the checkpoint's own: at one
        context in decode, and at the prompts that bring the most tokens in prefill."""
        kinds = [[cells for cells in groups if (cells[0].prompt_tokens is None) == one] for one in
                 (True, False)]  # fmt: skip
        chosen = [max(some, key=lambda cells: cells[-1].tokens) for some in kinds]
        tasks = []
        for form in self.model.forms or ():
            samples = self.form_samples.setdefault(form.name, FormSamples()).alone
            layout = Layout(self.model, self.memory_bytes, form=form.name)
            for cells in chosen:
                fitted, plan = fitting(layout, cells)
                if plan is not None:
                    estimate = (self.effort.cell_ns + 50_000_000) * len(fitted) + 100_000_000
                    task = self._compute(fitted, plan, samples)
                    tasks.append(Task(f"experts in {form.name}", estimate, task))
        return tasks

    # --- contention ---------------------------------------------------------------------------

    def _contention_tasks(self, *, raw: bool = False, form: FormName = OWN) -> list[Task]:
        tasks, effort = [], self.effort
        both = bool(self.model.encoder)
        cells = (
            (Cell(1, None, 32, both), 1),
            (Cell(16, None, 32, both), 4),
            (Cell(8, 32, 32, both), 128),
        )
        # of a form experts alone are asked, once in each phase
        for cell, rows in cells if form == OWN else cells[1:]:
            layout = Layout(
                self.model, self.memory_bytes, chunk_bytes=self._beside_chunk, raw=raw, form=form
            )
            everything = form == OWN and not raw
            streaming = layout.streaming_computed if everything else layout.streaming
            plan = streaming(cell.workload)
            if plan is None:
                continue
            decoding = cell.prompt_tokens is None
            pairs = self.pairs if decoding else self.prefill_pairs
            if raw:
                pairs = self.raw_pairs
            elif form != OWN:
                own = self.form_samples[form]
                pairs = own.decode if decoding else own.prefill

            def task(
                plan: BenchPlan = plan, cell: Cell = cell, rows: int = rows, pairs: Pairs = pairs
            ) -> None:
                with self._bench(plan) as bench:
                    least = _CONTENTION_CELLS * effort.cell_ns
                    pairs += contend(bench, cell, rows, effort.passes, effort.turns, least)
                self.reference.take()

            what = "computing" if form == OWN else f"computing experts in {form}"
            tasks.append(Task(f"copying beside {what}", 2_000_000_000, task))
        return tasks

    @property
    def _beside_chunk(self) -> int:
        """Pieces of the copies beside which compute is measured.

        From host memory 1 MiB takes no longer than Python needs to queue it, and the two threads
        would get in each other's way as in no plan: plans take the largest pieces that fit.
        """
        return CHUNK_BYTES[0] if self.backend.link == "h2d" else 1 << 20

    def _bench(self, plan: BenchPlan) -> Bench:
        # a bench and its runtime know each other: without this the arenas of all benches so far
        # would lie beside the new one until Python thinks of collecting
        gc.collect()
        return Bench(
            self.source,
            replace(plan, policy=replace(plan.policy, threads=self.use)),
            self.memory_bytes,
            self.tokens,
            self.paced_bytes_per_second,
            self.backend,
        )

    # --- documents ----------------------------------------------------------------------------

    def hardware(self) -> Hardware:
        """The machine."""
        channel, folder = self._channel(self.copies), self.source.checkpoint.folder
        threads = None if self.use is None else self.use.count
        return describe_machine(folder, self.memory_bytes, channel, self.backend.processor, threads)

    def _channel(self, copies: Sequence[CopySample]) -> Channel:
        """The link that these went over, or the raw ones."""
        fit = self.rested.spent(fit_link(copies, self._tag), raw=copies is self.raw_copies)
        return Channel(
            self.backend.link,
            fit.bandwidth_bytes_per_second,
            fit.latency_ns,
            self.paced_bytes_per_second,
            fit.burst,
        )

    def _raw(self) -> RawCopies | None:
        """Copies of experts as they are, where the store has both."""
        if not self.raw_copies:
            return None
        link = self._channel(self.raw_copies)
        ratios = slowdowns(self.raw_pairs, self._alone_rate(link, 1.0), self._tag)
        return RawCopies(link, ratios.copy_slowdown, ratios.compute_slowdown)

    def costs(self, hardware: Hardware) -> CostProfile:
        """How long everything takes, on the machine that ``hardware`` says this is."""
        (link,) = hardware.channels
        kinds: list[OperationKind] = [
            "embed", "router", "dense_mlp", "shared_expert", "expert", "combine", "head", "sample",
        ]  # fmt: skip
        curves: dict[OperationKind, Curve] = {
            kind: fit_curve(self.samples.rows(kind)) for kind in kinds if self.samples.rows(kind)
        }
        share = self.model.stored_share("expert")
        both = (*self.pairs, *self.prefill_pairs)
        ratios = slowdowns(both, self._alone_rate(link, share), self._tag)
        host_expert, hosting = self.host.fit()
        costs = CostProfile(
            model_hash=document_hash(self.model),
            hardware_hash=document_hash(hardware),
            dtype=self.model.dtype,  # type: ignore[arg-type]
            curves=curves,
            attention_decode=fit_surface(self.samples.decode),
            attention_prefill=fit_surface(self.samples.prefill),
            cross_decode=_surface(self.samples.cross_decode),
            cross_prefill=_surface(self.samples.cross_prefill),
            copy_slowdown=ratios.copy_slowdown,
            compute_slowdown=ratios.compute_slowdown,
            reference_ns=drifting(self.reference.samples, self.reference.at_once),
            slowdown_by_kind=self._by_kind(self.pairs),
            prefill_slowdown_by_kind=self._by_kind(self.prefill_pairs),
            raw=self._raw(),
            forms=form_curves(self.form_samples),
            form_slowdowns=form_slowdowns(
                self.form_samples, partial(self._alone_rate, link, 1.0), self._tag
            ),
            kv_writes=self.writes.fit(),
            host_expert=host_expert,
            hosting=hosting,
            threads=self.threads,
        )
        # where reads are paced, those of the runs were not
        return costs if self.paced_bytes_per_second else as_in_runs(costs, self.runs)

    def _by_kind(self, pairs: Pairs) -> dict[OperationKind, Figure]:
        found = kind_slowdowns(pairs, self._tag)
        return {kind: found[kind] for kind in get_args(OperationKind) if kind in found}

    def _alone_rate(self, link: Channel, share: float, form: FormName = OWN) -> float:
        """Bytes/s that copies of experts bring over a link, in the pieces that contention was
        measured with; ``share`` of them is read."""
        size = self.model.form_bytes(Layout(self.model, 0).moe_layer, form)
        return size * 1e9 / link.alone_ns(size * share, -(-size // self._beside_chunk))


def _surface(samples: Mapping[tuple[int, int], Sequence[int]]) -> Surface | None:
    """Of what not every model has."""
    return fit_surface(samples) if samples else None
