"""Exported device maps, loaded by transformers and accelerate: every family, logits as without."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor import open_weights
from executor.families import FAMILIES
from planner.documents import Channel, Figure, Hardware, LayerPolicy, ModelSpec, Plan, Workload
from planner.exports import Export, Sources, export
from planner.exports.accelerate import FAMILIES as EXPORTED
from planner.memory import account_device, smallest_policy


def hardware(channel: str) -> Hardware:
    link = Channel(channel, Figure(1e9, "spec"), Figure(0.0, "spec"))  # type: ignore[arg-type]
    device = "cpu" if channel == "disk" else "cuda"
    return Hardware("made-up", device, "none", 2, (), (link,))  # type: ignore[arg-type]


def export_of(plan: Plan, model: ModelSpec, channel: str) -> Export:
    return export("accelerate", Sources(plan, model, hardware(channel)))


@pytest.fixture
def planned(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> Callable[[str], tuple[Plan, ModelSpec]]:
    """A plan of a family's tiny checkpoint that keeps some experts of each layer, with room for
    the experts of all MoE layers but two, and for those of one that pass (of a model with one such
    layer, for less than that)."""

    def made(family: str) -> tuple[Plan, ModelSpec]:
        checkpoint = checkpoint_of(family)
        with open_weights(checkpoint) as source:
            model = source.model
        draw = random.Random(family)
        base = smallest_policy(model, model.dtype_bytes)
        layers = tuple(
            LayerPolicy(True, tuple(range(draw.randint(0, spec.experts))), ())
            for spec in model.layers
        )
        policy, workload = replace(base, layers=layers), Workload(3, 8, 4)
        account = account_device(model, policy, workload, model.dtype_bytes, 0)
        running = sum(account.by_purpose[k] for k in ("kv", "hidden", "workspace", "logits"))
        rest, moe = model.total_bytes - model.expert_bytes, len(model.moe_layers)
        budget = running + rest + (moe - 1) * (model.expert_bytes // moe)
        return helpers.plan(checkpoint, policy, workload, budget_bytes=budget), model

    return made


def test_every_family_that_runs_is_exported() -> None:
    assert {*EXPORTED, "nllb-moe", "switch_transformers"} == set(FAMILIES)


@pytest.mark.parametrize("family", EXPORTED)
def test_a_map_loads_and_gives_the_same_logits(
    family: str,
    planned: Callable[[str], tuple[Plan, ModelSpec]],
    checkpoint_of: Callable[..., Path],
    tmp_path: Path,
) -> None:
    plan, model = planned(family)
    made = export_of(plan, model, "disk")
    device_map = made.body["device_map"]
    away = {name for name, device in device_map.items() if device == "disk"}
    assert 0 < len(away) < len(device_map)
    assert made.body["needs_offload_folder"]
    checkpoint = checkpoint_of(family)
    plain = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    # each module of the map is one of the model, and each weight lies in exactly one of them
    assert set(device_map) <= {name for name, _ in plain.named_modules()}
    for weight in plain.state_dict():
        assert sum(weight.startswith(f"{name}.") for name in device_map) == 1, weight
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, device_map=device_map, dtype=made.body["dtype"], offload_folder=tmp_path
    )
    absent = {name for name, weight in loaded.named_parameters() if weight.device.type == "meta"}
    assert absent == {
        name
        for name, _ in plain.named_parameters()
        if any(name.startswith(f"{module}.") for module in away)
    }
    assert any("experts" in name for name in absent)
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, plain(tokens).logits)


@pytest.mark.parametrize("family", EXPORTED)
def test_on_a_gpu_it_is_the_same_map_with_other_devices(
    family: str, planned: Callable[[str], tuple[Plan, ModelSpec]]
) -> None:
    plan, model = planned(family)
    here = export_of(plan, model, "disk").body["device_map"]
    there = export_of(replace(plan, device="cuda"), model, "h2d").body
    swap = {"cpu": 0, "disk": "cpu"}
    assert there["device_map"] == {name: swap[device] for name, device in here.items()}
    assert not there["needs_offload_folder"]


def test_what_is_lost(planned: Callable[[str], tuple[Plan, ModelSpec]]) -> None:
    plan, model = planned("mixtral")
    plan = replace(plan, policy=replace(plan.policy, n_batches=3))
    made = export_of(plan, model, "disk")
    words = " ".join(made.cannot_express)
    for part in (
        "promised speed",
        "3 batches of 1 that share",
        "prefetching",
        "single residents",
        "the router chose",
    ):
        assert part in words
    assert made.body["cannot_express"] == list(made.cannot_express)


def test_nothing_of_a_plan_without_copies_is_said_to_be_lost(
    planned: Callable[[str], tuple[Plan, ModelSpec]], helpers: Any
) -> None:
    plan, model = planned("mixtral")
    account = replace(plan.memory["device"], capacity_bytes=1 << 30)
    plan = replace(plan, policy=helpers.resident(model), memory={"device": account})
    made = export_of(plan, model, "disk")
    assert set(made.body["device_map"].values()) == {"cpu"}
    assert [line.split(":")[0] for line in made.cannot_express] == ["the promised speed"]
