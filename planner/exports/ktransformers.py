"""Placement rules for ktransformers: which layers' experts are computed on the GPU.

Its rules are a YAML list; of a module the first rule counts whose ``match`` fits. These are for the
experts alone and go before those of the model's own rule file, which say the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.exports.base import (
    Export,
    Sources,
    comments,
    family_of,
    layer_list,
    lost_always,
    needs_gpu,
    streams_from,
)
from planner.exports.whole import keep_whole

__all__ = ["FAMILIES", "export"]

_EXPERTS = "ktransformers.operators.experts.KTransformersExperts"


FAMILIES: dict[str, str] = {
    "deepseek_v2": "DeepSeek-V2-Chat.yaml",
    "deepseek_v3": "DeepSeek-V3-Chat.yaml",
    "qwen2_moe": "Qwen2-57B-A14B-Instruct.yaml",
    "qwen3_moe": "Qwen3-30B-A3B.yaml",
}
"""``model_type`` -> the rule file that has the other rules."""


def export(sources: Sources) -> Export:
    """Rules; see ``planner.exports.export``."""
    plan = sources.plan
    model, hardware = sources.known()
    rule_file = FAMILIES[family_of(model, tuple(FAMILIES), "ktransformers")]
    needs_gpu(plan, "ktransformers", "computes experts on a GPU or in host memory")
    whole = keep_whole(plan, model, embedding=False)
    lost = [*lost_always(plan, model), *whole.said(plan, model)]
    lost.append("sequences, context and batches: rules say nothing of them")
    if whole.offloaded:
        lost.append(
            "copying of experts in decode, prefetches and their order: experts that do not stay "
            "are computed by the processor"
        )
    if whole.dense_away:
        lost.append(
            f"streaming of dense parts ({layer_list(whole.dense_away)}): the rule file has "
            "them all on the GPU"
        )
    if whole.offloaded and streams_from(hardware) == "disk":
        lost.append("streaming from the disk: host memory must hold the experts that do not stay")
    if whole.experts:
        lost.append(
            "sizes: experts on the GPU are packed in 4 bits there (Marlin), so that they need less "
            "memory than the plan's, and CUDA graphs must be off"
        )
    facts = [
        f"Put these before the rules of ktransformers/optimize/optimize_rules/{rule_file}.",
        f"Experts on the GPU: {layer_list(whole.experts)}; "
        f"by the processor: {layer_list(whole.offloaded)}.",
    ]
    text = comments("ktransformers", plan, facts, lost)
    if whole.experts:
        text += _rule(
            whole.experts,
            generate_device="cuda:0",
            generate_op="KExpertsMarlin",
        )
    if whole.offloaded:
        text += _rule(
            whole.offloaded,
            prefill_device="cuda:0",
            prefill_op="KExpertsTorch",
            generate_device="cpu",
            generate_op="KExpertsCPU",
            out_device="cuda:0",
        )
    return Export("ktransformers", text, text, tuple(lost))


def _rule(layers: Sequence[int], **arguments: str) -> str:
    numbers = "|".join(map(str, layers))
    name = rf"^model\.layers\.({numbers})\.mlp\.experts$"
    lines = [
        "- match:",
        f"    name: '{name}'",
        "  replace:",
        f"    class: {_EXPERTS}",
        "    kwargs:",
        *(f'      {key}: "{value}"' for key, value in arguments.items()),
        "  recursive: False",
    ]
    return "\n".join(lines) + "\n"
