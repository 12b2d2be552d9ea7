"""Fits, by hand and against an independent minimiser."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.curves import (
    drifting,
    figure,
    fit_curve,
    fit_surface,
    isotonic,
    median_and_spread,
    tail_ratio,
)


def test_median_and_spread_by_hand() -> None:
    # quartiles of 1..5 are 2, 3 and 4
    assert median_and_spread([5, 1, 4, 2, 3]) == (3.0, 1.0)
    assert figure([7]).spread is None
    assert (figure([1, 3]).value, figure([1, 3]).samples) == (2.0, 2)


def test_isotonic_by_hand() -> None:
    assert isotonic([1, 2, 3]) == [1, 2, 3]
    # 3, 2 pool to 2.5; the 1 after them pulls all three to 2
    assert isotonic([3, 2, 1]) == [2, 2, 2]
    assert isotonic([1, 4, 2, 5]) == [1, 3, 3, 5]
    # weights 1 and 3: (4 * 1 + 2 * 3) / 4
    assert isotonic([4, 2], [1, 3]) == [2.5, 2.5]
    assert isotonic([]) == []


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_isotonic_is_the_nearest(values: list[int]) -> None:
    fitted = isotonic(values)
    assert all(left <= right for left, right in itertools.pairwise(fitted))
    # an isotonic fit takes block means only: the best over all ways to cut into blocks
    best = min(
        sum((value - mean) ** 2 for value, mean in zip(values, means, strict=True))
        for cuts in itertools.product([False, True], repeat=len(values) - 1)
        if (means := block_means(values, cuts)) == sorted(means)
    )
    found = sum((value - mean) ** 2 for value, mean in zip(values, fitted, strict=True))
    assert found == pytest.approx(best)


def block_means(values: list[int], cuts: tuple[bool, ...]) -> list[float]:
    blocks = [[values[0]]]
    for value, cut in zip(values[1:], cuts, strict=True):
        if cut:
            blocks.append([])
        blocks[-1].append(value)
    return [sum(block) / len(block) for block in blocks for _ in block]


def test_a_curve_goes_through_monotone_medians() -> None:
    curve = fit_curve({4: [40, 44, 42], 1: [10, 10, 13]})
    assert curve.rows == (1, 4)
    # medians 10 and 42, raised by (126 + 33) / (3 * 42 + 3 * 10) = 1.019
    assert curve.duration_ns == (10, 43)
    # quartiles: 10, 10, 11.5 and 41, 42, 43
    assert curve.spread_ns == (1, 1)
    assert curve.samples == (3, 3)
    assert curve.held_out_error is None


def test_the_tail_of_all_sizes_together() -> None:
    # 100, 100, 160 and 10, 10, 10: 390 against medians of 330
    assert tail_ratio([[100, 100, 160], [10, 10, 10]]) == pytest.approx(390 / 330)
    # one long pause counts as four medians: 100, 100 and 400 against 300
    assert tail_ratio([[100, 100, 10**9]]) == pytest.approx(2.0)
    # a tail to the left shortens nothing
    assert tail_ratio([[1, 100, 100]]) == 1.0
    assert tail_ratio([]) == 1.0


def test_a_curve_never_decreases() -> None:
    curve = fit_curve({1: [100] * 4, 2: [90] * 4, 3: [95] * 4, 4: [200] * 4})
    # 100 and 90 pool, weighted by the inverse squares: (1/100 + 1/90) / (1/100^2 + 1/90^2) = 94.5
    assert curve.duration_ns == (94, 94, 95, 200)


def test_held_out_error_by_hand() -> None:
    # fitted to samples 0 and 1 (100), judged at samples 2 and 3 (110): 10/110 off at both sizes
    samples = {1: [100, 100, 110, 110], 2: [200, 200, 220, 220]}
    assert fit_curve(samples).held_out_error == pytest.approx(10 / 110)
    steady = {1: [100] * 4, 2: [200] * 4}
    assert fit_curve(steady).held_out_error == 0


def test_a_surface_never_decreases_in_either_direction() -> None:
    surface = fit_surface({(1, 8): [50], (2, 8): [80], (1, 16): [40], (2, 16): [90]})
    assert surface.second == (8, 16)
    assert surface.curves[0].duration_ns == (50, 80)
    assert surface.curves[1].duration_ns == (50, 90)


def test_drift_is_what_lies_between_moments() -> None:
    # of three samples at once one is far off; the moments' medians are 10, 10, 20, 20, 30, which
    # have a standard deviation of 8.37; of five, Student's t with 4 degrees holds 90% within 2.132
    samples = [10, 10, 90, 10, 10, 90, 20, 20, 90, 20, 20, 90, 30, 30, 90]
    found = drifting(samples, 3)
    wide = 2.132 / 1.645 * (1 + 1 / 5) ** 0.5
    assert (found.value, found.samples) == (20.0, 15)
    assert found.spread == pytest.approx(0.6745 * wide * 70**0.5, rel=0.002)
    assert drifting([1, 1, 5], 3) == figure([1, 1, 5])


def test_what_a_run_averages_is_no_drift() -> None:
    # 24 moments that alternate: eight blocks of three have means of 11 2/3 and 13 1/3 in turn
    found = drifting([10, 15] * 12, 1)
    wide = 1.895 / 1.645 * (1 + 1 / 8) ** 0.5
    deviation = 5 / 6 * (8 / 7) ** 0.5
    assert found.spread == pytest.approx(0.6745 * wide * deviation, rel=0.002)
    # those that come to stay are: all of 10, then all of 15
    stays = drifting([10] * 12 + [15] * 12, 1)
    assert stays.spread == pytest.approx(0.6745 * wide * 2.5 * (8 / 7) ** 0.5, rel=0.002)
    # a pause of a thousandfold is one of four medians
    assert drifting([10] * 23 + [10_000], 1) == replace(drifting([10] * 23 + [40], 1), samples=24)
