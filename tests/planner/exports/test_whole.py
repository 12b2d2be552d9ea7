"""Which parts stay where a layer's experts stay or go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.documents import LayerPolicy
from planner.exports import Sources, keep_whole
from planner.exports.base import layer_list

# of the models here, in bytes (hidden 64, intermediate 128, float32, 512 words, four layers):
EXPERT = 3 * 64 * 128 * 4
DENSE = 4 * 64 * 64 * 4 + 64 * 8 * 4 + 2 * 64 * 4
VOCABULARY = 512 * 64 * 4
NORM = 64 * 4
LAYER = 8 * EXPERT
ALL_BUT_EXPERTS = 4 * DENSE + 2 * VOCABULARY
RUNNING = 1000


@pytest.mark.parametrize(
    ("layers", "residents", "experts"),
    [
        # room for two layers' experts and one that passes: the most resident ones stay
        (3, (3, 0, 2, 2), (0, 3)),
        (2, (3, 0, 2, 2), (0,)),
        # among equals the last ones
        (3, (1, 1, 1, 1), (2, 3)),
        (3, (0, 0, 0, 0), (2, 3)),
        # room for all of them: none has to pass
        (4, (0, 0, 0, 0), (0, 1, 2, 3)),
        (1, (8, 0, 0, 0), ()),
    ],
)
def test_by_hand(
    sources_of: Callable[..., Sources],
    layers: int,
    residents: tuple[int, ...],
    experts: tuple[int, ...],
) -> None:
    budget = RUNNING + NORM + ALL_BUT_EXPERTS + layers * LAYER
    sources = sources_of(residents, budget=budget)
    model, _ = sources.known()
    whole = keep_whole(sources.plan, model, embedding=True)
    assert whole.experts == experts
    assert (whole.embedding, whole.head, whole.dense) == (True, True, (0, 1, 2, 3))
    assert whole.offloaded == tuple(layer for layer in range(4) if layer not in experts)
    assert whole.used_bytes == ALL_BUT_EXPERTS + len(experts) * LAYER
    assert whole.passing_bytes == (0 if layers == 4 else LAYER)
    assert whole.missing_bytes == 0
    # a byte less, and one layer less stays
    tighter = sources_of(residents, budget=budget - 1)
    fewer = keep_whole(tighter.plan, model, embedding=True)
    assert len(fewer.experts) == {4: 2, 3: 1, 2: 0, 1: 0}[layers]


def test_dense_parts_that_the_plan_keeps_come_first(sources_of: Callable[..., Sources]) -> None:
    # room for what passes, two dense parts and nothing else
    budget = RUNNING + NORM + LAYER + 2 * DENSE
    sources = sources_of((0, 0, 0, 0), budget=budget, dense=(False, True, False, True))
    model, _ = sources.known()
    whole = keep_whole(sources.plan, model, embedding=True)
    assert whole.dense == (1, 3)
    assert whole.dense_away == (0, 2)
    assert not whole.head
    assert not whole.embedding
    assert whole.experts == ()


def test_a_budget_through_which_no_layer_passes(sources_of: Callable[..., Sources]) -> None:
    sources = sources_of((2, 2, 2, 2), budget=RUNNING + NORM + LAYER - 1)
    model, _ = sources.known()
    whole = keep_whole(sources.plan, model, embedding=True)
    assert whole.missing_bytes == 1
    # it is told, and everything else stays: leaving it out would not help
    assert whole.dense == (0, 1, 2, 3)
    assert whole.experts == ()
    assert any("1 B more than" in line for line in whole.said(sources.plan, model))


def test_what_is_said_of_residents(sources_of: Callable[..., Sources]) -> None:
    sources = sources_of((3, 0, 2, 2), budget=RUNNING + NORM + ALL_BUT_EXPERTS + 2 * LAYER)
    model, _ = sources.known()
    (line,) = keep_whole(sources.plan, model, embedding=True).said(sources.plan, model)
    assert "keeps 7 experts" in line
    assert "layers 2, 3 go" in line
    # one of each is told in the singular
    sources = sources_of((0, 0, 0, 1), budget=RUNNING + NORM + ALL_BUT_EXPERTS + LAYER)
    (line,) = keep_whole(sources.plan, model, embedding=True).said(sources.plan, model)
    assert "keeps 1 expert, chosen" in line
    assert line.endswith("and those of layer 3 go")


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((), "layers none"),
        ((7,), "layer 7"),
        ((0, 1), "layers 0, 1"),
        ((0, 2, 3, 4), "layers 0, 2 to 4"),
    ],
)
def test_layers_in_words(layers: tuple[int, ...], words: str) -> None:
    assert layer_list(layers) == words


@given(
    budget=st.integers(0, RUNNING + NORM + ALL_BUT_EXPERTS + 5 * LAYER),
    residents=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    dense=st.lists(st.booleans(), min_size=4, max_size=4),
    embedding=st.booleans(),
    tied=st.booleans(),
)
@settings(max_examples=60)
def test_weights_never_exceed_the_budget(
    sources_of: Callable[..., Sources],
    budget: int,
    residents: list[int],
    dense: list[bool],
    embedding: bool,
    tied: bool,
) -> None:
    sources = sources_of((0,) * 4)
    model = replace(sources.known()[0], tied=tied, head_bytes=0 if tied else VOCABULARY)
    layers = tuple(
        LayerPolicy(stays, tuple(range(count)), ())
        for stays, count in zip(dense, residents, strict=True)
    )
    account = replace(sources.plan.memory["device"], capacity_bytes=budget)
    policy = replace(sources.plan.policy, layers=layers)
    plan = replace(sources.plan, policy=policy, memory={"device": account})
    whole = keep_whole(plan, model, embedding=embedding)
    parts = len(whole.dense) * DENSE + len(whole.experts) * LAYER + whole.head * VOCABULARY
    assert whole.used_bytes == parts + (0 if tied else whole.embedding * VOCABULARY)
    assert whole.used_bytes <= whole.room_bytes == max(budget - RUNNING - NORM, 0)
    assert set(whole.experts) <= set(whole.dense)
    assert sorted(whole.experts + whole.offloaded) == [0, 1, 2, 3]
    if whole.offloaded and not whole.missing_bytes:
        assert whole.used_bytes + LAYER <= whole.room_bytes
    assert whole.embedding == whole.head or not tied
