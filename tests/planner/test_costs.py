"""Curves and surfaces, by hand."""

from __future__ import annotations

from planner.documents import Curve, Surface


def test_a_curve_interpolates_and_rounds_up() -> None:
    curve = Curve((2, 4, 8), (10, 13, 13), (0, 0, 0), (1, 1, 1), "measured")
    # by hand: slope 3/2 between 2 and 4, flat after; below 2 the first value; 0 rows are free
    assert [curve(rows) for rows in (0, 1, 2, 3, 4, 6, 8, 100)] == [0, 10, 10, 12, 13, 13, 13, 13]
    assert [curve.covers(rows) for rows in (1, 2, 8, 9)] == [False, True, True, False]
    # the last segment goes on: 13 + 3/2 * 96 = 157
    assert Curve((2, 4), (10, 13), (0, 0), (1, 1), "measured")(100) == 157
    single = Curve((4,), (10,), (0,), (1,), "measured")
    assert [single(1), single(4), single(6)] == [10, 10, 15]


def test_a_surface_is_bilinear_and_rounds_up() -> None:
    low = Curve((1, 3), (10, 30), (0, 0), (1, 1), "measured")
    high = Curve((1, 3), (20, 60), (0, 0), (1, 1), "measured")
    surface = Surface((10, 20), (low, high))
    # by hand at 2 rows: 20 for 10, 40 for 20; so 30 for 15, 42 for 21, and 20 for anything below
    assert [surface(2, second) for second in (0, 5, 10, 15, 20, 21)] == [20, 20, 20, 30, 40, 42]
    assert surface(0, 15) == 0
    assert surface.covers(3, 20)
    assert not surface.covers(4, 20)
    assert not surface.covers(3, 21)


def test_a_surface_whose_curves_cross_does_not_go_negative() -> None:
    falling = Surface(
        (1, 2),
        (
            Curve((1,), (100,), (0,), (1,), "measured"),
            Curve((1,), (10,), (0,), (1,), "measured"),
        ),
    )
    # 100 - 90 * (5 - 1) would be -260
    assert falling(1, 5) == 0
