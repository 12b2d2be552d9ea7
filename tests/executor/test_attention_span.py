"""Attention to the first and the last tokens, against transformers with a mask that says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from executor import Engine, open_weights
from executor.state import GroupState
from planner.documents import Workload
from planner.memory import account_device, smallest_policy
from solvers.errors import UnsupportedError

LENGTHS = (1, 3, 20, 7, 13, 9)
NEW_TOKENS = 8


def prompts() -> list[list[int]]:
    return [[3 + (37 * i + 11 * j * j) % 200 for j in range(n)] for i, n in enumerate(LENGTHS)]


def masked(model: Any, prompt: list[int], window: int, sinks: int) -> list[int]:
    """Greedy tokens of transformers, which computes the whole sequence anew for each, with all that
    a token may not see masked."""
    ids = list(prompt)
    while len(ids) < len(prompt) + NEW_TOKENS and ids[-1] != model.config.eos_token_id:
        at = torch.arange(len(ids))
        seen = (at[None] <= at[:, None]) & ((at[None] < sinks) | (at[None] > at[:, None] - window))
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), attention_mask=mask[None, None]).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    ("family", "window", "sinks"),
    [("mixtral", 5, 2), ("mixtral", 4, 9), ("qwen3_moe", 5, 2), ("deepseek_v2", 1, 1)],
)
def test_tokens_are_those_of_the_mask(
    family: str, window: int, sinks: int, checkpoint_of: Any, helpers: Any
) -> None:
    checkpoint = checkpoint_of(family)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    wanted = [masked(model, prompt, window, sinks) for prompt in prompts()]
    assert masked(model, prompts()[2], max(LENGTHS) + NEW_TOKENS, 0) != wanted[2]
    workload = Workload(len(LENGTHS), max(LENGTHS), NEW_TOKENS, window, sinks)
    with open_weights(checkpoint) as source:
        base = smallest_policy(source.model, 4)
    # one pass of all; and few places, so that prompts begin while other sequences go on
    for batches, size in ((1, 6), (2, 2)):
        policy = replace(base, n_batches=batches, batch_size=size)
        with Engine.from_plan(helpers.plan(checkpoint, policy, workload)) as engine:
            found = [list(one.token_ids) for one in engine.generate(prompts())]
        assert found == wanted


@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 25))
def test_columns_hold_what_may_be_seen(window: int, sinks: int, count: int) -> None:
    state = object.__new__(GroupState)
    state.window, state.sinks, state.columns = window, sinks, window + sinks
    # token by token, as decode writes
    room: dict[int, int] = {}
    for position in range(count):
        room[state.column(position)] = position
    visible = {q for q in range(count) if q < sinks or q > count - 1 - window}
    assert set(room.values()) >= visible
    assert len(room) == min(count, window + sinks)
    # all at once, as prefill does
    kept = state.kept_positions(count)
    assert {column: kept[column] for column in room} == room


def test_memory_of_keys_and_values(checkpoint_of: Any) -> None:
    with open_weights(checkpoint_of("mixtral")) as source:
        model = source.model
    policy = replace(smallest_policy(model, 4), n_batches=2, batch_size=8)
    long = Workload(64, 90, 110)
    sunk = replace(long, attention_window=28, attention_sinks=4)
    kept = [account_device(model, policy, one, 4, 0).by_purpose["kv"] for one in (long, sunk)]
    # 16 sequences, 3 layers, keys and values of 2 heads of 16 values in float32
    assert kept == [16 * 3 * 2 * 2 * 16 * 4 * tokens for tokens in (200, 32)]


def test_windows_of_a_models_own_are_refused(checkpoint_of: Any, helpers: Any) -> None:
    checkpoint = checkpoint_of("gpt_oss")
    with open_weights(checkpoint) as source:
        policy = smallest_policy(source.model, 4)
    plan = helpers.plan(checkpoint, policy, Workload(1, 20, 4, 5, 2))
    with pytest.raises(UnsupportedError, match=r"gpt_oss\): layer 0 has a window of 8 tokens"):
        Engine.from_plan(plan)
