"""What lies on a bench: as many layers and experts of a model as a budget holds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from executor.device import DTYPES
from planner.documents import OWN, FormName, HostCompute, LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import account_device, default_head_tiling
from planner.sides import parts_of
from planner.span import context_tokens

__all__ = ["HEAD_TILES", "SLOTS", "BenchPlan", "Layout", "bench_layers", "copying", "first_layers"]

SLOTS = (12, 8, 6, 4, 3, 2, 1)
"""How many streaming slots a bench may have, the best first."""

HEAD_TILES = 3
"""Head tiles on a bench, where there are more: all of them cost the same."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What lies on a bench.

    Attributes
    ----------
    layers
        How many of the model's layers: see ``bench_layers``.
    moe_layer
        The first of them that has experts.
    policy, workload
        For ``Device``: one batch of the most sequences, the longest prompt and context.
    """

    layers: int
    moe_layer: int
    policy: Policy
    workload: Workload


def bench_layers(model: ModelSpec, count: int) -> tuple[int, ...]:
    """Which ``count`` layers lie on a bench: the first ones; with an encoder those of both sides,
    as evenly as they go."""
    depth, whole = model.encoder_depth, len(model.layers)
    if not depth:
        return tuple(range(count))
    encoder = min(max(-(-count // 2), count - (whole - depth)), depth)
    return (*range(encoder), *range(depth, depth + count - encoder))


def first_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """The model with its first layers only (of each side, with an encoder)."""
    chosen = bench_layers(model, layers)
    return dataclasses.replace(
        model,
        layers=tuple(
            dataclasses.replace(model.layers[layer], index=index)
            for index, layer in enumerate(chosen)
        ),
        encoder=sum(layer < model.encoder_depth for layer in chosen) or None,
        forms=None
        if model.forms is None
        else tuple(
            dataclasses.replace(
                form,
                expert_bytes=tuple(form.expert_bytes[layer] for layer in chosen),
                errors_ppb=tuple(form.errors_ppb[layer] for layer in chosen),
            )
            for form in model.forms
        ),
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """How benches of one model are laid out under one budget.

    Attributes
    ----------
    model, memory_bytes
        The whole model, and the device budget.
    slots, reserve
        Streaming slots for experts and head tiles, and how many of them the chain leaves alone.
    stream
        Leave experts out on purpose and prefetch them in vain, so that the channel is busy.
    chunk_bytes
        Piece of a copy.
    raw
        Experts are copied as they are, of a store that has them compressed, too.
    form
        The form of all experts, of a store that has several.
    head
        Where it streams: have the head there, too.
    """

    model: ModelSpec
    memory_bytes: int
    slots: int = 1
    reserve: int = 1
    stream: bool = False
    chunk_bytes: int = 1 << 20
    raw: bool = False
    form: FormName = OWN
    head: bool = False

    @property
    def moe_layer(self) -> int:
        """The first layer with experts."""
        return next(layer.index for layer in self.model.layers if layer.experts)

    def plan(self, workload: Workload) -> BenchPlan | None:
        """The largest bench for ``workload``; None where not even one layer with experts fits.

        Layers come first, so that weights take turns as they do in a run: as many as can have
        twice the router's choices of experts each. Then experts are added to each.
        """
        first = self._least_layers
        few = min(2 * self.model.layers[self.moe_layer].top_k, self._most_experts)
        layers = first
        while layers < len(self.model.layers) and self.fits(self.bench(workload, layers + 1, few)):
            layers += 1
        low, high = 0, self._most_experts
        best = None
        while low <= high:
            middle = (low + high) // 2
            bench = self.bench(workload, layers, middle)
            if self.fits(bench):
                best, low = bench, middle + 1
            else:
                high = middle - 1
        return best

    def widest(self, workload: Workload) -> BenchPlan | None:
        """The bench of the most layers, without resident experts; None where none fits."""
        best = None
        for layers in range(self._least_layers, len(self.model.layers) + 1):
            bench = self.bench(workload, layers, 0)
            if not self.fits(bench):
                break
            best = bench
        return best

    def streaming(self, workload: Workload, held_bytes: int | None = None) -> BenchPlan | None:
        """The roomy bench of the most slots with which copies are made in vain; None where the
        budget holds none. With ``held_bytes`` it has no more layers than hold so much."""
        for slots in SLOTS[:-1]:
            layout = dataclasses.replace(self, slots=slots, stream=True)
            plan = layout.plan(workload)
            if plan is not None and layout.roomy(plan):
                return plan if held_bytes is None else layout._shortened(plan, workload, held_bytes)
        return None

    def streaming_computed(
        self, workload: Workload, held_bytes: int | None = None
    ) -> BenchPlan | None:
        """Likewise, with some of the head, too, where there is room for that."""
        with_head = dataclasses.replace(self, head=True)
        return with_head.streaming(workload, held_bytes) or self.streaming(workload, held_bytes)

    def _shortened(self, plan: BenchPlan, workload: Workload, held_bytes: int) -> BenchPlan:
        """The bench with as few of its layers as hold so many bytes of weights, where it holds
        more: for what need not be measured on all of them."""
        experts = max(len(layer.resident) for layer in plan.policy.layers)
        for layers in range(self._least_layers, plan.layers):
            short = self.bench(workload, layers, experts)
            if self._held_bytes(short) >= held_bytes:
                return short
        return plan

    def hosting(self, workload: Workload) -> BenchPlan | None:
        """The bench of the most layers for experts on the host: it computes the first ones of each
        layer's, and the others are prefetched in vain; None where none fits.

        Half of them are enough, but where that leaves no choice of rows for each.
        """
        plan = self.widest(workload)
        if plan is None:
            return None
        layers = []
        for index, layer in enumerate(plan.policy.layers):
            spec = self.model.layers[index]
            own = max(spec.experts // 2, min(2 * spec.top_k, spec.experts - 1))
            layers.append(dataclasses.replace(layer, prefetch=layer.prefetch[own:]))
        everything = HostCompute(workload.requests * context_tokens(workload), 100)
        policy = dataclasses.replace(plan.policy, layers=tuple(layers), host=everything)
        return dataclasses.replace(plan, policy=policy)

    @property
    def _least_layers(self) -> int:
        """As few layers of a bench as show every kind of layer that the model has."""
        model = self.model
        every = {parts_of(model, layer.index) for layer in model.layers}
        count = len(every)
        while {parts_of(model, layer) for layer in bench_layers(model, count)} != every:
            count += 1
        return count

    @property
    def _most_experts(self) -> int:
        most = max(layer.experts for layer in self.model.layers)
        return most // 2 if self.stream else most

    def roomy(self, bench: BenchPlan) -> bool:
        """Whether weights have two fifths of the budget, or two fifths of them lie there.

        With less, the same few weights would be used over and over and stay in the processor's
        caches, as they do not in a run.
        """
        whole = sum(
            layer.dense_bytes + layer.experts * self.model.form_bytes(layer.index, self.form)
            for layer in self.model.layers
        )
        return self._held_bytes(bench) * 5 >= min(self.memory_bytes, whole) * 2

    def _held_bytes(self, bench: BenchPlan) -> int:
        model = first_layers(self.model, bench.layers)
        return sum(
            spec.dense_bytes + len(chosen.resident) * model.form_bytes(spec.index, self.form)
            for spec, chosen in zip(model.layers, bench.policy.layers, strict=True)
        )

    def fits(self, bench: BenchPlan) -> bool:
        """Whether the budget holds a bench."""
        model = first_layers(self.model, bench.layers)
        width = DTYPES[self.model.dtype].itemsize
        account = account_device(model, bench.policy, bench.workload, width, self.memory_bytes)
        return account.peak_bytes <= self.memory_bytes

    def bench(self, workload: Workload, layers: int, experts: int) -> BenchPlan:
        """A bench of so many layers, with at most so many resident experts in each."""
        rows, tiles = default_head_tiling(self.model, DTYPES[self.model.dtype].itemsize)
        chosen = []
        for layer in first_layers(self.model, layers).layers:
            count = min(experts, layer.experts // 2 if self.stream else layer.experts)
            rest = tuple(range(count, layer.experts)) if self.stream else ()
            raw = rest if self.raw else ()
            forms = (self.form,) * layer.experts if self.form != OWN else ()
            chosen.append(LayerPolicy(True, tuple(range(count)), rest, raw=raw, forms=forms))
        policy = Policy(
            n_batches=1,
            batch_size=workload.requests,
            layers=tuple(chosen),
            head_tile_rows=rows,
            head_tiles=tiles,
            resident_head_tiles=0 if self.stream and not self.head else min(tiles, HEAD_TILES),
            slots=self.slots,
            dense_slots=0,
            reserve=self.reserve,
            eviction="none",
            chunk_bytes=self.chunk_bytes,
        )
        return BenchPlan(layers, self.moe_layer, policy, workload)


def copying(
    model: ModelSpec, memory_bytes: int, chunk_bytes: int, *, raw: bool = False
) -> BenchPlan | None:
    """A bench for copies alone, with as many slots as fit; None where such pieces do not fit."""
    for slots in SLOTS:
        layout = Layout(model, memory_bytes, slots, 0, True, chunk_bytes, raw)
        plan = layout.widest(Workload(1, 1, 8))
        if plan is not None:
            return plan
    return None
