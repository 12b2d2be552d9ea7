"""One device of several: its dense parts, its sequences, its experts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from executor.device import Device
from executor.memory import Backend
from executor.operations import feed_expert, tile_of
from executor.parallel.buffer import Eviction, ExpertBuffer
from executor.parallel.exchange import Exchange, Segment, gather_counts, now_ns
from executor.parallel.measure import SAMPLES, expert_curve
from executor.parallel.meeting import wait_for_all
from executor.parallel.rebalance import Rebalancer
from executor.parallel.serving import PlannedExperts, Served
from executor.schedule import Chunk
from executor.sequences import Sequences
from executor.source import WeightSource
from executor.units import Unit
from planner.documents import LayerPolicy, MemoryAccount, ModelSpec, Policy, Workload
from planner.memory import account_device, default_head_tiling, held_expert_bytes
from solvers.outcome import LiveEviction

__all__ = ["Rank", "RankOptions", "rank_policy"]

_CHUNK_BYTES = 1 << 20

Placement = dict[int, Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class RankOptions:
    """What all ranks are told alike.

    Attributes
    ----------
    slots
        Experts that this rank's memory holds.
    eviction
        What goes first where they are fewer than its experts.
    batch_size
        Sequences of one rank that run at a time.
    requests, prompt_tokens, new_tokens
        Of the rank with most: sizes of its buffers.
    layers
        Of an offload plan: layer, residents and prefetches of each MoE layer; None: there is none,
        and what is missing is read when it is needed.
    reserve, chunk_bytes
        Of that plan.
    """

    slots: int
    eviction: LiveEviction
    batch_size: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    layers: Sequence[tuple[int, Sequence[int], Sequence[int]]] | None = None
    reserve: int = 0
    chunk_bytes: int = _CHUNK_BYTES


def rank_policy(model: ModelSpec, options: RankOptions, dtype_bytes: int) -> Policy:
    """The policy of a rank: everything stays but experts, which have slots, and those that an
    offload plan keeps."""
    rows, _ = default_head_tiling(model, dtype_bytes)
    # a slot is no larger than an expert
    expert = max(map(held_expert_bytes, model.layers))
    rows = max(min(rows, expert // (model.hidden_size * dtype_bytes)), 1)
    tiles = -(-model.vocab_size // rows)
    planned = options.layers is not None
    kept = {layer: (tuple(stay), tuple(ahead)) for layer, stay, ahead in options.layers or ()}
    return Policy(
        n_batches=1,
        batch_size=options.batch_size,
        layers=tuple(LayerPolicy(True, *kept.get(one.index, ((), ()))) for one in model.layers),
        head_tile_rows=rows,
        head_tiles=tiles,
        resident_head_tiles=tiles,
        slots=options.slots,
        dense_slots=0,
        reserve=options.reserve if planned else options.slots,
        eviction=options.eviction,
        chunk_bytes=options.chunk_bytes,
    )


def rank_account(model: ModelSpec, options: RankOptions) -> MemoryAccount:
    """What a rank's memory holds, by purpose; its capacity is left at 0."""
    width = model.dtype_bytes
    workload = Workload(options.requests, options.prompt_tokens, options.new_tokens)
    return account_device(model, rank_policy(model, options, width), workload, width, 0)


class Rank:
    """This process's device, one of ``torch.distributed``'s group.

    Parameters
    ----------
    source
        Weights.
    rank
        Its number.
    options
        Sizes.
    placement
        For each MoE layer and expert the devices that hold it.
    backend
        What it computes on; None: the CPU.
    """

    def __init__(
        self,
        source: WeightSource,
        rank: int,
        options: RankOptions,
        placement: Placement,
        backend: Backend | None = None,
    ) -> None:
        self._model = source.model
        self._rank, self._options = rank, options
        width = self._model.dtype_bytes
        policy = rank_policy(self._model, options, width)
        workload = Workload(options.requests, options.prompt_tokens, options.new_tokens)
        peak_bytes = rank_account(self._model, options).peak_bytes
        with torch.inference_mode():
            self._device = Device(source, policy, workload, peak_bytes, backend=backend)
        self._head = [
            Unit(len(self._model.layers), "head", tile) for tile in range(policy.head_tiles)
        ]
        # an offload plan's experts have a channel of their own, run by run
        self.buffer: ExpertBuffer | None = None
        if options.layers is None:
            eviction: Eviction = "lru" if options.eviction == "lru" else "lifo"
            self.buffer = ExpertBuffer(options.slots, eviction, self._read)
        self.exchange = Exchange(rank, placement)
        self._placement = placement
        self._read_ns = self._reads = self._compute_ns = 0
        self._layers: list[dict[str, Any]] = []
        self._recording = False
        self._rebalancer: Rebalancer | None = None
        self._preload(placement)

    def _own(self, placement: Placement) -> list[Unit]:
        return [
            Unit(layer, "expert", expert)
            for layer, experts in sorted(placement.items())
            for expert, devices in enumerate(experts)
            if self._rank in devices
        ]

    def _preload(self, placement: Placement) -> None:
        if self.buffer is None:
            return
        own = self._own(placement)
        self.buffer.keep_only(set(own))
        if len(own) <= self._options.slots:
            self.buffer.preload(own)

    def _read(self, unit: Unit, slot: int) -> None:
        # what a GPU still computes from the slot ends before it is written to
        started = now_ns(self._device.device)
        size = self._device.units.sizes[unit]
        self._device.copy(Chunk(unit, slot, 0, size, "expert", 0, True))
        self._read_ns += now_ns(self._device.device) - started
        self._reads += 1

    @contextmanager
    def _serving(self, passes: int) -> Iterator[Served]:
        """What brings experts in a run of so many passes, at most."""
        if self.buffer is not None:
            yield self.buffer
            return
        own = frozenset(self._own(self._placement))
        with closing(PlannedExperts(self._device, own, passes)) as planned:
            yield planned

    # --- running ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: list[list[int]],
        limit: int,
        end_tokens: frozenset[int],
        progress: Callable[[int, int], None],
        *,
        record: bool = False,
        rebalance: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Greedy continuation of this rank's prompts, in step with all ranks.

        Parameters
        ----------
        prompts
            Token ids; there may be none.
        limit
            New tokens for each.
        end_tokens
            Tokens that end a sequence, still part of the output.
        progress
            Called after each pass with passes done and at most to come.
        record
            Keep counts and times of each layer.
        rebalance
            Options of ``Rebalancer``; None: experts stay where they are.
        """
        size = self._options.batch_size
        groups = -(-int(gather_counts(np.array([len(prompts)])).max()) // size)
        self._recording, self._layers = record, []
        self._rebalancer = None
        if rebalance is not None:
            devices = self.exchange.devices
            self._rebalancer = Rebalancer(self._rank, devices, self._placement, **rebalance)
        results: list[list[int]] = [[] for _ in prompts]
        passes = 0
        with torch.inference_mode(), self._serving(groups * limit) as served:
            self._served, before = served, self._sums(served)
            started = time.perf_counter_ns()
            for group in range(groups):
                members = range(
                    min(group * size, len(prompts)), min((group + 1) * size, len(prompts))
                )
                sequences = Sequences(
                    prompts,
                    members,
                    results,
                    lambda _, token: token in end_tokens,
                    first=self._rank,
                    step=self.exchange.devices,
                )
                for step in range(limit):
                    if not gather_counts(np.array([len(sequences.tokens)])).any():
                        break
                    self._pass(sequences, passes)
                    passes += 1
                    progress(group * limit + step + 1, groups * limit)
                    self._rebalance((groups - group) * limit - step - 1)
        after = self._sums(served)
        return {
            "token_ids": results,
            "layers": self._layers,
            "report": {
                "rank": self._rank,
                "wall_ns": time.perf_counter_ns() - started,
                "passes": passes,
                **{name: after[name] - before[name] for name in after},
                "swaps": self._rebalancer.swaps if self._rebalancer else 0,
                "slots": self._options.slots,
                "exchange_peak_bytes": self.exchange.peak_bytes,
                "memory_bytes": self._device.ledger.peak_bytes,
            },
        }

    def _rebalance(self, passes_left: int) -> None:
        """Between two passes nothing is on its way, and keys and values stay where they are."""
        if self._rebalancer is None:
            return
        rows = self.exchange.rows_computed
        found = self._rebalancer.look(
            passes_left, self._compute_ns, rows, self._read_ns, self._reads
        )
        if found is not None:
            self._placement = found
            self.exchange.replace(found)
            self._preload(found)

    def measure(self) -> dict[str, Any]:
        """Times of an expert, on the first rank that has one, while the others wait."""
        device, buffer, curve = self._device, self.buffer, []
        if buffer is None:
            raise ValueError("what is measured is loaded without an offload plan")
        first = min(rank for held in self._placement.values() for ranks in held for rank in ranks)
        if self._rank == first:
            own = self._own(self._placement)
            # what is in the buffer; where nothing is yet, the first
            units = [unit for unit in own if unit in buffer] or own[:1]
            with torch.inference_mode():
                weights = [device.expert(unit, buffer.use(unit)) for unit in units]
                curve = expert_curve(device, weights)
        wait_for_all()
        return {"expert": curve, "samples": SAMPLES}

    def _sums(self, served: Served) -> dict[str, int]:
        return {
            "rows_computed": self.exchange.rows_computed,
            "rows_sent": self.exchange.rows_sent,
            "hits": served.hits,
            "misses": served.misses,
            "wait_ns": served.wait_ns,
            "prefetched_bytes": served.prefetched_bytes,
            "wasted_bytes": served.wasted_bytes,
            "bytes_read": self._device.bytes_read,
            "exchange_ns": self.exchange.exchange_ns,
            "expert_ns": self._compute_ns,
            "read_ns": self._read_ns,
        }

    def _pass(self, sequences: Sequences, number: int) -> None:
        """One traversal of all layers; takes part in exchanges also without tokens of its own."""
        operations, served = self._device.operations, self._served
        tokens = sequences.tokens
        served.enter(number, 0)
        if tokens:
            operations.begin(sequences.counts, sequences.past)
            missing = self._device.embedding.missing(tokens)
            with served.held() if missing else nullcontext():
                operations.embed(tokens)
        for layer, spec in enumerate(self._model.layers):
            served.enter(number, layer)
            if tokens:
                for batch in range(self._device.state.batches):
                    operations.attention(layer, batch)
                if not spec.experts:
                    operations.dense_mlp(layer)
            if spec.experts:
                self._experts(layer, bool(tokens))
        served.enter(number, len(self._model.layers))
        if not tokens:
            return
        alive = operations.head_begin()
        for tile in self._head:
            operations.head_tile(tile.item, self._device.head_tile(tile, None))
        sequences.check_finite(operations, alive, number)
        sequences.grow(alive, operations.sample())

    def _experts(self, layer: int, tokens: bool) -> None:
        """The experts of one layer, wherever they are."""
        spec, operations, state = self._model.layers[layer], self._device.operations, None
        device = self._device.device
        normed = torch.empty(0, self._model.hidden_size, dtype=self._device.dtype, device=device)
        chosen = torch.empty(0, spec.top_k, dtype=torch.int64)
        if tokens:
            state = self._device.state
            if spec.shared_expert_bytes:
                operations.shared_expert(layer)
            weights = operations.choose(layer)
            # by expert, so that a token's sum has one order however experts are placed
            chosen, order = torch.sort(operations.chosen, dim=1)
            weights = weights.gather(1, order)
            normed = state.normed
        started, waited = now_ns(device), self._compute_ns

        def compute(segments: list[Segment], rows: torch.Tensor, results: torch.Tensor) -> None:
            self._compute(layer, segments, rows, results)

        def known(rows: npt.NDArray[np.int64]) -> None:
            most = np.argsort(-rows, kind="stable").tolist()
            self._served.known([Unit(layer, "expert", one) for one in most if rows[one]])

        choices = chosen.cpu().numpy()
        found = self.exchange.run(layer, normed, choices, compute, spec.experts, known)
        if self._rebalancer is not None:
            self._rebalancer.saw(layer, self.exchange.counts.sum(axis=0))
        if self._recording:
            self._layers.append(
                {
                    "layer": layer,
                    "counts": self.exchange.counts.tolist() if self._rank == 0 else None,
                    "duration_ns": now_ns(device) - started,
                    "expert_ns": self._compute_ns - waited,
                }
            )
        if state is not None:
            for place in range(spec.top_k):
                state.sums.add_(found[:, place].float().mul_(weights[:, place, None]))
            operations.combine()

    def _compute(
        self, layer: int, segments: list[Segment], rows: torch.Tensor, results: torch.Tensor
    ) -> None:
        """Own experts, those that are there first."""
        units = {Unit(layer, "expert", one.expert): one for one in segments}
        for unit, slot in self._served.serve(units):
            segment, weights = units[unit], self._device.expert(unit, slot)
            started = now_ns(rows.device)
            first, stop = segment.first, segment.stop
            while first < stop:
                count, computed = tile_of(stop - first, rows.element_size())
                # rows beyond those of this expert are other tokens' and thrown away
                part = feed_expert(self._device.adapter, rows[first : first + computed], weights)
                results[first : first + count] = part[:count]
                first += count
            self._compute_ns += now_ns(rows.device) - started
