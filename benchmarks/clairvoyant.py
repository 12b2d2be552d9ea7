"""What a run would at least have read had it known its routing: Belady's rule, the same pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from executor.units import model_units
from planner.documents import ModelSpec, Policy, Workload
from planner.memory import group_sequences
from solvers.belady import least_copied
from solvers.problem import Problem, Scenarios, Stage, Unit

__all__ = ["decode_bytes", "pool_bytes"]


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

    Dense parts, experts and head tiles compete for it byte by byte; at the first decode pass it may
    hold anything, for nothing.

    Parameters
    ----------
    model, policy, workload
        What was run; all prompts are ``workload.prompt_tokens`` long and none ended early.
    routing
        ``experts`` [tokens, MoE layers, top_k], ``sequence`` and ``position`` [tokens].
    """
    units = model_units(model, policy)
    moe = [layer.index for layer in model.layers if layer.experts]
    stages = [
        Stage(
            _unit(
                units.sizes[next(u for u in units.sizes if (u.stage, u.kind) == (index, "dense"))]
            ),
            tuple(_unit(layer.expert_bytes) for _ in range(layer.experts)),
        )
        for index, layer in enumerate(model.layers)
    ]
    tiles = [unit for unit in sorted(units.sizes) if unit.kind == "head"]
    stages.append(Stage(None, tuple(_unit(units.sizes[tile]) for tile in tiles)))
    step = np.maximum(routing["position"] - workload.prompt_tokens + 1, 0)
    numbers = routing["sequence"] // group_sequences(policy, workload) * workload.new_tokens + step
    passes = int(numbers.max()) + 1
    width = max(len(stage.items) for stage in stages)
    demand = np.zeros((passes, len(stages), width), np.int32)
    for column, layer in enumerate(moe):
        for choice in range(routing["experts"].shape[2]):
            demand[numbers, layer, routing["experts"][:, column, choice]] = 1
    demand[:, -1, : len(tiles)] = 1
    none = np.zeros(demand.shape[:2], np.int64)
    scenarios = Scenarios(
        none, none, demand, np.zeros(demand.shape, np.int64), none, np.ones(passes, np.int64)
    )
    problem = Problem(tuple(stages), scenarios, pool_bytes(model, policy), 0, measure="bytes")
    missing = least_copied(problem, np.arange(passes) % workload.new_tokens > 0)
    # exactly compressed weights take fewer bytes on the disk than in memory
    return int(missing * min(model.stored_share(kind) for kind in ("dense", "expert", "head")))


def _unit(size_bytes: int) -> Unit:
    return Unit(size_bytes, size_bytes)
