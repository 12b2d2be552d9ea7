"""Tokens equal those of transformers' ``generate``: greedy, in float32."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor import Engine, open_weights
from executor.tokenizer import load_tokenizer
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import smallest_policy
from solvers.errors import CheckpointError, OptionError

FAMILIES = ("mixtral", "qwen3_moe", "olmoe")
NEW_TOKENS = 32


def prompts_of(vocabulary: int, count: int = 16, longest: int = 24) -> list[list[int]]:
    """Prompts of unequal length; the first is the shortest, the last the longest."""
    draw = random.Random(5)
    lengths = [1, *(draw.randint(2, longest) for _ in range(count - 2)), longest]
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    """What transformers generates."""
    return cache(lambda family: helpers.greedy(checkpoint_of(family), prompts_of(211), NEW_TOKENS))


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


# each policy from both sources for one family, from one of them for the others
CASES = [
    (family, name, source)
    for number, name in enumerate(POLICIES)
    for family in FAMILIES
    for source in ("checkpoint", "store")
    if family == "mixtral" or source == ("checkpoint", "store")[number % 2]
]


@pytest.mark.parametrize(("family", "name", "origin"), CASES)
def test_tokens(
    family: str,
    name: str,
    origin: str,
    checkpoint_of: Callable[..., Path],
    store_of: Callable[[str], Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
) -> None:
    checkpoint = checkpoint_of(family)
    store = store_of(family) if origin == "store" else None
    with open_weights(checkpoint) as source:
        model = source.model
    policy = policies(model, helpers.resident(model))[name]
    prompts, want = prompts_of(model.vocab_size), expected(family)
    if name == "least":  # one sequence at a time is slow: a few show as much
        prompts, want = prompts[-3:], want[-3:]
    plan = helpers.plan(checkpoint, policy, Workload(16, 24, NEW_TOKENS), store=store)
    with Engine.from_plan(plan, verify=store is not None) as engine:
        got = [list(output.token_ids) for output in engine.generate(prompts)]
        totals = engine.trace().totals
    assert got == want
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    assert totals.new_tokens == sum(map(len, want))


# --- the example checkpoint -----------------------------------------------------------------------

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"
TEXTS = [
    "def",
    "import os\n",
    "class Node:\n    def __init__(self",
    "The quick brown fox",
    "for index, value in enumerate(",
    "Returns the number of items in the",
    "try:\n    file = open(path)\nexcept",
    "x = [1, 2, 3]\nprint(",
    "raise ValueError(",
    "This module provides",
    "    return self._",
    "if __name__ == '__main__':",
    "lambda a, b:",
    "A string is a sequence of",
    "while True:\n    line =",
    "#",
]


@pytest.fixture(scope="module")
def example_expected() -> list[tuple[list[int], str]]:
    """What transformers' tokenizer and ``generate`` make of each text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLE)
    model = transformers.AutoModelForCausalLM.from_pretrained(EXAMPLE)
    results = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        new = whole[0, ids.shape[1] :].tolist()
        results.append((new, tokenizer.decode(new, skip_special_tokens=True)))
    return results


@pytest.mark.parametrize("name", POLICIES)
def test_example_checkpoint(
    name: str, example_expected: list[tuple[list[int], str]], helpers: Any
) -> None:
    """Text in, text out, from barely one layer in memory to all of them."""
    with open_weights(EXAMPLE) as source:
        model = source.model
    policy = policies(model, helpers.resident(model))[name]
    # experts are of 135 KiB here: the chunks of tiny models would take long
    policy = replace(policy, chunk_bytes=max(policy.chunk_bytes, 64 << 10))
    texts, want = TEXTS, example_expected
    if name == "least":
        texts, want = texts[-2:], want[-2:]
    plan = helpers.plan(EXAMPLE, policy, Workload(16, 24, NEW_TOKENS))
    with Engine.from_plan(plan) as engine:
        outputs = engine.generate(texts)
    assert [output.prompt for output in outputs] == texts
    assert [(list(output.token_ids), output.text) for output in outputs] == want


def test_a_token_that_no_tokenizer_knows_is_refused(helpers: Any) -> None:
    # this checkpoint has a tokenizer, which must not be asked first: 2**70 overflows it
    with open_weights(EXAMPLE) as source:
        policy = smallest_policy(source.model, 4)
    plan = helpers.plan(EXAMPLE, policy, Workload(1, 4, 1))
    with (
        Engine.from_plan(plan) as engine,
        pytest.raises(OptionError, match="outside the vocabulary"),
    ):
        engine.generate([[2**70]], 1)


def test_a_folder_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is a folder; a tokenizer's file"):
        load_tokenizer(tmp_path)


def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
