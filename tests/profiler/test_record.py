"""Prompts that nobody asked for are cut to what the budget holds; given ones are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from executor.source import open_weights
from planner.documents import ModelSpec, Workload
from planner.memory import smallest_budget
from planner.model_spec import read_model
from planner.profiles import load_profile
from profiler import profile_checkpoint
from profiler.effort import Effort
from profiler.record import longest_prompt, record_routing, recording_policy
from solvers.errors import BudgetError

NEW_TOKENS = 16
QUICK = Effort(cell_ns=1, rounds=1, fills=1, turns=1, passes=1, stream_ns=0)


def test_the_longest_prompt_fits_and_one_token_more_does_not(
    checkpoint: Callable[[str], Path],
) -> None:
    model = read_model(checkpoint("mixtral"))
    smallest, largest = (smallest_budget(model, Workload(1, n, NEW_TOKENS), 4) for n in (1, 60))
    for memory in (smallest, (smallest + largest) // 2, largest):
        tokens = longest_prompt(model, NEW_TOKENS, memory)
        assert smallest_budget(model, Workload(1, tokens, NEW_TOKENS), 4) <= memory
        assert smallest_budget(model, Workload(1, tokens + 1, NEW_TOKENS), 4) > memory
    assert longest_prompt(model, NEW_TOKENS, smallest - 1) == 0
    # the context of 96 ends it where memory does not
    assert longest_prompt(model, NEW_TOKENS, 1 << 40) == 96 - NEW_TOKENS


def test_own_prompts_are_cut_to_the_budget(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint("mixtral"), folder)
    lines = [{"token_ids": [index + 1] * 70} for index in range(3)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = read_model(folder)
    memory = smallest_budget(model, Workload(1, 20, NEW_TOKENS), 4)
    longest = longest_prompt(model, NEW_TOKENS, memory)
    profile_checkpoint(folder, tmp_path / "p", memory_bytes=memory, effort=QUICK)
    arrays = load_profile(tmp_path / "p").arrays
    assert np.bincount(arrays.sequence[arrays.phase == 0]).tolist() == [longest] * 3
    # prompts that a user names are run as they are, or refused
    asked = [line["token_ids"] for line in lines]
    with pytest.raises(BudgetError, match="a prompt of 70 tokens"):
        profile_checkpoint(folder, tmp_path / "q", memory_bytes=memory, prompts=asked)


def least(model: ModelSpec, longest: int, new_tokens: int) -> int:
    """A budget of which no dense part stays."""
    workload = Workload(1, longest, new_tokens)
    memory = smallest_budget(model, workload, 4)
    found = recording_policy(model, workload, memory)
    assert found is not None
    assert not any(layer.dense_resident for layer in found[0].layers)
    return memory


@pytest.mark.parametrize(
    ("family", "all_stay"),
    [("mixtral", True), ("mixtral", False), ("qwen3_moe", False), ("interleaved", True)],
)
def test_what_routers_say_ahead_is_transformers_own(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], family: str, all_stay: bool
) -> None:
    """The input of each router, taken from transformers' model, times the next one's weights."""
    folder = checkpoint(family)
    with open_weights(folder) as source:
        memory = 1 << 30 if all_stay else least(source.model, max(map(len, prompts[:3])), 1)
        arrays = record_routing(source, prompts[:3], memory, new_tokens=1, ahead=True).arrays
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    inputs: list[torch.Tensor] = []
    for gate in gates:
        gate.register_forward_pre_hook(lambda _, given: inputs.append(given[0].flatten(0, -2)))
    assert arrays.ahead is not None
    for index, tokens in enumerate(prompts[:3]):
        inputs.clear()
        with torch.inference_mode():
            model(torch.tensor([tokens]))
        rows = arrays.ahead[(arrays.sequence == index) & (arrays.phase == 0)]
        for layer in range(1, len(gates)):
            logits = inputs[layer - 1].clone() @ gates[layer].weight.detach().T
            chosen = logits.topk(rows.shape[2]).indices.sort().values
            np.testing.assert_array_equal(np.sort(rows[:, layer]), chosen.numpy())


def test_what_routers_say_ahead_is_the_same_where_dense_parts_stream(
    checkpoint: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    """Prefill and decode; with a layer without experts between, whose attention overwrites what
    would be asked about, nobody is asked."""
    said = []
    with open_weights(checkpoint("mixtral")) as source:
        for memory in (1 << 30, least(source.model, len(prompts[0]), 4)):
            arrays = record_routing(source, prompts[:1], memory, new_tokens=4, ahead=True).arrays
            assert arrays.ahead is not None
            said.append(np.sort(arrays.ahead))
    assert len(said[0]) == len(prompts[0]) + 3
    np.testing.assert_array_equal(said[0], said[1])
    with open_weights(checkpoint("interleaved")) as source:
        memory = least(source.model, len(prompts[0]), 1)
        recorded = record_routing(source, prompts[:1], memory, new_tokens=1, ahead=True)
    assert recorded.arrays.ahead is None
