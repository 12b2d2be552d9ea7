"""A device: residents, slots and buffers under one budget, and the copies into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from executor.adapters import Adapter, ExpertWeights, make_adapter
from executor.adapters.encoder_decoder import EncoderDecoderAdapter
from executor.caps import check_cap
from executor.direct import Pacer, Part, Piece, ReadBuffer
from executor.embedding import Embedding
from executor.encoder_decoder import EncoderDecoderOperations, EncoderDecoderState
from executor.kept import Kept
from executor.layout import Place
from executor.ledger import Ledger
from executor.matrices import STORED, TensorAt, host_tensor, quantized_expert
from executor.memory import Backend, CpuBackend, Lane, Region
from executor.operations import Operations
from executor.schedule import Chunk
from executor.source import WeightSource
from executor.spill import Spill
from executor.state import GroupState
from executor.tokenizer import forced_token, start_tokens
from executor.transfers import Following
from executor.units import Unit, Units, head_tile_span, model_units
from planner.documents import OWN, FormName, Policy, Workload
from planner.memory import (
    PURPOSES,
    account_device,
    aligned,
    context_tokens,
    decode_bytes,
    outside_bytes,
    read_buffer_bytes,
    slot_bytes,
    start_slot_bytes,
)
from solvers.counting import counted
from solvers.errors import UnsupportedError

__all__ = ["DTYPES", "Device"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_PURPOSES = {"dense": "dense", "expert": "experts", "head": "head"}


class Device:
    """Memory of the device tier and what lies in it.

    Everything is reserved from the ledger first, purpose by purpose, exactly as
    ``planner.memory.account_device`` computes it; then residents are read.

    Parameters
    ----------
    source
        Weights.
    policy, workload
        What is to run.
    budget_bytes
        The device budget.
    paced_bytes_per_second
        Bandwidth to hold reads to, or None.
    verify
        Hold every unit that is read against its checksum (stores only).
    progress
        Called with bytes loaded and to be loaded.
    backend
        Kind of device; the CPU if not given.

    Raises
    ------
    BudgetError
        If the budget does not hold the policy, or the GPU or this process's control group not the
        budget.
    """

    def __init__(
        self,
        source: WeightSource,
        policy: Policy,
        workload: Workload,
        budget_bytes: int,
        *,
        paced_bytes_per_second: int | None = None,
        verify: bool = False,
        progress: Callable[[int, int], None] | None = None,
        backend: Backend | None = None,
    ) -> None:
        model = source.model
        self.dtype = DTYPES[model.dtype]
        self.source, self.policy, self._verify = source, policy, verify
        self.ledger = Ledger(budget_bytes)
        account = account_device(model, policy, workload, self.dtype.itemsize, budget_bytes)
        for purpose in PURPOSES:
            self.ledger.reserve(purpose, account.by_purpose[purpose])
        if backend is None or backend.name == "cpu":
            check_cap(account.peak_bytes)
        if verify:
            source.prepare_checks()
        self.adapter: Adapter = make_adapter(source.checkpoint.config, model, self.dtype)
        self.start_tokens = start_tokens(source.checkpoint) if model.encoder else ()
        self.forced_token = forced_token(source.checkpoint) if model.encoder else None
        longest = self.adapter.longest_context
        if longest is not None and context_tokens(workload) > longest:
            raise UnsupportedError(
                f"{model.name}: a context of {counted(context_tokens(workload), 'token')} cannot "
                f"be run yet: beyond {longest} the rotary embedding of a sequence depends on its "
                "length"
            )
        for layer in range(len(model.layers)):
            places = source.places(Unit(layer, "dense", -1))
            self.adapter.check_roles(layer, {place.role: STORED[place.dtype] for place in places})
        # all but the temporaries of operations is allocated at once
        self.memory = (backend or CpuBackend()).memory(
            account.peak_bytes - account.by_purpose["workspace"],
            account.by_purpose["embedding"],
            policy.chunk_bytes,
            self.ledger,
        )
        if policy.host is not None and not self.memory.holds:
            raise UnsupportedError(
                "the plan has experts computed in host memory, and none lies there: that needs a "
                "GPU whose weights stream from host memory"
            )
        self.device, self._arena = self.memory.device, self.memory.regions
        self.adapter.to(self.device)
        dense_bytes = max(
            (
                start_slot_bytes(model, policy, workload, index, self.dtype.itemsize)
                for index, layer in enumerate(policy.layers)
                if not layer.dense_resident
            ),
            default=0,
        )
        self._dense_slots = [
            self._arena.take("dense_slots", str(slot), dense_bytes)
            for slot in range(policy.dense_slots)
        ]
        size = slot_bytes(model, policy.head_tile_rows, self.dtype.itemsize, policy.expert_forms)
        self._slots = [self._arena.take("slots", str(slot), size) for slot in range(policy.slots)]
        self._resident: dict[Unit, int] = {}
        self._views: dict[tuple[Unit, int | None], dict[str, torch.Tensor]] = {}
        self._experts: dict[tuple[Unit, int | None], ExpertWeights] = {}
        self._hosted: dict[Unit, ExpertWeights] = {}
        self.pacer = Pacer(paced_bytes_per_second)
        buffer = ReadBuffer(read_buffer_bytes(model, policy))
        self.ledger.use("workspace", "read buffer", buffer.size_bytes)
        self.ledger.use("workspace", "decoders", decode_bytes(model))
        self.reader = source.reader(buffer, self.pacer)
        sizes = model, policy, workload, self.dtype, self.adapter.cache_shape()
        self.spill: Spill | None = None
        self.kept: Kept | None = None
        if policy.kv is not None:
            folder = source.store or source.checkpoint.folder
            self.spill = Spill(folder, *sizes, self.pacer, source.read_into)
            where = self._arena, self._dense_slots, self.memory.view
            self.kept = Kept(self.spill, source, policy, *where, self.dtype)
        self.units: Units = model_units(model, policy, self._sizes())
        self._load_residents(progress)
        streamed = sorted(self.units.sizes.keys() - self.units.resident)
        weights = [self._pieces(unit) for unit in streamed if unit.kind != "kv"]
        self.memory.prepare(self.reader, weights)
        self.embedding = Embedding(self.memory.rows, source, self.pacer, self.dtype)
        self.embedding.load_all()
        self.state: GroupState
        self.operations: Operations
        if isinstance(self.adapter, EncoderDecoderAdapter):
            self.state = both = EncoderDecoderState(self._arena, *sizes)
            self.operations = EncoderDecoderOperations(self.adapter, both, self.embedding, policy)
        else:
            self.state = GroupState(self._arena, *sizes)
            self.operations = Operations(self.adapter, self.state, self.embedding, policy)
        if self.kept is not None:
            self.kept.bind_residents(self.state)

    def _sizes(self) -> dict[Unit, int]:
        """Bytes of all units; of keys and values that lie below all, with their dense parts or
        alone."""
        sizes = dict(model_units(self.source.model, self.policy).sizes)
        for unit in sizes:
            if unit.kind in ("dense", "expert"):
                sizes[unit] = self.source.size_bytes(unit, self._form(unit))
        longest = [] if self.spill is None else [self.spill.columns]
        return sizes | self.start_sizes(longest * self.policy.n_batches * self.policy.batch_size)

    def start_sizes(self, lengths: Sequence[int]) -> dict[Unit, int]:
        """As ``Kept.start_sizes``; nothing where no keys and values lie below."""
        return {} if self.kept is None else self.kept.start_sizes(lengths)

    def _load_residents(self, progress: Callable[[int, int], None] | None) -> None:
        resident = sorted(unit for unit in self.units.resident if unit.kind != "kv")
        total = sum(self.units.sizes[unit] for unit in resident)
        done = 0
        for unit in resident:
            size = self.units.sizes[unit]
            offset = self._arena.take(_PURPOSES[unit.kind], f"{unit.stage}.{unit.item}", size)
            self._resident[unit] = offset
            region = Region(offset, size)
            self.memory.fetch(self.reader, self._pieces(unit), region, 0, size, None)
            self._check(unit, region)
            done += size
            if progress is not None:
                progress(done, total)
        size = outside_bytes(self.source.model)
        offset = self._arena.take("head", "final norm", size)
        outside = self.source.outside()
        self.memory.fetch(self.reader, outside, Region(offset, size), 0, size, None)
        if self._verify:
            self.source.check_outside(self.memory.view(Region(offset, size)))
        self.adapter.bind_outside(self._tensors(self.source.outside_places, offset))
        for unit in resident:
            if unit.kind == "dense":
                self.bind_dense(unit, None)

    def _pieces(self, unit: Unit) -> tuple[Piece, ...]:
        if unit.kind == "head":
            return self.source.head_rows(*head_tile_span(self.source.model, self.policy, unit.item))
        raw = unit.kind == "expert" and unit.item in self.policy.layers[unit.stage].raw
        return self.source.pieces(unit, raw=raw, form=self._form(unit))

    def _form(self, unit: Unit) -> FormName:
        """The form of an expert, as the plan has it."""
        return self.policy.layers[unit.stage].form(unit.item) if unit.kind == "expert" else OWN

    def _offset(self, unit: Unit, slot: int | None) -> int:
        if slot is None:
            return self._resident[unit]
        return self._dense_slots[slot] if unit.kind == "dense" else self._slots[slot]

    @property
    def bytes_read(self) -> int:
        """Bytes read from the disk so far."""
        spilled = 0 if self.spill is None else self.spill.bytes_read
        return self.reader.bytes_read + self.embedding.bytes_read + spilled

    # --- copies -------------------------------------------------------------------------------

    def copy(self, chunk: Chunk, following: Following = lambda: None) -> None:
        """Read one chunk into its slot, and meanwhile perhaps the beginning of what follows."""
        unit, start, stop = chunk.unit, chunk.offset_bytes, chunk.offset_bytes + chunk.size_bytes
        size = self.units.sizes[unit]
        if self.kept is not None and unit.kind == "kv":
            self.kept.copy(chunk)
            return
        if self.spill is not None and self.kept is not None and unit.kind == "dense":
            size = self.source.size_bytes(unit)
            begin = max(start - aligned(size), 0)
            if stop > aligned(size) + begin:
                kept = self.kept.memory(unit, chunk.slot)
                self.spill.read(unit.stage, kept, begin, stop - aligned(size) - begin)
        region = Region(self._offset(unit, chunk.slot), size)
        lane = Lane(unit.kind == "dense", chunk.slot)
        if start < size:
            part = min(stop, size) - start
            then = partial(self._part, following)
            self.memory.fetch(self.reader, self._pieces(unit), region, start, part, lane, then)
        if chunk.last:
            if unit.kind == "dense" and self.kept is not None:
                self.kept.came[chunk.slot] = max(stop - aligned(size), 0)
            self._check(unit, region)

    def _part(self, following: Following) -> Part | None:
        chunk = following()
        if chunk is None or chunk.unit.kind == "kv":
            return None
        return Part(self._pieces(chunk.unit), chunk.offset_bytes, chunk.size_bytes)

    def _check(self, unit: Unit, region: Region) -> None:
        """Hold a whole unit against its checksum, where that was asked for."""
        if not self._verify:
            return
        memory = self.memory.view(region)
        if unit.kind == "head":
            first, _ = head_tile_span(self.source.model, self.policy, unit.item)
            self.source.check_rows(self.source.head_name, first, memory[: region.size_bytes])
        else:
            self.source.check(unit, memory, self._form(unit))

    # --- weights ------------------------------------------------------------------------------

    def bind_dense(self, unit: Unit, slot: int | None) -> None:
        """Let a layer's modules compute from the slot (None: resident) of its dense part."""
        key = (unit, slot)
        views = self._views.get(key)
        if views is None:
            offset = self._offset(unit, slot)
            views = self._views[key] = self._tensors(self.source.places(unit), offset)
        self.adapter.bind(unit.stage, views)
        self.bind_kv(unit, slot)

    def bind_kv(self, unit: Unit, slot: int | None) -> None:
        """Let attention find the keys and values that came to a slot (None: they stay)."""
        if self.kept is not None and slot is not None:
            self.kept.bind(unit, slot, self.state, self.operations.reach)

    def write_kv(self, unit: Unit, slot: int) -> int:
        """Write back what attention added to them: bytes, 0 where they stay on the device."""
        return 0 if self.kept is None else self.kept.write(unit, slot, self.state)

    def expert(self, unit: Unit, slot: int | None) -> ExpertWeights:
        """An expert's matrices in its slot (None: resident)."""
        key = (unit, slot)
        weights = self._experts.get(key)
        if weights is None:
            offset = self._offset(unit, slot)
            weights = self._experts[key] = self._expert_at(unit, offset, self._arena.tensor)
        return weights

    def host_expert(self, unit: Unit) -> ExpertWeights:
        """An expert's matrices where they lie, in host memory."""
        weights = self._hosted.get(unit)
        if weights is None:
            held = self.memory.held(self._pieces(unit))
            if held is None:
                raise RuntimeError(f"{unit} does not lie in host memory")
            weights = self._hosted[unit] = self._expert_at(unit, 0, partial(host_tensor, held))
        return weights

    def _expert_at(self, unit: Unit, offset: int, tensor: TensorAt) -> ExpertWeights:
        form, model = self._form(unit), self.adapter.model
        places = self.source.places(unit, form)
        how = {one.name: one.quantized for one in model.forms or ()}.get(form, model.quantized)
        if how is not None:
            tensors = self._tensors(places, offset, tensor)
            return quantized_expert(model, model.layers[unit.stage], how, tensors)
        values = self.units.sizes[unit] // self.dtype.itemsize
        return self.adapter.expert_weights(
            tensor(offset, (values,), self.dtype),
            {place.role: place.shape for place in places},
        )

    def _tensors(
        self, places: Iterable[Place], offset: int, tensor: TensorAt | None = None
    ) -> dict[str, torch.Tensor]:
        """Tensors of a unit that lies at ``offset`` of the device's memory, or of another."""
        at = tensor or self._arena.tensor
        return {
            place.role: at(offset + place.offset_bytes, place.shape, STORED[place.dtype])
            for place in places
        }

    def head_tile(self, unit: Unit, slot: int | None) -> torch.Tensor:
        """A head tile's rows [tile rows, hidden] in its slot (None: resident)."""
        model = self.source.model
        start, stop = head_tile_span(model, self.policy, unit.item)
        return self._arena.tensor(
            self._offset(unit, slot), (stop - start, model.hidden_size), self.dtype
        )
