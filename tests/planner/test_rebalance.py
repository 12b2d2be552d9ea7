"""Swaps while running, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.rebalance import rebalance_layer
from solvers.errors import OptionError

TWO = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=bool)


def test_a_swap_that_pays_and_one_that_does_not() -> None:
    # 10 + 9 rows on device 0, 2 + 1 on device 1: 19. Swapping 10 for 1 (or 9 for ... ) leaves
    # 9 + 1 = 10 and 2 + 10 = 12; 10 for 2: 11 and 11, the best. It saves 8 rows a pass
    load = np.array([[10, 9, 2, 1]] * 4)
    held, swaps = rebalance_layer(load, TWO, passes_left=10, row_ns=2.0, copy_ns=159.0)
    assert swaps == 1
    assert held.tolist() == [[False, True], [True, False], [True, False], [False, True]]
    # 8 rows x 2 ns x 10 passes = 160 ns
    held, swaps = rebalance_layer(load, TWO, passes_left=10, row_ns=2.0, copy_ns=160.0)
    assert swaps == 0
    assert (held == TWO).all()


def test_what_only_some_passes_show_is_not_followed() -> None:
    # found on passes 0 and 2; on passes 1 and 3 the swap makes it worse
    load = np.array([[10, 9, 2, 1], [1, 2, 9, 1]] * 2)
    assert rebalance_layer(load, TWO, passes_left=10, row_ns=1.0, copy_ns=0.0)[1] == 0
    # one pass cannot be judged
    assert rebalance_layer(load[:1], TWO, passes_left=10, row_ns=1.0, copy_ns=0.0)[1] == 0


def test_a_copy_moves_with_its_part() -> None:
    # expert 0 has copies on 0 and 1, 6 rows each; expert 1 on device 0 alone, 6 rows; expert 2 on
    # device 2 alone, none. 12, 6 and 0: swapping 0's or 1's copy for expert 2 makes it 6, 6, 6
    held = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=bool)
    changed, swaps = rebalance_layer(
        np.array([[12, 6, 0]] * 2), held, passes_left=1, row_ns=1.0, copy_ns=1.0
    )
    assert swaps == 1
    assert (np.array([12, 6, 0]) / held.sum(axis=1) @ changed).tolist() == [6, 6, 6]


@given(st.integers(2, 5), st.integers(2, 8), st.integers(0, 2**31))
def test_memory_and_copies_stay_and_judged_load_falls(devices: int, items: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    held = draw.random((items, devices)) < 0.4
    held[np.arange(items), draw.integers(0, devices, items)] = True
    load = draw.integers(0, 30, (6, items))
    changed, swaps = rebalance_layer(load, held, passes_left=3, row_ns=1.0, copy_ns=2.0)
    assert (changed.sum(axis=0) == held.sum(axis=0)).all()
    assert (changed.sum(axis=1) == held.sum(axis=1)).all()
    part = load[1::2] / held.sum(axis=1)
    before, after = ((part @ one).max(axis=1).mean() for one in (held, changed))
    assert 3 * (before - after) >= 2.0 * swaps - 1e-6
    assert (changed != held).any() <= (swaps > 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OptionError, match="on no device"):
        rebalance_layer(
            np.ones((2, 4), dtype=np.int64), TWO & False, passes_left=1, row_ns=1, copy_ns=1
        )
