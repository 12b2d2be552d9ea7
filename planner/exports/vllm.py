"""Engine arguments for vLLM."""

from __future__ import annotations

from typing import Any

from planner.documents import ExpertPlacement, Hardware, ModelSpec, Plan
from planner.exports.base import (
    Export,
    Sources,
    gib,
    json_export,
    lost_always,
    needs_gpu,
    shape,
    streams_from,
    tokens_at_once,
)
from solvers.counting import counted
from solvers.errors import UnsupportedError

__all__ = ["export"]

_GIB = 1 << 30


def export(sources: Sources) -> Export:
    """Keyword arguments of ``vllm.LLM``; see ``planner.exports.export``."""
    plan, placement = sources.plan, sources.placement
    model, hardware = sources.known()
    needs_gpu(plan, "vllm", "offloads from a GPU to host memory")
    sequences, context, _ = shape(plan)
    arguments: dict[str, Any] = {
        "dtype": plan.dtype,
        "max_num_seqs": sequences,
        "max_model_len": context,
    }
    lost = [
        *lost_always(plan, model),
        "the plan's account of memory: vLLM measures its own, and gives keys and values what is "
        "left",
    ]
    arguments["max_num_batched_tokens"] = tokens_at_once(plan, lost, max(context, sequences))
    arguments |= _memory(plan, hardware, lost)
    if placement is None:
        arguments |= _offload(plan, model, hardware, lost)
    else:
        arguments |= _devices(plan, model, placement, lost)
    return json_export("vllm", plan, {"engine_args": arguments}, lost)


def _memory(plan: Plan, hardware: Hardware, lost: list[str]) -> dict[str, Any]:
    budget = plan.memory["device"].capacity_bytes
    (device,) = [tier.capacity_bytes for tier in hardware.tiers if tier.name == "device"] or [0]
    if budget < device:
        return {"gpu_memory_utilization": max(int(1000 * budget / device) / 1000, 0.001)}
    lost.append(
        f"the budget of {gib(budget)}: the profile does not say how much memory the GPU has in "
        "all; set gpu_memory_utilization to the budget over that"
    )
    return {}


def _offload(plan: Plan, model: ModelSpec, hardware: Hardware, lost: list[str]) -> dict[str, Any]:
    """Offload as many bytes of experts as do not stay in the plan."""
    away = sum(
        (spec.experts - len(layer.resident)) * spec.expert_bytes
        for spec, layer in zip(model.layers, plan.policy.layers, strict=True)
    )
    if not away:
        return {}
    lost += [
        "which experts stay: vLLM offloads whole layers of experts in the model's order until "
        f"{gib(away)} are away, which is what the plan has away",
        "prefetches, on-demand copies and their order: the GPU reads offloaded weights over the "
        "link when it computes with them, each time",
    ]
    if not all(layer.dense_resident for layer in plan.policy.layers):
        lost.append("streaming of dense parts: they stay, and the budget must hold them")
    if streams_from(hardware) == "disk":
        lost.append(f"streaming from the disk: {gib(away)} of host memory hold what is offloaded")
    return {"cpu_offload_gb": -(-away * 1000 // _GIB) / 1000, "cpu_offload_params": ["experts"]}


def _devices(
    plan: Plan, model: ModelSpec, placement: ExpertPlacement, lost: list[str]
) -> dict[str, Any]:
    """Experts on several devices, by vLLM's own balancer."""
    layers = tuple(layer.layer for layer in placement.layers)
    experts = {model.layers[index].experts for index in model.moe_layers}
    if layers != model.moe_layers or experts != {placement.experts}:
        raise UnsupportedError(
            f"the placement is of {counted(len(layers), 'layer')} of "
            f"{counted(placement.experts, 'expert')}, and {model.name} has other ones; place the "
            "routing of this model"
        )
    held = -(-(placement.experts + placement.replicas) // placement.devices) * placement.devices
    redundant = held - placement.experts
    lost += [
        "the placement itself: vLLM's balancer makes its own from the load that it sees; only how "
        "many devices and copies there are can be given",
        "residents, prefetches and offloading: with experts on several devices all weights stay",
    ]
    if redundant != placement.replicas:
        lost.append(
            f"{counted(placement.replicas, 'replica')}: each device holds as many experts as the "
            f"others, which takes {redundant}"
        )
    if placement.nodes > 1:
        lost.append(
            f"{counted(placement.nodes, 'node')}: how processes are spread over them is up to who "
            "starts them"
        )
    arguments: dict[str, Any] = {
        "tensor_parallel_size": placement.devices,
        "enable_expert_parallel": True,
    }
    if redundant:
        arguments |= {
            "enable_eplb": True,
            "eplb_config": {"num_redundant_experts": redundant},
        }
    return arguments
