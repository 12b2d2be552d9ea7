"""Intervals by hand, and which sizes were never measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.documents import Channel, Curve, Figure, Workload
from planner.documents.costs import Surface
from planner.encode import Encoding
from planner.interval import extrapolated, rate, relative_error
from planner.scenarios import PassShape

SHARE = (0.5 + math.sqrt(0.75)) / 2
HALVES = 0.06745 / SHARE
"""Two halves' median difference where a run lies 10% (a standard deviation) off: between a half of
their deviation (a run averages all noise) and the root of 3/4 of it (it is one draw more)."""


def test_a_run_is_one_more_draw() -> None:
    # 10 tokens in 2 s; runs of 1.8, 2.0 and 2.2 s: standard deviation 0.2 s, 10% of the mean
    found = rate(10, 2_000_000_000, np.array([18, 20, 22]) * 10**8, 0.0)
    wide = 1.645 * 0.1 * math.sqrt(4 / 3)
    assert found.value == 5.0
    assert found.low == pytest.approx(5 / (1 + wide))
    assert found.high == pytest.approx(5 * (1 + wide))
    both = rate(10, 2_000_000_000, np.array([18, 20, 22]) * 10**8, 0.05)
    assert both.high == pytest.approx(5 * (1 + 1.645 * math.hypot(0.05, 0.1 * math.sqrt(4 / 3))))
    # one run says nothing of how far runs lie apart
    assert rate(10, 2_000_000_000, np.array([20]) * 10**8, 0.0).high == 5.0
    assert rate(0, 1, np.array([1]), 0.1) == rate(1, 0, np.array([1]), 0.1)


def test_each_part_weighs_by_its_share(profile_factory: Any) -> None:
    profile = profile_factory()
    curves = {
        kind: replace(curve, source="measured", held_out_error=HALVES if kind == "expert" else None)
        for kind, curve in profile.costs.curves.items()
    }
    still = Figure(1.0, "measured", 0.0, 9)
    costs = replace(profile.costs, curves=curves, reference_ns=still)
    # quartiles that lie 6.745% apart on either side are a standard deviation of 10%
    link = Channel("disk", Figure(1e9, "measured", 6.745e7, 9), Figure(0.0, "measured", None, 9))
    # half of the time waits for the disk, a tenth is experts, of which a run lies 10% off; nothing
    # of the computation is hidden
    kinds = {"wait_expert": 50, "expert": 10, "attention": 20, "router": 20}
    expected = math.hypot(0.5 * 0.1, 0.1 * 0.1, 0.04)
    assert relative_error(costs, link, kinds, 100, 0.5) == pytest.approx(expected)
    # only a fifth of the time goes with computation: of that experts are still a fifth
    expected = math.hypot(0.8 * 0.1, 0.2 * 0.2 * 0.1, 0.04)
    assert relative_error(costs, link, kinds, 100, 0.2) == pytest.approx(expected)
    paced = replace(link, paced_bytes_per_second=10**9)
    assert relative_error(costs, paced, kinds, 100, 0.5) == pytest.approx(math.hypot(0.01, 0.04))
    drifting = replace(costs, reference_ns=replace(still, spread=0.06745))
    expected = math.hypot(0.01, 0.5 * 0.1, 0.04)
    assert relative_error(drifting, paced, kinds, 100, 0.5) == pytest.approx(expected)
    # attention is a fifth; its two curves with an error are 10% and 20% off
    one, other = (
        Curve((1,), (1,), (0,), (1,), "measured", error) for error in (HALVES, 2 * HALVES)
    )
    surface = Surface((1, 2, 3), (one, other, replace(one, held_out_error=None)))
    both = replace(costs, attention_decode=surface, attention_prefill=surface)
    expected = math.hypot(0.01, 0.2 * 0.15, 0.04)
    assert relative_error(both, paced, kinds, 100, 0.5) == pytest.approx(expected)
    # so does attention to an encoder's prompts, a tenth
    crossed = replace(both, cross_decode=surface, cross_prefill=surface)
    kinds_of_both = {**kinds, "router": 10, "cross_attention": 10}
    expected = math.hypot(0.01, 0.2 * 0.15, 0.1 * 0.15, 0.04)
    assert relative_error(crossed, paced, kinds_of_both, 100, 0.5) == pytest.approx(expected)
    # a curve that was fitted on other machines errs by all of what it erred there
    fitted = {kind: replace(curve, source="fitted") for kind, curve in curves.items()}
    guessed = replace(costs, curves=fitted)
    assert relative_error(guessed, paced, kinds, 100, 0.5) == pytest.approx(
        math.hypot(0.01 / SHARE, 0.04)
    )


def test_what_was_not_measured_is_named(profile_factory: Any) -> None:
    profile = profile_factory()
    wide = Curve((1, 4096), (1, 4096), (0, 0), (1, 1), "measured")
    narrow = replace(wide, rows=(1, 40))
    profile = replace(
        profile,
        costs=replace(
            profile.costs,
            curves={
                **dict.fromkeys(profile.costs.curves, wide),
                "router": narrow,
                "head": narrow,
                "expert": narrow,
            },
            attention_decode=replace(profile.costs.attention_decode, second=(8,), curves=(wide,)),
            attention_prefill=replace(
                profile.costs.attention_prefill, second=(4, 64), curves=(wide, wide)
            ),
        ),
    )
    shapes = (PassShape("prefill", 0, 8, 6, 1), PassShape("decode", 0, 8, 8, 1))
    one = Encoding(profile, Workload(8, 6, 3), 1, 8, 1 << 40, 1 << 20)
    # 48 tokens of prefill are more than 40; 8 sequences are not; attention is inside
    assert extrapolated(one, shapes, np.array([0, 3, 40])) == ("router",)
    assert extrapolated(one, shapes, np.array([41])) == ("router", "expert")
    later = (*shapes, PassShape("decode", 0, 8, 9, 1))
    assert extrapolated(one, later, np.array([1])) == ("attention in decode", "router")
