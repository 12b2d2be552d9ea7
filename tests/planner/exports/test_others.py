"""Rules for ktransformers and arguments for vLLM."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from planner.documents import BalanceFigures, ExpertPlacement, LayerPlacement, QuantizedExperts
from planner.exports import TARGETS, Sources, export
from solvers.errors import OptionError, UnsupportedError

from_sources = Callable[..., Sources]

LAYER = 8 * 3 * 64 * 128 * 4
REST = 4 * (4 * 64 * 64 * 4 + 64 * 8 * 4 + 2 * 64 * 4) + 512 * 64 * 4 + 64 * 4 + 1000


def test_rules_for_ktransformers_by_layer(sources_of: from_sources) -> None:
    # twelve layers, so that 1 and 11 differ; the experts of 1, 4 and 11 stay
    residents = [0, 3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 5]
    budget = 3 * (REST - 512 * 64 * 4 - 256 - 1000) + 512 * 64 * 4 + 256 + 1000 + 4 * LAYER
    made = export("ktransformers", sources_of(residents, budget=budget))
    rules = yaml.safe_load(made.text)
    where = {}
    for layer in range(12):
        name = f"model.layers.{layer}.mlp.experts"
        # of a module the first rule that fits counts; here only one does
        (rule,) = [rule for rule in rules if re.search(rule["match"]["name"], name)]
        where[layer] = rule["replace"]["kwargs"]["generate_device"]
        assert rule["recursive"] is False
        assert rule["replace"]["class"].startswith("ktransformers.operators.experts.")
    assert {layer for layer, device in where.items() if device == "cuda:0"} == {1, 4, 11}
    assert set(where.values()) == {"cuda:0", "cpu"}
    for other in ("model.layers.1.mlp.gate", "model.layers.1.mlp.shared_experts.up_proj"):
        assert not any(re.search(rule["match"]["name"], other) for rule in rules)
    head = [line for line in made.text.splitlines() if line.startswith("# Cannot")]
    assert head == [f"# Cannot be expressed: {line}" for line in made.cannot_express]


@pytest.mark.parametrize(("residents", "rules"), [((8, 8), 1), ((0, 0), 1)])
def test_one_rule_where_all_or_none_stay(
    sources_of: from_sources, residents: tuple[int, ...], rules: int
) -> None:
    budget = 1 << 29 if residents[0] else REST + LAYER
    made = yaml.safe_load(export("ktransformers", sources_of(residents, budget=budget)).text)
    assert len(made) == rules


@pytest.mark.parametrize("target", ["ktransformers", "vllm"])
def test_a_plan_without_a_gpu_is_refused(sources_of: from_sources, target: str) -> None:
    sources = sources_of((1, 1))
    sources = replace(sources, plan=replace(sources.plan, device="cpu"))
    with pytest.raises(UnsupportedError, match=f"^{target} .*plan for a GPU"):
        export(target, sources)


def test_arguments_for_vllm(sources_of: from_sources) -> None:
    # 8 experts of 2 layers, of which 3 and 5 stay: 8 go, of 98,304 bytes each
    made = export("vllm", sources_of((3, 5), budget=1 << 28))
    assert made.body["engine_args"] == {
        "dtype": "bfloat16",
        "max_num_seqs": 6,
        "max_model_len": 20,
        "max_num_batched_tokens": 96,
        "gpu_memory_utilization": 0.25,  # of 1 GiB
        "cpu_offload_gb": 0.001,  # 0.0007 GiB, rounded up to thousandths
        "cpu_offload_params": ["experts"],
    }
    assert any("which experts stay" in line for line in made.cannot_express)


def test_vllm_is_not_told_to_offload_where_all_stays(sources_of: from_sources) -> None:
    arguments = export("vllm", sources_of((8, 8))).body["engine_args"]
    assert not {"cpu_offload_gb", "cpu_offload_params"} & set(arguments)


def test_a_budget_of_an_unknown_gpu_is_said_not_guessed(sources_of: from_sources) -> None:
    # a measured profile has the budget as the device's capacity
    made = export("vllm", sources_of((3, 5), budget=1 << 30))
    assert "gpu_memory_utilization" not in made.body["engine_args"]
    assert any("set gpu_memory_utilization" in line for line in made.cannot_express)


def placement(layers: tuple[int, ...], devices: int, replicas: int) -> ExpertPlacement:
    figures = BalanceFigures(0.5, 0.5, 0.1, 4)
    held = tuple((expert % devices,) for expert in range(8))
    return ExpertPlacement(
        method="greedy",
        devices=devices,
        nodes=1,
        replicas=replicas,
        experts=8,
        layers=tuple(LayerPlacement(layer, held) for layer in layers),
        routing_hash="0" * 64,
        routing_source="synthetic",
        drawn="",
        fitted=figures,
        held_out=figures,
        bound=0.5,
        gap=0.0,
        stop="rule",
    )


@pytest.mark.parametrize(
    ("devices", "replicas", "redundant"), [(4, 0, 0), (4, 4, 4), (4, 1, 4), (3, 0, 1)]
)
def test_vllm_with_a_placement(
    sources_of: from_sources, devices: int, replicas: int, redundant: int
) -> None:
    sources = replace(sources_of((3, 5)), placement=placement((0, 1), devices, replicas))
    made = export("vllm", sources)
    arguments = made.body["engine_args"]
    assert arguments["tensor_parallel_size"] == devices
    assert arguments["enable_expert_parallel"] is True
    # each device holds as many
    assert (8 + redundant) % devices == 0
    told = arguments.get("eplb_config", {"num_redundant_experts": 0})
    assert told == {"num_redundant_experts": redundant}
    assert ("enable_eplb" in arguments) == (redundant > 0)
    assert "cpu_offload_gb" not in arguments
    assert any(line.startswith("the placement itself") for line in made.cannot_express)
    assert any("which takes" in line for line in made.cannot_express) == (redundant != replicas)


def test_a_placement_of_another_model_is_refused(sources_of: from_sources) -> None:
    sources = replace(sources_of((3, 5)), placement=placement((0, 1, 2), 4, 0))
    with pytest.raises(UnsupportedError, match="of 3 layers of 8 experts"):
        export("vllm", sources)


def test_a_plan_for_quantized_experts_is_refused(sources_of: from_sources) -> None:
    sources = sources_of((1, 1))
    model = replace(sources.known()[0], quantized=QuantizedExperts("int4-1"))
    for target in ("accelerate", "llama.cpp", "ktransformers", "vllm"):
        with pytest.raises(UnsupportedError, match="experts in int4-1, which no other engine"):
            export(target, replace(sources, model=model))
    plan = sources.plan
    layers = (replace(plan.policy.layers[0], forms=("int4-1",)), *plan.policy.layers[1:])
    own = replace(sources, plan=replace(plan, policy=replace(plan.policy, layers=layers)))
    for target in ("accelerate", "llama.cpp", "ktransformers", "vllm"):
        with pytest.raises(UnsupportedError, match="forms of their own, which no other engine"):
            export(target, own)


def test_unknown_targets_and_plans_alone(sources_of: from_sources) -> None:
    sources = sources_of((1, 1))
    with pytest.raises(OptionError, match=r"'gguf' is unknown; choose from accelerate, llama\.cpp"):
        export("gguf", sources)
    alone = Sources(sources.plan)
    for target, known in TARGETS.items():
        if "model" in known.reads:
            with pytest.raises(UnsupportedError, match="give its profile"):
                export(target, alone)
