"""A ``device_map`` for transformers and accelerate.

transformers 5 holds a layer's experts as one module of three-dimensional parameters, so that they
stay or go together. What does not stay is copied to the device whenever its module computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.documents import LayerSpec, ModelSpec
from planner.exports.base import (
    Export,
    Sources,
    family_of,
    gib,
    json_export,
    layer_list,
    lost_always,
    shape,
    streams_from,
)
from planner.exports.whole import Whole, keep_whole

__all__ = ["FAMILIES", "export"]


@dataclass(frozen=True, slots=True)
class _Block:
    """Modules of a layer with experts, by their names in it.

    ``experts`` holds them, ``beside`` stays with the dense part, ``shared`` too, where the layer
    has shared experts.
    """

    experts: str = "mlp.experts"
    beside: tuple[str, ...] = ("mlp.gate",)
    shared: tuple[str, ...] = ("mlp.shared_experts",)


FAMILIES: dict[str, _Block] = {
    "deepseek_v2": _Block(),
    "deepseek_v3": _Block(),
    "ernie4_5_moe": _Block(),
    "glm4_moe": _Block(),
    "gpt_oss": _Block(beside=("mlp.router",)),
    "granitemoe": _Block("block_sparse_moe.experts", ("block_sparse_moe.router",)),
    # its block has a buffer of its own, which no map of submodules can name beside the experts
    "minimax_m2": _Block("mlp", ()),
    "mixtral": _Block(),
    "olmoe": _Block(),
    "phimoe": _Block(beside=("mlp.router",)),
    "qwen2_moe": _Block(shared=("mlp.shared_expert", "mlp.shared_expert_gate")),
    "qwen3_moe": _Block(),
}
"""By ``model_type``."""

_ALWAYS = ("input_layernorm", "self_attn", "post_attention_layernorm")


def export(sources: Sources) -> Export:
    """A device map by modules; see ``planner.exports.export``."""
    plan = sources.plan
    model, hardware = sources.known()
    family = family_of(model, tuple(FAMILIES), "transformers")
    whole = keep_whole(plan, model, embedding=True)
    main: int | str = 0 if plan.device == "cuda" else "cpu"
    away = "cpu" if plan.device == "cuda" and streams_from(hardware) == "host" else "disk"
    device_map = _device_map(FAMILIES[family], whole, model, main, away)
    sequences, context, _ = shape(plan)
    lost = [*lost_always(plan, model), *whole.said(plan, model)]
    if whole.offloaded:
        most = max(_experts_bytes(model.layers[index]) for index in whole.offloaded)
        lost.append(
            f"copying of only the experts that the router chose: all of a layer's ({gib(most)}) go "
            f"over together, in {layer_list(whole.offloaded)}, for each batch anew"
        )
    if whole.offloaded or whole.dense_away:
        lost.append(
            "prefetching and the order of copies: a module's weights are copied when it computes, "
            "and computing waits for them"
        )
    if plan.policy.resident_head_tiles < plan.policy.head_tiles:
        lost.append("the head in tiles: it stays, or is copied whole")
    body = {
        "device_map": device_map,
        "dtype": plan.dtype,
        "needs_offload_folder": "disk" in device_map.values(),
        "sequences": sequences,
        "context_tokens": context,
        "on_device_bytes": whole.used_bytes,
        "how_to_load": "AutoModelForCausalLM.from_pretrained(CHECKPOINT, "
        "device_map=FILE['device_map'], dtype=FILE['dtype'], offload_folder=FOLDER)",
    }
    return json_export("accelerate", plan, body, lost)


def _experts_bytes(layer: LayerSpec) -> int:
    return layer.experts * layer.expert_bytes


def _device_map(
    block: _Block, whole: Whole, model: ModelSpec, main: int | str, away: str
) -> dict[str, int | str]:
    """Every module once, in the order of the model."""
    made: dict[str, int | str] = {
        "model.embed_tokens": main if whole.embedding else away,
        "model.rotary_emb": main,
    }
    for layer in model.layers:
        prefix = f"model.layers.{layer.index}"
        if layer.index not in whole.dense:
            made[prefix] = away
        elif layer.index in whole.experts or not layer.experts:
            made[prefix] = main
        else:
            beside = (*block.beside, *(block.shared if layer.shared_expert_bytes else ()))
            made |= {f"{prefix}.{name}": main for name in (*_ALWAYS, *beside)}
            made[f"{prefix}.{block.experts}"] = away
    return {**made, "model.norm": main, "lm_head": main if whole.head else away}
