"""Statistics of routing, by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from planner.routing import TraceArrays, coactivation, popularity
from planner.routing_statistics import (
    activated,
    coverage,
    drift,
    effective_experts,
    information,
    pairs,
)

# four tokens, two layers, two of four experts each
CHOICES = [
    [[0, 1], [0, 1]],
    [[0, 1], [0, 1]],
    [[0, 2], [2, 3]],
    [[3, 2], [2, 3]],
]
TRACE = TraceArrays(
    np.array(CHOICES, dtype=np.uint16),
    np.array([0, 0, 1, 1], dtype=np.int32),
    np.array([0, 1, 0, 1], dtype=np.int32),
    np.array([0, 1, 0, 1], dtype=np.uint8),
)


def test_coverage_and_effective_experts() -> None:
    shares = popularity(TRACE, 4)
    # layer 0: 3, 2, 2 and 1 of 8 choices
    assert coverage(shares)[0].tolist() == [3 / 8, 5 / 8, 7 / 8, 1]
    assert coverage(shares)[1].tolist() == [1 / 4, 1 / 2, 3 / 4, 1]
    assert effective_experts(shares)[1] == pytest.approx(4)
    assert effective_experts(np.array([[1.0, 0.0]]))[0] == 1


def test_activated_is_the_mean_over_all_draws() -> None:
    found = activated(TRACE, 4, (1, 2, 4))
    assert found[0].tolist() == pytest.approx([2 / 4, 2 / 4])
    assert found[2].tolist() == pytest.approx([1, 1])
    for layer in range(2):
        draws = [
            len({expert for token in draw for expert in CHOICES[token][layer]}) / 4
            for draw in combinations(range(4), 2)
        ]
        assert found[1, layer] == pytest.approx(sum(draws) / len(draws))


def test_pairs_of_one_layer() -> None:
    table = pairs(TRACE, 4, 0)
    # of three tokens that chose 0, two chose 1 and one chose 2
    assert table[0].tolist() == [0, 2 / 3, 1 / 3, 0]
    assert table[2].tolist() == [1 / 2, 0, 0, 1 / 2]
    assert table.sum(axis=1).tolist() == pytest.approx([1] * 4)


def test_information_of_one_layer_about_the_next() -> None:
    # two halves that never meet: one bit
    apart = np.array([[1.0, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2)
    assert information(apart, np.full(4, 1 / 4), 2) == pytest.approx(1)
    assert information(np.full((4, 4), 1 / 2), np.full(4, 1 / 4), 2) == pytest.approx(0)
    real = information(coactivation(TRACE, 4)[0], popularity(TRACE, 4)[0], 2)
    assert 0 < real < 1


def test_drift_between_phases() -> None:
    found = drift(TRACE, 4)
    assert found is not None
    # layer 0: prefill 2, 1, 1, 0 of 4 and decode 1, 1, 1, 1; layer 1 is alike
    assert found.tolist() == [1 / 4, 0]
    only = TraceArrays(TRACE.experts, TRACE.sequence, TRACE.position, np.zeros(4, dtype=np.uint8))
    assert drift(only, 4) is None
