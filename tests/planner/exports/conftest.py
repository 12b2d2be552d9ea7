"""Plans for models of any family: one that was made, with sets and a budget of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from planner.documents import (
    Channel,
    Figure,
    Hardware,
    LayerPolicy,
    MemoryAccount,
    Plan,
    Tier,
    Workload,
)
from planner.exports import Sources
from planner.solve import make_plan

RUNNING = 1000
"""Bytes for keys and values in these plans; there is nothing else beside weights and slots."""


def made_hardware(channel: str) -> Hardware:
    """A machine with a GPU of 1 GiB whose weights come over ``channel``."""
    link = Channel(channel, Figure(1e9, "spec"), Figure(0.0, "spec"))  # type: ignore[arg-type]
    return Hardware("made-up", "cuda", "none", 2, (Tier("device", 1 << 30, "spec"),), (link,))


@pytest.fixture(scope="session")
def made_plan(profile_factory: Any) -> Plan:
    return make_plan(
        profile_factory(layers=1, sequences=4),
        Workload(requests=12, prompt_tokens=16, new_tokens=4),
        memory_bytes=1 << 22,
        solver="on-demand",
    )


@pytest.fixture(scope="session")
def sources_of(profile_factory: Any, made_plan: Plan) -> Callable[..., Sources]:
    """``sources_of(residents, budget=..., family=..., ...)``: a plan of two batches of three whose
    layer i keeps its first ``residents[i]`` experts, by default with room for everything; what else
    is given goes to the model."""

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
        layers = tuple(
            LayerPolicy(stays, tuple(range(count)), ())
            for stays, count in zip(dense or [True] * len(residents), residents, strict=True)
        )
        plan = replace(
            made_plan,
            device="cuda",
            dtype="bfloat16",
            policy=replace(made_plan.policy, n_batches=2, batch_size=3, layers=layers),
            memory={"device": MemoryAccount(budget, {"kv": RUNNING, "slots": 1})},
        )
        return Sources(plan, replace(profile.model, family=family), made_hardware(channel))

    return made
