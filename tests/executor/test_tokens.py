"""Tokens equal those of transformers' ``generate``: greedy, in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor import Engine, open_weights, pack
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import smallest_policy

FAMILIES = ("mixtral", "qwen3_moe", "olmoe")
NEW_TOKENS = 32


def prompts_of(vocabulary: int, count: int = 16, longest: int = 24) -> list[list[int]]:
    """Prompts of unequal length; the first is the shortest, the last the longest."""
    draw = random.Random(5)
    lengths = [1, *(draw.randint(2, longest) for _ in range(count - 2)), longest]
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path]) -> Callable[[str], list[list[int]]]:
    """What transformers generates, prompt by prompt (so without any padding)."""
    known: dict[str, list[list[int]]] = {}

    def make(family: str) -> list[list[int]]:
        if family not in known:
            model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_of(family))
            known[family] = []
            for prompt in prompts_of(211):
                ids = torch.tensor([prompt])
                whole = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                )
                known[family].append(whole[0, len(prompt) :].tolist())
        return known[family]

    return make


def streaming(model: ModelSpec, base: Policy, prefetch: int, resident: int) -> Policy:
    """The first experts resident, the next prefetched (the highest first)."""
    layers = []
    for spec in model.layers:
        here = tuple(range(min(resident, spec.experts)))
        ahead = tuple(range(len(here), min(len(here) + prefetch, spec.experts)))[::-1]
        layers.append(LayerPolicy(False, here, ahead))
    return replace(base, layers=tuple(layers))


def policies(model: ModelSpec, everything: Policy) -> dict[str, Policy]:
    """From barely one layer to everything, n from 1 to 8."""
    least = smallest_policy(model, model.dtype_bytes)
    return {
        "least": least,
        "n2 on demand": replace(least, n_batches=2, batch_size=3, slots=3),
        "n4 prefetch": replace(
            streaming(model, least, 4, 0), n_batches=4, batch_size=4, slots=4, dense_slots=2
        ),
        "n3 lru": replace(
            least, n_batches=3, batch_size=2, slots=9, reserve=2, eviction="lru", dense_slots=2
        ),
        "n5 lru prefetch": replace(
            streaming(model, least, 3, 2),
            n_batches=5,
            batch_size=3,
            slots=6,
            eviction="lru",
            chunk_bytes=4096,
        ),
        "n8 tiles": replace(
            streaming(model, least, 8, 0),
            n_batches=8,
            batch_size=2,
            slots=5,
            reserve=2,
            dense_slots=3,
            resident_head_tiles=min(2, least.head_tiles),
            chunk_bytes=8192,
        ),
        "everything": replace(everything, n_batches=1, batch_size=16),
    }


POLICIES = (
    "least",
    "n2 on demand",
    "n4 prefetch",
    "n3 lru",
    "n5 lru prefetch",
    "n8 tiles",
    "everything",
)


@pytest.mark.parametrize("from_store", [False, True], ids=["checkpoint", "store"])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens(
    family: str,
    name: str,
    from_store: bool,
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    tmp_path: Path,
) -> None:
    checkpoint = checkpoint_of(family)
    store = tmp_path / "store" if from_store else None
    if store is not None:
        pack(checkpoint, store)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = policies(model, helpers.resident(model))[name]
    prompts, want = prompts_of(model.vocab_size), expected(family)
    if name == "least":  # one sequence at a time is slow: a few show as much
        prompts, want = prompts[-3:], want[-3:]
    plan = helpers.plan(checkpoint, policy, Workload(16, 24, NEW_TOKENS), store=store)
    with Engine.from_plan(plan, verify=from_store) as engine:
        got = [list(output.token_ids) for output in engine.generate(prompts)]
        totals = engine.trace().totals
    assert got == want
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    assert totals.new_tokens == sum(map(len, want))
