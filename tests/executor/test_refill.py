"""A freed place is taken by the next prompt: tokens stay transformers', whoever runs beside."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from executor import Engine, open_weights
from executor.attention import Attention
from executor.sequences import Grown, Sequences
from planner.documents import LayerPolicy, Plan, Workload
from planner.memory import smallest_policy

# latent attention, sinks with a window, a window in some layers, and plain
FAMILIES = ("mixtral", "deepseek_v2", "gpt_oss", "qwen2_moe")
DRAW = random.Random(8)
PROMPTS = [
    [DRAW.randrange(3, 200) for _ in range(DRAW.choice([1, 2, 5, 11, 16]))] for _ in "x" * 13
]
LIMITS = [DRAW.randint(1, 9) for _ in PROMPTS]


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    """What transformers generates, each prompt alone."""

    def make(family: str) -> list[list[int]]:
        whole = helpers.greedy(checkpoint_of(family), PROMPTS, max(LIMITS))
        return [tokens[:limit] for tokens, limit in zip(whole, LIMITS, strict=True)]

    return cache(make)


def plan_for(checkpoint: Path, helpers: Any, n_batches: int, batch_size: int) -> Plan:
    """Two batches prefetch, three keep what they have used, one demands all."""
    with open_weights(checkpoint) as source:
        model = source.model
    ahead = (5, 2) if n_batches == 2 else ()
    policy = replace(
        smallest_policy(model, 4),
        n_batches=n_batches,
        batch_size=batch_size,
        layers=tuple(
            LayerPolicy(False, (), ahead if spec.experts else ()) for spec in model.layers
        ),
        slots=5,
        dense_slots=2,
        eviction="lru" if n_batches == 3 else "none",
        chunk_bytes=8192,
    )
    made: Plan = helpers.plan(checkpoint, policy, Workload(len(PROMPTS), 16, max(LIMITS)))
    return made


CASES = [("mixtral", 1, 5, "runs"), ("mixtral", 1, 5, "grid")] + [
    (family, *case) for family in FAMILIES for case in ((2, 2, "grid"), (3, 3, "runs"))
]


@pytest.mark.parametrize(("family", "n_batches", "batch_size", "tiles"), CASES)
def test_tokens(
    family: str,
    n_batches: int,
    batch_size: int,
    tiles: str,
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``grid`` has the tiles of reduced precision, in float32, so that tokens can be compared."""
    plan = plan_for(checkpoint_of(family), helpers, n_batches, batch_size)
    # a tile holds three of the longest prompts: batches have several
    monkeypatch.setattr("executor.attention.ATTENTION_TILE_ROWS", 48)
    with Engine.from_plan(plan) as engine:
        operations = engine._device.operations
        operations._attention.bucketed = operations._bucketed = tiles == "grid"
        outputs = engine.generate(PROMPTS, LIMITS)
        totals, routing = engine.trace().totals, engine.routing()
    assert [list(output.token_ids) for output in outputs] == expected(family)
    # each sequence's tokens were routed once, prompt and new ones (but the last), in their order
    for index, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True)):
        rows = routing.sequence == index
        length = len(prompt) + len(output.token_ids) - 1
        assert routing.position[rows].tolist() == list(range(length))
        assert routing.phase[rows].tolist() == [int(at >= len(prompt)) for at in range(length)]
    # no place is empty while a prompt waits, so the busiest has at most the mean and one sequence
    places = n_batches * batch_size
    new = sum(map(len, expected(family)))
    assert totals.new_tokens == new
    assert totals.passes <= new / places + max(LIMITS)
    # one group after the other takes as long as its longest sequence each
    groups = [LIMITS[at : at + places] for at in range(0, len(LIMITS), places)]
    assert totals.passes <= sum(map(max, groups))


def test_a_mixed_batch_has_the_tiles_of_pure_ones(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    """Sequence 1 of five begins, 3 has ended; a tile of prefill holds two sequences."""
    plan = plan_for(checkpoint_of("mixtral"), helpers, 1, 5)
    with Engine.from_plan(plan) as engine:
        state, adapter = engine._device.state, engine._device.adapter
        for bucketed, prefill in ((False, [(1, 2)]), (True, [(0, 2)])):
            attention = Attention(adapter, state)
            attention.bucketed = bucketed
            state.prompt_tokens = 256
            state.context = 300
            state.begin([1, 256, 1, 0, 1], [4, 0, 9, 7, 2])
            tiles = [tuple(tile) for tile in attention._tiles(range(5))]
            assert tiles == [(0, 5, False), *((first, stop, True) for first, stop in prefill)]


def test_places_are_taken_in_order() -> None:
    """Tokens say by their value which sequence ends: 0."""
    prompts = [[7], [8, 8], [9], [10, 10, 10], [11], [12]]
    results: list[list[int]] = [[] for _ in prompts]
    group = Sequences(prompts, range(3), results, lambda _, token: token == 0, waiting=range(3, 6))
    assert (group.tokens, group.counts, group.past) == ([7, 8, 8, 9], [1, 2, 1], [0, 0, 0])
    grown = group.grow([0, 1, 2], [5, 0, 5])
    assert grown == [Grown(0, 5, False), Grown(1, 0, True), Grown(2, 5, False)]
    assert (group.members, group.past, group.counts) == ([0, 3, 2], [1, 0, 1], [1, 3, 1])
    group.grow([0, 1, 2], [0, 5, 0])
    assert (group.members, group.past, group.counts) == ([4, 3, 5], [0, 3, 0], [1, 1, 1])
    # nobody waits: the place stays empty
    group.grow([0, 1, 2], [0, 5, 5])
    assert (group.members, group.past, group.counts) == ([4, 3, 5], [1, 4, 1], [0, 1, 1])
    group.grow([1, 2], [0, 0])
    assert (group.tokens, group.members) == ([], [])
    assert results == [[5, 0], [0], [5, 0], [5, 5, 0], [0], [5, 0]]


def test_where_all_end_the_next_are_a_new_group() -> None:
    prompts = [[7], [8], [9], [10, 10]]
    results: list[list[int]] = [[] for _ in prompts]
    group = Sequences(prompts, range(3), results, lambda *_: True, waiting=[3])
    group.grow([0, 1, 2], [1, 1, 1])
    assert (group.members, group.past, group.counts) == ([3], [0], [2])
