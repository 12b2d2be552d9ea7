"""The published policies' prices by hand, on a roofline of round numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.published import (
    BLOCKS,
    Figures,
    Run,
    experts_ns,
    float32_attention_moves,
    predicted_seconds,
)
from planner.documents import ModelSpec
from planner.roofline import OperationCosts, Roofline

LINE = Roofline(1e12, 1e11, 1000.0, 0.2, "spec")
"""1 FLOP a picosecond, 1 byte in 10, 1 us a call."""


@pytest.fixture
def model(small_profile: Any) -> ModelSpec:
    found = small_profile.model
    layer = dataclasses.replace(found.layers[0], experts=8, top_k=2)
    layers = tuple(dataclasses.replace(layer, index=index) for index in range(3))
    return dataclasses.replace(found, layers=layers)


def figures(model: ModelSpec, **change: Any) -> Figures:
    costs = OperationCosts(LINE, model, model.dtype_bytes, 1e9)
    return dataclasses.replace(Figures(costs, LINE, BLOCKS, 1e9, 1e9, 1e9), **change)


@pytest.mark.parametrize(
    ("tokens", "experts", "rows"),
    [
        (2, 4, 16),  # 4 pairs, no more than experts: a small block for each
        (32, 8, 64),  # 8 rows an expert
        (256, 8, 64),  # just a block
        (260, 8, 128),  # 65 rows
    ],
)
def test_experts_compute_whole_blocks(
    model: ModelSpec, tokens: int, experts: int, rows: int
) -> None:
    # products alone: memory is a thousand times as fast
    fast = dataclasses.replace(LINE, bytes_per_second=1e14)
    values = model.layers[0].expert_bytes / model.dtype_bytes
    expected = 2 * values * rows * experts / 1e12 * 1e9 + 4 * 1000
    assert experts_ns(figures(model, fused=fast), tokens) == pytest.approx(expected)


def test_attention_in_float32_by_hand() -> None:
    # read 1 and store 2, which moves 4; for each of 4 query heads a copy of 2: read 2, and store 8,
    # which moves 16; the products read 8
    assert float32_attention_moves(4) == 1 + 4 + 2 + 16 + 8


def a_run(system: str, on_gpu: float = 0.0) -> Run:
    return Run(system, "T4", 10, 5, 2, 3, on_gpu, 1.0, "test")


def test_the_slowest_part_counts_for_moe_lightning(model: ModelSpec) -> None:
    layer, slow = model.layers[0], 1000.0
    weights = layer.experts * layer.expert_bytes
    prefill, decode = predicted_seconds(a_run("MoE-Lightning"), figures(model, link=slow))
    # 3 layers; each of 4 steps copies all experts again
    assert prefill == pytest.approx(3 * weights / slow)
    assert decode == pytest.approx(4 * 3 * weights / slow)


def test_all_parts_add_up_for_flexgen(model: ModelSpec) -> None:
    layer = model.layers[0]
    there = figures(model)
    slower = dataclasses.replace(there, unpinned=5e8)
    for system, cached in (("FlexGen", True), ("FlexGen(c)", False)):
        before = predicted_seconds(a_run(system, 0.25), there)
        after = predicted_seconds(a_run(system, 0.25), slower)
        # half the speed adds what 1 GB/s takes: three quarters of the weights, and of 6 sequences
        # keys and values of 10 + (1 + 5) / 2 tokens, where they are copied
        copied = 0.75 * layer.total_bytes
        read = 6 * 13 * layer.kv_bytes_per_token if cached else 0
        assert after[0] - before[0] == pytest.approx(3 * copied / 1e9)
        assert after[1] - before[1] == pytest.approx(4 * 3 * (copied + read) / 1e9)
