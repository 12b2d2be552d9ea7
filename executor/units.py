"""What one copy brings: the units of a model, their sizes, and what a policy does with each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.documents import ModelSpec, Policy
from planner.forms_check import check_layers
from planner.kv_check import check_batches
from solvers.counting import counted
from solvers.errors import DocumentError

__all__ = ["Unit", "Units", "check_policy", "head_tile_span", "model_units"]


class Unit(NamedTuple):
    """One dense part, one batch's keys and values in one layer, one expert or head tile.

    ``stage`` is the layer, or the number of layers for the head; ``item`` the batch, the expert or
    the tile, -1 for a dense part.
    """

    stage: int
    kind: Literal["dense", "kv", "expert", "head"]
    item: int

    @property
    def starts(self) -> bool:
        """Whether a stage waits for it before it begins."""
        return self.kind in ("dense", "kv")


@dataclass(frozen=True, eq=False)
class Units:
    """The units of one model under one policy.

    Attributes
    ----------
    layers
        Number of decoder layers; the head is the stage after the last.
    sizes
        Bytes that each unit's copy moves: of keys and values below, at most.
    resident
        Units that are never copied during a run.
    chain
        For each stage, what the chain copies there, in order: the dense part, then prefetches (in
        the stage of the head: its streamed tiles).
    waits
        Stages whose experts the chain copies only once a predictor has named them.
    batches
        Batches whose attention is a stage of its own, which waits for their keys and values, in
        front of a layer's experts; 0: a layer is one stage.
    """

    layers: int
    sizes: Mapping[Unit, int]
    resident: frozenset[Unit]
    chain: tuple[tuple[Unit, ...], ...]
    waits: frozenset[int] = frozenset()
    batches: int = 0

    def stage(self, layer: int, batch: int | None = None) -> int:
        """The stage of a layer's router and experts, of the head, or of one batch's attention."""
        first = layer * (self.batches + 1)
        if batch is not None:
            return first + batch
        return first if layer == self.layers else first + self.batches

    def place(self, stage: int) -> tuple[int, int | None]:
        """The layer (the number of layers: the head) of a stage, and the batch whose attention
        alone it is."""
        layer, part = divmod(stage, self.batches + 1)
        return layer, part if part < self.batches and layer < self.layers else None


def head_tile_span(model: ModelSpec, policy: Policy, tile: int) -> tuple[int, int]:
    """First vocabulary row of a tile, and the row after its last."""
    start = tile * policy.head_tile_rows
    return start, min(start + policy.head_tile_rows, model.vocab_size)


def model_units(
    model: ModelSpec,
    policy: Policy,
    sizes: Mapping[Unit, int] | None = None,
) -> Units:
    """Units of ``model`` under ``policy``; ``sizes`` are the model's own bytes if not given (none
    of keys and values)."""
    count = len(model.layers)
    batches = policy.stages_each - 1
    own: dict[Unit, int] = {}
    resident: set[Unit] = set()
    chain: list[tuple[Unit, ...]] = []
    for index, (layer, spec) in enumerate(zip(policy.layers, model.layers, strict=True)):
        dense = Unit(index, "dense", -1)
        own[dense] = spec.dense_bytes
        for batch in range(batches):
            kept = Unit(index, "kv", batch)
            own[kept] = 0
            if batch in layer.kv_resident:
                resident.add(kept)
            chain.append(() if batch in layer.kv_resident else (kept,))
        for expert in range(spec.experts):
            size = model.form_bytes(index, layer.form(expert))
            own[Unit(index, "expert", expert)] = size
        resident.update(Unit(index, "expert", expert) for expert in layer.resident)
        streamed = () if layer.dense_resident else (dense,)
        if layer.dense_resident:
            resident.add(dense)
        chain.append((*streamed, *(Unit(index, "expert", expert) for expert in layer.prefetch)))
    tiles = []
    for tile in range(policy.head_tiles):
        start, stop = head_tile_span(model, policy, tile)
        unit = Unit(count, "head", tile)
        own[unit] = (stop - start) * model.hidden_size * model.dtype_bytes
        if tile < policy.resident_head_tiles:
            resident.add(unit)
        else:
            tiles.append(unit)
    chain.append(tuple(tiles))
    sizes = own if sizes is None else sizes
    waits = frozenset(index for index, layer in enumerate(policy.layers) if layer.waits)
    return Units(count, sizes, frozenset(resident), tuple(chain), waits, batches)


def check_policy(model: ModelSpec, policy: Policy) -> None:
    """Refuse a policy that does not fit the model or could come to a standstill.

    Raises
    ------
    DocumentError
        Naming the field at fault.
    """
    if len(policy.layers) != len(model.layers):
        raise DocumentError(
            f"plan: policy.layers has {counted(len(policy.layers), 'entry')}; the model has "
            f"{counted(len(model.layers), 'layer')}"
        )
    for fault in check_layers(policy, model):
        raise DocumentError(f"plan: {fault.where}: {fault.message}")
    demanded = any(layer.predictor != "plan" for layer in policy.layers)
    first = next((spec.index for spec in model.layers if spec.experts), -1)
    for index, (layer, spec) in enumerate(zip(policy.layers, model.layers, strict=True)):
        chosen = (*layer.resident, *layer.prefetch)
        where = f"plan: policy.layers.{index}"
        if any(expert >= spec.experts for expert in chosen):
            raise DocumentError(
                f"{where} names expert {max(chosen)}; the layer has "
                f"{counted(spec.experts, 'expert')}"
            )
        if len(set(chosen)) != len(chosen):
            raise DocumentError(f"{where} names an expert twice in resident and prefetch")
        demanded |= len(chosen) < spec.experts
        if layer.predictor != "plan" and (index == first or not layer.prefetch):
            raise DocumentError(
                f"{where}.predictor has no effect: no router comes before it, or nothing is "
                "prefetched; use 'plan'"
            )
        if layer.predictor != "plan" and model.encoder:
            raise DocumentError(
                f"{where}.predictor: an encoder-decoder has prefetches by the plan only yet"
            )
        if layer.waits and layer.predictor != "lookahead":
            raise DocumentError(f"{where}.waits has no effect: the layer does not look ahead")
        if layer.predictor == "lookahead" and not layer.dense_resident:
            raise DocumentError(
                f"{where}.predictor looks ahead with the layer's router, which is in a dense part "
                "that is not resident"
            )
    covered = policy.head_tile_rows * policy.head_tiles
    if not covered - policy.head_tile_rows < model.vocab_size <= covered:
        raise DocumentError(
            f"plan: policy.head_tiles: {counted(policy.head_tiles, 'tile')} of "
            f"{counted(policy.head_tile_rows, 'row')} cannot be those of a "
            f"vocabulary of {model.vocab_size}"
        )
    if policy.resident_head_tiles > policy.head_tiles:
        raise DocumentError("plan: policy.resident_head_tiles exceeds policy.head_tiles")
    if any(not layer.dense_resident for layer in policy.layers) and policy.dense_slots < 1:
        raise DocumentError("plan: policy.dense_slots is 0, but dense parts are not resident")
    if policy.hold is not None and not policy.starts_stream:
        raise DocumentError(
            "plan: policy.hold has no effect: all dense parts are resident; leave it out"
        )
    for fault in check_batches(policy):
        raise DocumentError(f"plan: {fault.where}: {fault.message}")
    streams = (
        demanded
        or any(layer.prefetch for layer in policy.layers)
        or policy.resident_head_tiles < policy.head_tiles
    )
    if streams and policy.slots < 1:
        raise DocumentError("plan: policy.slots is 0, but experts or head tiles are not resident")
    if streams and policy.reserve > policy.slots:
        raise DocumentError("plan: policy.reserve exceeds policy.slots")
    # a prefetch for a later stage may hold every slot but the reserve, and a cached expert that
    # the chain skipped may be evicted: without a reserve a demanded copy would wait for ever
    if policy.reserve < 1 and (demanded or (streams and policy.eviction != "none")):
        raise DocumentError(
            "plan: policy.reserve is 0, but copies may be demanded; 1 or more are needed"
        )
