"""What a run would at least have read had it known its routing: Belady's rule, the same pool."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.units import model_units
from planner.documents import ModelSpec, Policy, Workload
from planner.memory import group_sequences

__all__ = ["decode_bytes", "missed_bytes", "pool_bytes"]

Key = tuple[int, int]
"""Stage, and item (-1: the dense part)."""


def pool_bytes(model: ModelSpec, policy: Policy) -> int:
    """Bytes of weights that a policy's memory holds: residents and slots of both kinds."""
    units = model_units(model, policy)
    dense = [units.sizes[unit] for unit in units.sizes if unit.kind == "dense"]
    other = [units.sizes[unit] for unit in units.sizes if unit.kind != "dense"]
    return (
        sum(units.sizes[unit] for unit in units.resident)
        + policy.slots * max(other)
        + policy.dense_slots * max(dense)
    )


def decode_bytes(
    model: ModelSpec, policy: Policy, workload: Workload, routing: dict[str, npt.NDArray[Any]]
) -> int:
    """Least bytes to read in all decode passes of a run, for memory of the policy's size.

    Dense parts, experts and head tiles compete for it byte by byte; what prefill uses may stay for
    decode, for nothing.

    Parameters
    ----------
    model, policy, workload
        What was run; all prompts are ``workload.prompt_tokens`` long and none ended early.
    routing
        ``experts`` [tokens, MoE layers, top_k], ``sequence`` and ``position`` [tokens].
    """
    units = model_units(model, policy)
    moe = [layer.index for layer in model.layers if layer.experts]
    sizes: dict[Key, int] = {}
    for index, layer in enumerate(model.layers):
        dense = next(u for u in units.sizes if (u.stage, u.kind) == (index, "dense"))
        sizes[index, -1] = units.sizes[dense]
        sizes |= {(index, item): layer.expert_bytes for item in range(layer.experts)}
    tiles = [unit for unit in sorted(units.sizes) if unit.kind == "head"]
    head = len(model.layers)
    sizes |= {(head, number): units.sizes[tile] for number, tile in enumerate(tiles)}
    step = np.maximum(routing["position"] - workload.prompt_tokens + 1, 0)
    numbers = routing["sequence"] // group_sequences(policy, workload) * workload.new_tokens + step
    passes = int(numbers.max()) + 1
    uses: list[tuple[bool, list[Key]]] = []
    for index in range(passes):
        counts, own = index % workload.new_tokens > 0, routing["experts"][numbers == index]
        for layer in model.layers:
            chosen = np.unique(own[:, moe.index(layer.index)]).tolist() if layer.experts else []
            uses.append((counts, [(layer.index, item) for item in (-1, *chosen)]))
        uses.append((counts, [(head, number) for number in range(len(tiles))]))
    missing = missed_bytes(uses, sizes, pool_bytes(model, policy))
    # exactly compressed weights take fewer bytes on the disk than in memory
    return int(missing * min(model.stored_share(kind) for kind in ("dense", "expert", "head")))


def missed_bytes(
    uses: Sequence[tuple[bool, list[Key]]], sizes: Mapping[Key, int], capacity_bytes: int
) -> int:
    """Least bytes that are not in memory when they are used, in the uses that count.

    What fits is kept until its next use, byte by byte, and where memory is full the bytes go whose
    next use is furthest away. At the start memory may hold anything, for nothing.

    Parameters
    ----------
    uses
        In turn: whether they count, and what is used at once.
    sizes
        Of each, in bytes.
    capacity_bytes
        Memory.
    """
    never = len(uses)
    following: dict[Key, int] = {}
    after: list[list[tuple[int, Key]]] = [[] for _ in uses]
    for here in range(never - 1, -1, -1):
        for unit in uses[here][1]:
            after[here].append((following.get(unit, never), unit))
            following[unit] = here
    kept: dict[Key, int] = {}
    furthest: list[tuple[int, Key]] = []
    free, missed = capacity_bytes, 0

    def keep(use: int, unit: Key) -> None:
        nonlocal free
        if use == never or not uses[use][0]:
            return
        kept[unit] = sizes[unit]
        free -= sizes[unit]
        heapq.heappush(furthest, (-use, unit))
        while free < 0:
            # an entry of a use that has passed lies far below: its use is nearer than all others
            _, victim = furthest[0]
            cut = min(kept[victim], -free)
            kept[victim] -= cut
            free += cut
            if not kept[victim]:
                heapq.heappop(furthest)
                del kept[victim]

    for unit, use in sorted(following.items()):
        keep(use, unit)
    for here, (counts, used) in enumerate(uses):
        for unit in used:
            there = kept.pop(unit, 0)
            free += there
            missed += sizes[unit] - there if counts else 0
        for use, unit in after[here]:
            keep(use, unit)
    return missed
