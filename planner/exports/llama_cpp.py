"""A shell script that starts llama.cpp's server: which tensors lie where, and its batch sizes.

A GGUF file has one tensor for all experts of a layer, so that they stay or go together. Tensors are
moved by regular expressions over their names, of which the first that is found anywhere in a name
counts; ``--n-cpu-moe N`` stands for those of the experts of the first N blocks.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from planner.documents import ModelSpec, Plan
from planner.exports.base import (
    Export,
    Sources,
    comments,
    copies,
    family_of,
    layer_list,
    lost_always,
    shape,
    streams_from,
    tokens_at_once,
)
from planner.exports.whole import Whole, keep_whole
from solvers.counting import counted

__all__ = ["EXPERT_TENSORS", "LAYOUTS", "blocks_pattern", "experts_pattern", "export"]

LAYOUTS: dict[str, str] = {
    "deepseek": "deepseek",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "ernie4_5_moe": "ernie4_5-moe",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "granitemoe": "granitemoe",
    "llama4_text": "llama4",
    "minimax_m2": "minimax-m2",
    "mixtral": "llama",
    "olmoe": "olmoe",
    "phimoe": "phimoe",
    "qwen2_moe": "qwen2moe",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
}
"""``model_type`` -> the architecture by which a GGUF file names its tensors."""

EXPERT_TENSORS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps")
"""A layer's experts (weights, and biases where there are any); the last stands for the first two
where a file has them in one."""

_MOST_SEQUENCES = 256
"""llama.cpp takes no more at once (``LLAMA_MAX_SEQ``)."""
_CONTEXT_STEP = 256
"""Each sequence's context is a multiple of it."""


def _one_of(names: Sequence[object]) -> str:
    return f"(?:{'|'.join(map(str, names))})"


def experts_pattern(layers: Sequence[int]) -> str:
    """A pattern that is found in the names of these layers' expert tensors and in no others."""
    parts = [name.removeprefix("ffn_").removesuffix("_exps") for name in EXPERT_TENSORS]
    return rf"^blk\.{_one_of(layers)}\.ffn_{_one_of(parts)}_exps\."


def blocks_pattern(layers: Sequence[int]) -> str:
    """A pattern that is found in the names of all tensors of these layers."""
    return rf"^blk\.{_one_of(layers)}\."


def export(sources: Sources) -> Export:
    """A script; see ``planner.exports.export``."""
    plan = sources.plan
    model, hardware = sources.known()
    layout = LAYOUTS[family_of(model, tuple(LAYOUTS), "a GGUF file")]
    sequences, context, _ = shape(plan)
    at_once = min(sequences, _MOST_SEQUENCES)
    lost = lost_always(plan, model)
    if sequences > at_once:
        lost.append(f"{counted(sequences, 'sequence')} at once: it takes at most {at_once}")
    ubatch = tokens_at_once(plan, lost, at_once)
    each = -(-context // _CONTEXT_STEP) * _CONTEXT_STEP
    options = [
        ("--parallel", str(at_once)),
        ("--ctx-size", str(at_once * each)),
        ("--batch-size", str(ubatch)),
        ("--ubatch-size", str(ubatch)),
    ]
    if plan.device == "cuda":
        whole = keep_whole(plan, model, embedding=False, positions=at_once * each)
        options += [("--n-gpu-layers", "999"), *_placement(whole, model.tied)]
        lost += _lost(plan, model, whole, streams_from(hardware))
    else:
        options.append(("--n-gpu-layers", "0"))
        lost += [
            "the memory budget, residents, prefetches and slots: without a GPU the file is mapped "
            "into memory, and the system keeps of it what it likes",
        ]
    if model.tied and plan.device == "cuda":
        lost.append("the tied head: a GPU gets a copy of the embedding as its output")
    facts = [
        f"For GGUF files of the layout {layout!r}: blk.N.({'|'.join(EXPERT_TENSORS)}).",
        "Sizes are those of the checkpoint; of a quantized file more layers fit.",
        "Run it with the name of the file: sh THIS_FILE model.gguf",
    ]
    arguments = [f"{name} {shlex.quote(value)}" for name, value in options]
    lines = ['exec "${LLAMA_SERVER:-llama-server}" --model "${1:?name the GGUF file}"', *arguments]
    script = " \\\n  ".join(lines) + "\n"
    text = "#!/bin/sh\n" + comments("llama.cpp", plan, facts, lost) + script
    return Export("llama.cpp", text, text, tuple(lost))


def _placement(whole: Whole, tied: bool) -> list[tuple[str, str]]:
    """Options for the weights that do not stay."""
    options: list[tuple[str, str]] = []
    away = whole.offloaded
    first = max(away, default=-1) + 1
    if away == tuple(layer for layer in whole.moe if layer < first):
        options += [("--n-cpu-moe", str(first))] if first else []
    else:
        options.append(("--override-tensor", f"{experts_pattern(away)}=CPU"))
    if whole.dense_away:
        options.append(("--override-tensor", f"{blocks_pattern(whole.dense_away)}=CPU"))
    if not whole.head and not tied:
        options.append(("--override-tensor", r"^output\.weight$=CPU"))
    return options


def _lost(plan: Plan, model: ModelSpec, whole: Whole, weights: str) -> list[str]:
    lost = whole.said(plan, model)
    if whole.offloaded:
        lost.append(
            "copying of the chosen experts, prefetches and their order: experts in host memory "
            f"({layer_list(whole.offloaded)}) are computed there, or copied for large "
            "batches, as llama.cpp decides"
        )
    if weights == "disk" and copies(plan, model):
        lost.append("streaming from the disk: the file is mapped into memory, which should hold it")
    return lost
