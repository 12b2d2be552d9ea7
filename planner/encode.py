"""From documents to the solvers' problem, and from its schedules back to policies.

Stage l of the problem is layer l, the last stage is the head. Durations come from the cost
profile's curves and are rounded up; memory is what ``planner.memory`` says, to the byte.

While computing and copying overlap they slow each other down. With c the share of copying that
lies beside computation and d the share of computation that lies beside copying, copies take
``1 + c (copy_slowdown - 1)`` as long as alone, and computation ``1 + d (compute_slowdown - 1)``:
see ``Factors``. A paced link takes at least bytes over its pace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.documents import (
    OWN,
    Channel,
    Curve,
    FormName,
    HostCompute,
    MemoryAccount,
    Policy,
    RawCopies,
    Workload,
)
from planner.factors import Factors, LeadTimes
from planner.form_costs import expert_curve, form_places, slowdown_of
from planner.host import host_times
from planner.kv import Written, write_price
from planner.kv_copies import Copied, KvCopies, evenly
from planner.link import copy_link
from planner.memory import (
    EXPERT_TILE_ROWS,
    account_device,
    default_head_tiling,
    dense_slot_bytes,
    head_tile_bytes,
    held_expert_bytes,
    held_form_bytes,
    slot_bytes,
)
from planner.profiles import Profile
from planner.scenarios import PassShape
from planner.sides import attended, embedded, parts_of, tokens_each
from planner.stages import Grid, Start, batch_times, layer_policies, schedule_of, spread
from solvers.errors import UnsupportedError
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Scenarios, Stage, Unit

__all__ = ["DTYPE_BYTES", "Encoding", "schedule_of"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

UnitKind = Literal["dense", "kv", "expert", "raw", "head"]


@dataclass(frozen=True, eq=False)
class Encoding:
    """One choice of n and b, ready to make problems.

    Attributes
    ----------
    profile, workload
        What it is made from.
    n_batches, batch_size
        The group.
    memory_bytes
        Device budget.
    chunk_bytes
        Piece of a copy.
    kv
        Where keys and values lie, as in ``Policy``: with ``below`` those that a layer has by then
        are part of its start unit, with ``batches`` a layer is several stages.
    raw
        By layer: experts read as they are, of a store that has them compressed, too; empty: none.
    """

    profile: Profile
    workload: Workload
    n_batches: int
    batch_size: int
    memory_bytes: int
    chunk_bytes: int
    kv: Literal["below", "batches"] | None = None
    raw: tuple[frozenset[int], ...] = ()

    @property
    def group(self) -> int:
        """Sequences of a full group."""
        return min(self.n_batches * self.batch_size, self.workload.requests)

    @property
    def grid(self) -> Grid:
        """Which stage is whose."""
        each = self.n_batches + 1 if self.kv == "batches" else 1
        return Grid(len(self.profile.model.layers), each)

    @property
    def dtype_bytes(self) -> int:
        """Width of the computing type."""
        return DTYPE_BYTES[self.profile.costs.dtype]

    @cached_property
    def tiling(self) -> tuple[int, int]:
        """Rows of a head tile, and number of tiles."""
        return default_head_tiling(self.profile.model, self.dtype_bytes)

    def account(self, schedule: Schedule) -> MemoryAccount:
        """Device memory under a schedule."""
        model, policy = self.profile.model, self.policy(schedule)
        return account_device(model, policy, self.workload, self.dtype_bytes, self.memory_bytes)

    @cached_property
    def fixed(self) -> MemoryAccount:
        """Device memory that no decision of the problem changes: KV, workspace, logits, ..."""
        return self.account(Schedule((StageChoice(),) * self.grid.stages, 0, 0, 0))

    @property
    def fixed_bytes(self) -> int:
        """All of ``fixed``."""
        return self.fixed.peak_bytes

    @property
    def slot_bytes(self) -> int:
        """Device memory of one slot for experts and head tiles."""
        model, forms = self.profile.model, self.profile.forms
        return slot_bytes(model, self.tiling[0], self.dtype_bytes, forms)

    @property
    def capacity_bytes(self) -> int:
        """What is left for residents and slots; negative where not even the rest fits."""
        return self.memory_bytes - self.fixed_bytes

    @cached_property
    def link(self) -> Channel:
        """The copy channel: from the disk, or to a GPU from host memory."""
        return copy_link(self.profile.hardware)

    @property
    def raw_copies(self) -> RawCopies:
        """Copies of experts as they are, where the store has both."""
        raw = self.profile.costs.raw
        if raw is None:
            raise UnsupportedError("costs: copies of experts as they are were not measured")
        return raw

    # Problem -----------------------------------------------------------------------------------

    def stages(self, factors: Factors, shapes: Iterable[PassShape] = ()) -> tuple[Stage, ...]:
        """Units with their sizes and copy times, and start units as passes of these shapes copy
        them, numbered as ``scenarios`` does."""
        model, each = self.profile.model, self.grid.each
        copied = (None, *self.kept.numbers(shapes))
        stages: list[Stage] = []
        for layer in model.layers:
            for batch in self.grid.batches:
                at = Start(layer.index, batch)
                whole, *short = (self.start_unit(at, one, factors.copy) for one in copied)
                stages.append(Stage(whole, (), short_starts=tuple(short)))
            held = held_expert_bytes(layer)
            own = self.profile.forms[layer.index] if self.profile.forms else ()
            forms = own or (OWN,) * layer.experts
            units = {form: self.expert_unit(layer.index, form, factors.copy) for form in {*forms}}
            items = [units[form] for form in forms]
            for item in self.raw[layer.index] if self.raw else ():
                items[item] = self._unit("raw", layer.expert_bytes, held, factors.raw)
            first = stages.pop() if each == 1 else Stage(None, ())
            stages.append(replace(first, items=tuple(items)))
        rows, tiles = self.tiling
        row_bytes = model.hidden_size * self.dtype_bytes
        held = head_tile_bytes(model, rows, self.dtype_bytes)
        sizes = [min(rows, model.vocab_size - tile * rows) * row_bytes for tile in range(tiles)]
        tile_units = tuple(self._unit("head", size, held, factors.copy) for size in sizes)
        return (*stages, Stage(None, tile_units, sequential=True))

    def expert_unit(self, layer: int, form: FormName, factor: float = 1.0) -> Unit:
        """One of a layer's experts in a form."""
        model = self.profile.model
        held = held_form_bytes(model, layer, form)
        return self._unit("expert", model.form_bytes(layer, form), held, factor)

    @cached_property
    def kept(self) -> KvCopies:
        """What copies bring of keys and values."""
        model, workload, below = self.profile.model, self.workload, self.kv is not None
        sizes = self.group, self.dtype_bytes, self.chunk_bytes
        batch = min(self.batch_size, self.group) if self.kv == "batches" else None
        return KvCopies(model, workload, *sizes, below, batch)

    def start_unit(self, at: Start, copied: Copied | None, factor: float) -> Unit:
        """What a pass copies of a start unit; None: all that it may have."""
        layer, held = at.layer, self.kept.room_bytes(at.layer)
        if at.batch is not None:
            size = self.kept.batch_bytes(layer, at.batch, copied)
            # what brings nothing takes no time, and a slot all the same
            return self._unit("kv", size, held, factor) if size else Unit(0, held)
        size = self.kept.start_bytes(layer, None if copied is None else copied.columns)
        held += dense_slot_bytes(self.profile.model, layer)
        parts = self.kept.parts(layer, size) if self.profile.model.stored else ()
        if not parts:
            return self._unit("dense", size, held, factor)
        total = sum(count * self.copy_ns(part, factor, kind) for kind, part, count in parts)
        return evenly(total, size, held, self.chunk_bytes)

    def write_kv_ns(
        self, shape: PassShape, layer: int, factors: Factors, batch: int | None = None
    ) -> int:
        """Writing that of all batches back, or of one, where it lies below."""
        return self.writing_ns(self.kept.written(shape, layer, batch), shape.phase, factors)

    def writing_ns(self, written: Written, phase: str, factors: Factors) -> int:
        """Such writes in a phase."""
        as_read = partial(self.copy_ns, factor=factors.copy, kind="kv")
        paced, factor = self.link.paced_bytes_per_second, factors.of(phase)
        price = write_price(self.profile.costs, factor, paced, as_read, self.kept.wait_bytes)
        return written.total_ns(price)

    def lost_beside_ns(self, shape: PassShape, layer: int, batch: int | None = None) -> int:
        """By how much the channel is later for these writes, where it reads all the while."""
        writes = self.profile.costs.kv_writes
        if writes is None or writes.lost is None:
            return 0
        return self.kept.written(shape, layer, batch).total_ns(writes.lost)

    def _unit(self, kind: UnitKind, size_bytes: int, held_bytes: int, factor: float) -> Unit:
        chunks = max(-(-size_bytes // self.chunk_bytes), 1)
        last = self.copy_ns(size_bytes - (chunks - 1) * self.chunk_bytes, factor, kind)
        whole = self.copy_ns(self.chunk_bytes, factor, kind) if chunks > 1 else 0
        return Unit(size_bytes, held_bytes, chunks, whole, last, self.chunk_bytes)

    def copy_ns(self, size_bytes: int, factor: float = 1.0, kind: UnitKind = "expert") -> int:
        """One chunk on the channel, of which a compressed store has fewer bytes."""
        stored = self.profile.model.stored_share
        share = 1.0 if kind == "raw" or kind == "kv" else stored(kind)
        # neither are keys and values decoded, nor a head that is tied to the embedding
        plain = kind == "raw" or (share == 1.0 and self.profile.costs.raw is not None)
        link, read = self.raw_copies.link if plain else self.link, size_bytes * share
        floor = read * 1e9 / paced if (paced := link.paced_bytes_per_second) else 0.0
        return math.ceil(max(link.alone_ns(read) * factor, floor))

    def scenarios(
        self,
        shapes: tuple[PassShape, ...],
        counts: npt.NDArray[np.int32],
        factors: Factors,
        mean_demanded: npt.NDArray[np.float64] | None = None,
        run_starts: tuple[int, ...] = (0,),
    ) -> Scenarios:
        """Times of passes; ``counts`` is int32 [passes, moe_layers, experts]."""
        model = self.profile.model
        _, tiles = self.tiling
        count = len(model.layers) + 1
        width = max(tiles, max(layer.experts for layer in model.layers))
        shape = (len(shapes), count)
        prologue, lead, back, epilogue, asking = (np.zeros(shape, np.int64) for _ in range(5))
        demand = np.zeros((*shape, width), dtype=np.int32)
        work = np.zeros((*shape, width), dtype=np.int64)
        moe = list(model.moe_layers)
        places_of = form_places(model, self.profile.forms)
        demand[:, moe, : counts.shape[2]] = counts
        leads: dict[tuple[PassShape, tuple[bool, ...]], int] = {}
        for index, one in enumerate(shapes):
            factor = factors.of(one.phase)
            prologue[index, 0] = self._time("embed", embedded(model, one), factor, one.phase)
            for layer in model.layers:
                parts = parts_of(model, layer.index)
                if (one, parts) not in leads:
                    leads[one, parts] = self.lead(one, layer.index, factor).total_ns
                lead[index, layer.index] = leads[one, parts]
                asking[index, layer.index] = self.asking_ns(one, layer.index, factor)
                if self.kv == "below":
                    back[index, layer.index] = self.write_kv_ns(one, layer.index, factors)
                if layer.experts:
                    count = self.rows(one, layer.index)
                    epilogue[index, layer.index] = self._time("combine", count, factor, one.phase)
            rows = demand[index, moe]
            took = self.expert_times(rows, factor, one.phase)
            for form, places in places_of.items():
                there = np.s_[:, : places.shape[1]]
                own = self.expert_times(rows[there], factor, one.phase, form)
                took[there][places] = own[places]
            work[index, moe] = took
            demand[index, -1, :tiles] = one.sequences
            head = self._time("head", one.sequences, factor, one.phase)
            work[index, -1, :tiles] = -(-head // tiles)
            epilogue[index, -1] = self._time("sample", one.sequences, factor, one.phase)
        mean = None
        if mean_demanded is not None:
            mean = np.ones(demand.shape)
            mean[:, :-1] = 0.0
            mean[:, moe, : counts.shape[2]] = mean_demanded
            mean[:, -1, tiles:] = 0.0
        weight = np.array([one.weight for one in shapes], dtype=np.int64)
        # what has been written below by then: where sequences begin, nothing
        kept, numbers = self.kept, self.kept.numbers(shapes)
        short = np.array([numbers.get(kept.copied(one), 0) for one in shapes], dtype=np.int64)
        wrote = None if self.kv is None else back
        host = host_times(self.profile.hardware, self.profile.costs, demand)
        times = prologue, lead, demand, work, epilogue, weight, mean, run_starts, wrote, host
        if self.kv != "batches":
            asked = None if self.profile.arrays.ahead is None else asking
            return Scenarios(*times, None if self.kv is None else short, asked)
        tables = {one: self._batch_times(one, factors) for one in set(shapes)}
        return spread(Scenarios(*times, short), np.stack([tables[one] for one in shapes]))

    def _batch_times(self, shape: PassShape, factors: Factors) -> npt.NDArray[np.int64]:
        """[layers, 2, batches]: attention of each batch, and writing back what it adds."""
        lead = partial(self.lead, shape, factor=factors.of(shape.phase))
        wrote = partial(self.write_kv_ns, shape, factors=factors)
        return batch_times(self.profile.model, self.kept.batches, lead, wrote)

    @cached_property
    def _places(self) -> dict[FormName, npt.NDArray[np.bool_]]:
        return form_places(self.profile.model, self.profile.forms)

    def rows(self, shape: PassShape, layer: int) -> int:
        """Tokens that a layer computes in a pass."""
        return shape.sequences * tokens_each(self.profile.model, shape, layer)

    def lead(self, shape: PassShape, layer: int, factor: float) -> LeadTimes:
        """Attention batch by batch, then what all tokens of the group need."""
        spec, tokens = self.profile.model.layers[layer], self.rows(shape, layer)
        if not tokens:
            return LeadTimes(())
        steps = []
        for batch, first in enumerate(range(0, shape.sequences, self.batch_size)):
            size = min(self.batch_size, shape.sequences - first)
            rows = size * tokens_each(self.profile.model, shape, layer)
            for kind, surface, seen in attended(self.profile, self.workload, shape, layer):
                slowed = self._slowed(kind, factor, shape.phase)
                steps.append((kind, batch, rows, math.ceil(surface(size, seen) * slowed)))
        wanted = [("shared_expert", spec.shared_expert_bytes), ("router", spec.experts)]
        for kind, present in (*wanted, ("dense_mlp", spec.mlp_bytes)):
            if present:
                steps.append((kind, -1, tokens, self._time(kind, tokens, factor, shape.phase)))
        return LeadTimes(tuple(steps))

    def asking_ns(self, shape: PassShape, layer: int, factor: float) -> int:
        """What asking the next router, too, is priced at: as much as the layer's own takes."""
        if layer not in self.profile.model.moe_layers[:-1]:
            return 0
        return self._time("router", self.rows(shape, layer), factor, shape.phase)

    def _time(self, kind: str, rows: int, factor: float, phase: str) -> int:
        curve: Curve = self.profile.costs.curves[kind]  # type: ignore[index]
        tiled = kind in ("dense_mlp", "shared_expert")
        rows_ns = curve.tiled(rows, EXPERT_TILE_ROWS) if tiled else curve(rows)
        return math.ceil(rows_ns * self._slowed(kind, factor, phase))

    def _slowed(self, kind: str, factor: float, phase: str, form: FormName = OWN) -> float:
        """The factor of one kind, where ``factor`` is that of computation in general."""
        costs = self.profile.costs
        general = costs.compute_slowdown.value - 1.0
        own = slowdown_of(costs, kind, phase, form) - 1.0
        return 1.0 + (factor - 1.0) / general * own if general > 0 else factor

    def expert_times(
        self, rows: npt.NDArray[np.int32], factor: float, phase: str, form: FormName = OWN
    ) -> npt.NDArray[np.int64]:
        """Time of each expert that gets ``rows`` [...], in one form."""
        curve = expert_curve(self.profile.costs, form)
        different, places = np.unique(rows, return_inverse=True)
        factor = self._slowed("expert", factor, phase, form)
        times = [
            math.ceil(curve.tiled(int(count), EXPERT_TILE_ROWS) * factor) for count in different
        ]
        table: npt.NDArray[np.int64] = np.array(times, dtype=np.int64)[places]
        return table.reshape(rows.shape)

    def policy(self, schedule: Schedule) -> Policy:
        """The plan's form of a schedule."""
        (rows, tiles), threads = self.tiling, self.profile.costs.threads
        count, each = len(self.profile.model.layers), self.grid.each
        raw, forms = self.raw or (frozenset[int](),) * count, self.profile.forms or ((),) * count
        return Policy(
            n_batches=self.n_batches,
            batch_size=self.batch_size,
            layers=layer_policies(schedule, each, raw, forms),
            head_tile_rows=rows,
            head_tiles=tiles,
            resident_head_tiles=len(schedule.stages[-1].resident),
            slots=schedule.slots,
            dense_slots=schedule.start_slots if each == 1 else 0,
            reserve=schedule.reserve,
            eviction=schedule.eviction,
            chunk_bytes=self.chunk_bytes,
            kv=self.kv,
            kv_slots=schedule.start_slots if each > 1 else None,
            host=None if schedule.host is None else HostCompute(*schedule.host),
            hold=schedule.hold,
            threads=None if threads is None else threads.use,
        )
