"""Traces drawn from statistics keep the statistics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from planner.drawn_routing import draw_routing, inclusion, systematic
from planner.routing import popularity, write_trace
from solvers.errors import DocumentError, OptionError

WEIGHTS = arrays.arrays(
    np.float64, st.integers(2, 12), elements=st.just(0.0) | st.floats(1e-6, 1e6)
).filter(lambda weight: weight.sum() > 0)


@settings(max_examples=100)
@given(WEIGHTS, st.data())
def test_chances_add_up_and_keep_the_order(weight: Any, data: Any) -> None:
    top_k = data.draw(st.integers(1, len(weight)))
    chance = inclusion(weight, top_k)
    assert chance.sum() == pytest.approx(top_k)
    assert chance.min() >= 0
    assert chance.max() <= 1
    order = np.argsort(weight, kind="stable")
    assert (np.diff(chance[order]) >= -1e-9).all()


def test_chances_by_hand() -> None:
    assert inclusion(np.array([1.0, 1.0, 2.0]), 1).tolist() == [0.25, 0.25, 0.5]
    # 2 x 8/10 is more than certain; the other two share what is left
    assert inclusion(np.array([8.0, 1.0, 1.0]), 2).tolist() == [1.0, 0.5, 0.5]


@settings(max_examples=50)
@given(WEIGHTS, st.data())
def test_a_draw_has_different_experts_with_any_chance(weight: Any, data: Any) -> None:
    top_k = data.draw(st.integers(1, len(weight)))
    chance = np.broadcast_to(inclusion(weight, top_k), (40, len(weight)))
    drawn = systematic(chance, top_k, np.random.default_rng(0))
    assert drawn.shape == (40, top_k)
    assert all(len(set(row)) == top_k for row in drawn.tolist())
    # what is certain is always there
    for expert in np.flatnonzero(chance[0] >= 1.0):
        assert (drawn == expert).any(axis=1).all()


def test_frequencies_are_the_chances() -> None:
    chance = inclusion(np.array([5.0, 3.0, 1.0, 1.0]), 2)
    drawn = systematic(np.broadcast_to(chance, (20_000, 4)), 2, np.random.default_rng(1))
    seen = np.bincount(drawn.ravel(), minlength=4) / 20_000
    # five standard deviations of a share of 20,000
    assert abs(seen - chance).max() < 5 * 0.5 / 20_000**0.5


def test_uniform_and_zipf(small_profile: Any) -> None:
    model = small_profile.model
    drawn = draw_routing("uniform", model, prompt_tokens=8, seed=0)
    assert drawn.document.source == "synthetic"
    assert "all experts alike" in drawn.statement
    again = draw_routing("uniform", model, prompt_tokens=8, seed=0)
    assert again.document == drawn.document
    shares = popularity(drawn.arrays, drawn.document.experts)
    assert abs(shares - 1 / drawn.document.experts).max() < 0.03
    skewed = draw_routing("zipf:1.5", model, prompt_tokens=8, seed=0)
    assert popularity(skewed.arrays, skewed.document.experts).max() > 2 / drawn.document.experts
    assert (skewed.arrays.phase == 0).sum() == 8 * skewed.document.sequences


def test_drawing_tells_how_far_it_is(small_profile: Any) -> None:
    told: list[tuple[int, int, str]] = []
    drawn = draw_routing(
        "uniform",
        small_profile.model,
        prompt_tokens=8,
        seed=0,
        progress=lambda *one: told.append(one),
    )
    count = drawn.document.sequences
    assert told == [(index, count, "drawing routing") for index in range(count)]


def test_prompts_keep_their_shares(small_profile: Any, tmp_path: Path) -> None:
    model = small_profile.model
    layers, experts = len(small_profile.routing.moe_layers), small_profile.routing.experts
    one, two = np.zeros(experts), np.zeros(experts)
    one[:2], two[2:4] = 0.5, 0.5
    path = tmp_path / "shares.npz"
    np.savez(path, a=np.stack([np.tile(one, (layers, 1)), np.tile(two, (layers, 1))]))
    drawn = draw_routing(str(path), model, prompt_tokens=8, seed=0)
    # with two experts of half each, both are certain; sequences alternate
    assert drawn.document.top_k == 2
    of = [
        set(drawn.arrays.experts[drawn.arrays.sequence == index].ravel().tolist())
        for index in range(4)
    ]
    assert of[0] != of[1]
    assert of[0] == of[2]
    assert {frozenset(each) for each in of} == {frozenset({0, 1}), frozenset({2, 3})}
    assert "independently" in drawn.statement


def test_layers_that_are_not_known_take_the_nearest(small_profile: Any, tmp_path: Path) -> None:
    model = small_profile.model
    experts = small_profile.routing.experts
    first, last = np.full(experts, 1e-9), np.full(experts, 1e-9)
    first[:2], last[2:4] = 1.0, 1.0
    path = tmp_path / "counts.json"
    ends = [model.layers[0].index, model.layers[-1].index]
    body = {"layers": ends, "data": {"m": {"d": [first.tolist(), last.tolist()]}}}
    path.write_text(json.dumps(body))
    drawn = draw_routing(str(path), model, prompt_tokens=8, seed=0)
    shares = popularity(drawn.arrays, experts)
    assert shares[0, :2].sum() == pytest.approx(1)
    assert shares[-1, 2:4].sum() == pytest.approx(1)
    assert "only 2 of" in drawn.statement


def test_a_recorded_trace_stays(small_profile: Any, tmp_path: Path) -> None:
    trace = small_profile.routing
    write_trace(
        tmp_path,
        small_profile.arrays,
        model_hash=trace.model_hash,
        moe_layers=trace.moe_layers,
        expert_count=trace.experts,
    )
    path = str(tmp_path / "routing.json")
    drawn = draw_routing(path, small_profile.model, prompt_tokens=8, seed=0)
    assert (drawn.arrays.experts == small_profile.arrays.experts).all()
    assert drawn.document.source == "measured"
    assert drawn.statement == "whole sequences as in routing.json"
    # of a configuration alone, whose document is another one
    alone = replace(small_profile.model, fingerprint="a" * 64)
    said = draw_routing(path, alone, prompt_tokens=8, seed=0).statement
    assert said.startswith("whole sequences as in routing.json; it is of a model of the same shape")
    assert said.endswith("name the checkpoint's folder, not its config.json alone")


def test_what_does_not_fit_is_refused(small_profile: Any, tmp_path: Path) -> None:
    model = small_profile.model
    path = tmp_path / "shares.npz"
    np.savez(path, a=np.full((3, 2, 5), 0.2))
    with pytest.raises(DocumentError, match="of 5 experts"):
        draw_routing(str(path), model, prompt_tokens=8, seed=0)
    for what, words in (
        ("zipf:x", "write it like zipf:1.0"),
        ("zipf:nan", "write it like"),
        ("nowhere.npz", "no such file; give statistics, uniform, or zipf"),
    ):
        with pytest.raises(OptionError, match=words):
            draw_routing(what, model, prompt_tokens=8, seed=0)
    with pytest.raises(OptionError, match="--series has no effect"):
        draw_routing("uniform", model, prompt_tokens=8, seed=0, series="a")
