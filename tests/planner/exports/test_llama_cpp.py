"""llama.cpp: patterns over the names that the gguf package has for each architecture."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from gguf.constants import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    MODEL_TENSOR,
    MODEL_TENSORS,
    TENSOR_NAMES,
)

from planner.exports import Sources, export, keep_whole
from planner.exports.llama_cpp import EXPERT_TENSORS, LAYOUTS, blocks_pattern, experts_pattern
from solvers.errors import UnsupportedError

BLOCKS = 64
EXPERTS = (
    MODEL_TENSOR.FFN_GATE_EXP,
    MODEL_TENSOR.FFN_UP_EXP,
    MODEL_TENSOR.FFN_DOWN_EXP,
    MODEL_TENSOR.FFN_GATE_UP_EXP,
)
# what --n-cpu-moe N makes of each block below N
PER_BLOCK = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def architecture(layout: str) -> MODEL_ARCH:
    (found,) = [arch for arch, name in MODEL_ARCH_NAMES.items() if name == layout]
    return found


def names(layout: str, tensors: Collection[MODEL_TENSOR] | None = None) -> Iterator[str]:
    """Names of all tensors of 64 blocks, as a file may have them, or only of these."""
    for tensor in MODEL_TENSORS[architecture(layout)]:
        if tensors is None or tensor in tensors:
            for block in range(BLOCKS):
                name = TENSOR_NAMES[tensor].format(bid=block)
                yield from (f"{name}.weight", f"{name}.bias")


def found_by(patterns: Collection[str], layout: str) -> set[str]:
    return {name for name in names(layout) if any(re.search(one, name) for one in patterns)}


def in_blocks(found: Iterator[str], layers: Collection[int]) -> set[str]:
    return {name for name in found if int(name.split(".")[1]) in layers}


@pytest.mark.parametrize("layers", [(1,), (11,), (21,), (1, 11), (2, 12, 22), tuple(range(3, 61))])
@pytest.mark.parametrize("layout", sorted(set(LAYOUTS.values())))
def test_patterns_find_the_experts_of_these_layers_and_nothing_else(
    layout: str, layers: tuple[int, ...]
) -> None:
    wanted = in_blocks(names(layout, EXPERTS), layers)
    assert len(wanted) >= 2 * 3 * len(layers)
    assert found_by([experts_pattern(layers)], layout) == wanted
    whole = in_blocks((name for name in names(layout) if name.startswith("blk.")), layers)
    assert found_by([blocks_pattern(layers)], layout) == whole


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS.values())))
def test_no_expert_tensor_has_another_name(layout: str) -> None:
    every = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[architecture(layout)]}
    assert {name for name in every if "exps" in name} <= {
        f"blk.{{bid}}.{name}" for name in EXPERT_TENSORS
    }


@pytest.fixture
def started(tmp_path: Path) -> Callable[[Sources], list[str]]:
    """What the script starts the server with."""

    def run(sources: Sources) -> list[str]:
        script = tmp_path / "serve.sh"
        script.write_text(export("llama.cpp", sources).text)
        fake = tmp_path / "server"
        fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        fake.chmod(0o755)
        done = subprocess.run(
            ["sh", script, "a file.gguf"],
            env={"LLAMA_SERVER": str(fake), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    return run


def values(arguments: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(arguments) if name == option]


# of four layers, bytes: keys and values (1000 are planned for 6 sequences of 20 tokens, of which
# llama.cpp makes 256 each), experts of a layer, everything but experts and embedding
KV = 12_800
LAYER = 8 * 3 * 64 * 128 * 4
REST = 4 * (4 * 64 * 64 * 4 + 64 * 8 * 4 + 2 * 64 * 4) + 512 * 64 * 4 + 64 * 4 + KV


@pytest.mark.parametrize(
    ("residents", "offloaded", "first"),
    [
        ((1, 1, 1, 1), {0, 1}, 2),
        ((0, 2, 1, 2), {0, 2}, None),
        ((2, 0, 0, 2), {1, 2}, None),
        ((0, 0, 2, 2), {0, 1}, 2),
    ],
)
def test_experts_that_go(
    sources_of: Callable[..., Sources],
    started: Callable[[Sources], list[str]],
    residents: tuple[int, ...],
    offloaded: set[int],
    first: int | None,
) -> None:
    # room for two layers' experts, and for one that passes, to the byte
    sources = sources_of(residents, budget=REST + 3 * LAYER)
    model, _ = sources.known()
    assert keep_whole(sources.plan, model, embedding=False, positions=6 * 256).room_bytes == (
        REST - KV - 256 + 3 * LAYER
    )
    arguments = started(sources)
    wanted = in_blocks(names("qwen3moe", EXPERTS), offloaded)
    if first is None:
        assert values(arguments, "--n-cpu-moe") == []
        (override,) = values(arguments, "--override-tensor")
        pattern, where = override.split("=")
        assert where == "CPU"
        assert "," not in pattern  # which separates overrides
        assert found_by([pattern], "qwen3moe") == wanted
    else:
        assert values(arguments, "--override-tensor") == []
        (count,) = map(int, values(arguments, "--n-cpu-moe"))
        assert count == first
        assert found_by([PER_BLOCK.format(i) for i in range(count)], "qwen3moe") == wanted


def test_layers_without_experts_count_among_the_first(
    sources_of: Callable[..., Sources], started: Callable[[Sources], list[str]]
) -> None:
    # two dense layers, then experts in layers 2 to 5: those of the last two stay
    model, _ = sources_of((0,) * 6, dense_layers=2).known()
    rest = sum(layer.dense_bytes for layer in model.layers) + model.head_bytes + 256 + KV
    sources = sources_of((0,) * 6, dense_layers=2, family="deepseek_v3", budget=rest + 3 * LAYER)
    assert values(started(sources), "--n-cpu-moe") == ["4"]


def test_sizes_of_batches_and_context(
    sources_of: Callable[..., Sources], started: Callable[[Sources], list[str]]
) -> None:
    arguments = started(sources_of((8, 8)))
    assert arguments[:2] == ["--model", "a file.gguf"]
    # 6 sequences of 16 + 4 tokens, each with a context that is a multiple of 256
    assert values(arguments, "--parallel") == ["6"]
    assert values(arguments, "--ctx-size") == [str(6 * 256)]
    assert values(arguments, "--batch-size") == values(arguments, "--ubatch-size") == ["96"]
    assert values(arguments, "--n-gpu-layers") == ["999"]
    assert "--n-cpu-moe" not in arguments
    assert "--override-tensor" not in arguments


def test_large_groups_are_cut_and_that_is_said(
    sources_of: Callable[..., Sources], started: Callable[[Sources], list[str]]
) -> None:
    sources = sources_of((8, 8))
    policy = replace(sources.plan.policy, n_batches=30, batch_size=10)
    workload = replace(sources.plan.workload, requests=1000, prompt_tokens=600)
    plan = replace(sources.plan, policy=policy, workload=workload)
    sources = replace(sources, plan=plan)
    arguments = started(sources)
    assert values(arguments, "--parallel") == ["256"]
    assert values(arguments, "--ctx-size") == [str(256 * 768)]
    assert values(arguments, "--ubatch-size") == ["4096"]
    said = " ".join(export("llama.cpp", sources).cannot_express)
    assert "300 sequences at once: it takes at most 256" in said
    assert "prefill of 180,000 tokens" in said


def test_dense_parts_and_the_head_that_go(
    sources_of: Callable[..., Sources], started: Callable[[Sources], list[str]]
) -> None:
    dense = 4 * 64 * 64 * 4 + 64 * 8 * 4 + 2 * 64 * 4
    sources = sources_of(
        (0,) * 4, dense=(True, False, False, True), budget=KV + 256 + LAYER + 2 * dense
    )
    arguments = started(sources)
    assert values(arguments, "--n-cpu-moe") == ["4"]
    blocks, head = values(arguments, "--override-tensor")
    assert found_by([blocks.removesuffix("=CPU")], "qwen3moe") == in_blocks(
        (name for name in names("qwen3moe") if name.startswith("blk.")), {1, 2}
    )
    assert found_by([head.removesuffix("=CPU")], "qwen3moe") == {"output.weight"}


def test_what_cannot_be_expressed_stands_in_the_script(sources_of: Callable[..., Sources]) -> None:
    made = export("llama.cpp", sources_of((1, 1), channel="disk", budget=REST + LAYER))
    comments = [line for line in made.text.splitlines() if line.startswith("# Cannot")]
    assert comments == [f"# Cannot be expressed: {line}" for line in made.cannot_express]
    words = " ".join(made.cannot_express)
    for part in ("2 batches of 3", "single residents", "prefetches", "streaming from the disk"):
        assert part in words


def test_without_a_gpu_only_sizes_are_told(
    sources_of: Callable[..., Sources], started: Callable[[Sources], list[str]]
) -> None:
    sources = sources_of((1, 1))
    sources = replace(sources, plan=replace(sources.plan, device="cpu"))
    arguments = started(sources)
    assert values(arguments, "--n-gpu-layers") == ["0"]
    assert "--n-cpu-moe" not in arguments
    assert any("memory budget" in line for line in export("llama.cpp", sources).cannot_express)


def test_an_unknown_layout_is_refused(sources_of: Callable[..., Sources]) -> None:
    with pytest.raises(UnsupportedError, match="'yuan' model is not known"):
        export("llama.cpp", sources_of((1, 1), family="yuan"))


def test_no_argument_needs_the_shell(sources_of: Callable[..., Sources]) -> None:
    # what the shell makes of the script is what stands in it
    text = export("llama.cpp", sources_of((0, 2, 0, 2), budget=REST + 3 * LAYER)).text
    command = text[text.index("exec") :].replace("\\\n", " ")
    assert shlex.split(command)[4:] == [
        *("--parallel", "6", "--ctx-size", "1536", "--batch-size", "96", "--ubatch-size", "96"),
        *("--n-gpu-layers", "999", "--override-tensor"),
        r"^blk\.(?:0|2)\.ffn_(?:gate|up|down|gate_up)_exps\.=CPU",
    ]
