"""Plans made by hand for models of any family, and the hardware they are for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.documents import (
    Channel,
    Figure,
    Hardware,
    Inputs,
    LayerPolicy,
    Locations,
    MemoryAccount,
    ModelSpec,
    Plan,
    Policy,
    Predicted,
    PredictedTotals,
    Range,
    Tier,
    Timeline,
    Workload,
)
from planner.exports import Sources

RUNNING = 1000
"""Bytes for keys and values in these plans; there is nothing else beside weights and slots."""


def made_plan(
    model: ModelSpec, residents: Sequence[int], budget: int, dense: Sequence[bool] | None = None
) -> Plan:
    """Two batches of three sequences; layer i keeps its first ``residents[i]`` experts."""
    nothing = PredictedTotals(0, 0, 0, 0, 0, 0, {})
    kept = dense or [True] * len(model.layers)
    return Plan(
        solver="by hand",
        stop="rule",
        objective_name="throughput",
        objective=1.0,
        bound=None,
        bound_class=None,
        gap=None,
        inputs=Inputs(*("0" * 64,) * 5, store_fingerprint=None),
        locations=Locations("no profile", "no checkpoint", None),
        workload=Workload(requests=12, prompt_tokens=16, new_tokens=4),
        device="cuda",
        dtype="bfloat16",
        policy=Policy(
            n_batches=2,
            batch_size=3,
            layers=tuple(
                LayerPolicy(stays, tuple(range(count)), ())
                for stays, count in zip(kept, residents, strict=True)
            ),
            head_tile_rows=64,
            head_tiles=2,
            resident_head_tiles=2,
            slots=3,
            dense_slots=0,
            reserve=1,
            eviction="none",
            chunk_bytes=4096,
        ),
        memory={"device": MemoryAccount(budget, {"kv": RUNNING, "slots": 1})},
        predicted=Predicted(Range(9, 8, 10), Range(9, 8, 10), 0, nothing, Timeline.of([])),
        chosen_over={},
        notes=(),
    )


def made_hardware(channel: str = "h2d", device_bytes: int = 1 << 30) -> Hardware:
    """A machine with a GPU whose weights come over ``channel``."""
    speed = Figure(1e9, "spec")
    return Hardware(
        name="made-up",
        device="cuda",
        processor="none",
        threads=2,
        tiers=(Tier("device", device_bytes, "spec"),),
        channels=(Channel(channel, speed, Figure(0.0, "spec")),),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def sources_of(profile_factory: Any) -> Callable[..., Sources]:
    """``sources_of(residents, budget=..., family=..., ...)``: a plan of as many layers, by default
    with room for everything; what else is given goes to the model."""

    def made(
        residents: Sequence[int],
        *,
        budget: int = 1 << 29,
        family: str = "qwen3_moe",
        channel: str = "h2d",
        dense: Sequence[bool] | None = None,
        **model_options: Any,
    ) -> Sources:
        profile = profile_factory(layers=len(residents), sequences=2, **model_options)
        model = replace(profile.model, family=family)
        return Sources(made_plan(model, residents, budget, dense), model, made_hardware(channel))

    return made
