"""Operation times by hand: the larger of products and memory, plus calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from planner.catalogue import named_machine
from planner.documents import Figure
from planner.roofline import CALLS, OperationCosts, Roofline, efficiencies, reached

LINE = Roofline(1e12, 1e11, 1000.0, 0.2, "spec")
"""1 FLOP a picosecond, 1 byte in 10, 1 us a call."""


def costs(model: Any, **change: Any) -> OperationCosts:
    return OperationCosts(LINE, dataclasses.replace(model, **change), model.dtype_bytes, 1e9)


def test_the_slower_of_products_and_memory_counts() -> None:
    # 1e6 flops take 1 us, 1e6 bytes 10 us
    assert LINE.ns("head", 1e6, 1e6) == 10_000 + 3 * 1000
    assert LINE.ns("head", 1e8, 1e6) == 100_000 + 3 * 1000


def test_an_expert_by_hand(small_profile: Any) -> None:
    model = small_profile.model
    layer = model.layers[0]
    hidden, inner = model.hidden_size, layer.expert_intermediate
    assert layer.expert_bytes == 3 * hidden * inner * model.dtype_bytes
    many = 100_000
    flops = 2 * 3 * hidden * inner * many
    moved = layer.expert_bytes + many * (4 * hidden + 4 * inner) * model.dtype_bytes
    expected = max(flops / 1e12, moved / 1e11) * 1e9 + 4 * 1000
    assert costs(model).row_ns("expert", many) == pytest.approx(expected)


def test_packed_experts_compute_as_many_products(small_profile: Any) -> None:
    model = small_profile.model
    layers = tuple(
        dataclasses.replace(layer, expert_bytes=layer.expert_bytes // 4) for layer in model.layers
    )
    plain, packed = costs(model), costs(model, layers=layers)
    assert packed.expert_values() == plain.expert_values()


def test_attention_by_hand(small_profile: Any) -> None:
    model = small_profile.model
    layer, width = model.layers[0], model.attention_heads * model.head_dim
    values = (layer.attention_bytes + layer.norm_bytes) / model.dtype_bytes
    rows, context = 5, 300
    flops = 2 * values * rows + 4 * rows * context * width
    moved = (
        layer.attention_bytes
        + layer.norm_bytes
        + rows * context * layer.kv_bytes_per_token
        + rows * (6 * model.hidden_size + 4 * width) * model.dtype_bytes
    )
    expected = max(flops / 1e12, moved / 1e11) * 1e9 + CALLS["attention"] * 1000
    assert costs(model).attention_ns(rows, context, "decode") == pytest.approx(expected)


def test_a_window_bounds_what_attention_reads(small_profile: Any) -> None:
    model = small_profile.model
    layers = tuple(dataclasses.replace(layer, window=16) for layer in model.layers)
    short = costs(model).attention_ns(64, 16, "decode")
    assert costs(model, layers=layers).attention_ns(64, 4096, "decode") == pytest.approx(short)
    assert costs(model).attention_ns(64, 4096, "decode") > short


def test_curves_are_rounded_up_and_say_how_sure(small_profile: Any) -> None:
    found = costs(small_profile.model)
    curve = found.curves()["expert"]
    assert all(
        made >= exact > made - 1
        for made, exact in (
            (curve(rows), found.row_ns("expert", rows)) for rows in (1, 2, 3, 4, 96, 1024)
        )
    )
    assert curve.source == "spec"
    assert curve.held_out_error == 0.2


def test_efficiencies_apply_to_limits_alone() -> None:
    fit = efficiencies()["link"]
    limit = reached(Figure(32e9, "spec"), "link")
    assert limit.value == pytest.approx(32e9 * fit.value)
    assert limit.source == "fitted"
    measured = Figure(25e9, "measured", 1.0, 3)
    assert reached(measured, "link") is measured


def test_a_machines_roofline() -> None:
    fit = efficiencies()
    t4 = Roofline.of(named_machine("t4"), "float16")
    assert t4.source == "fitted"
    share = fit["operation"].value * fit["whole_run"].value
    assert t4.flops_per_second == pytest.approx(41.92e12 * share)
    assert t4.bytes_per_second == 240e9
    # a data sheet's bandwidth is in it
    assert Roofline.of(named_machine("b200"), "bfloat16").source == "spec"


def test_every_efficiency_says_what_it_was_fitted_on() -> None:
    for name, one in efficiencies().items():
        assert one.fitted_on, name
        assert one.samples >= 1
        assert (one.held_out_error is None) == (name == "whole_run")
        assert name == "launch" or 0 < one.value <= 1
