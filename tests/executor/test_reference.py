"""The fixed operation that watches the machine."""

from __future__ import annotations

from executor.reference import Reference


def test_moments_follow_each_other() -> None:
    one, four = Reference(), Reference(moments=4)
    for reference in (one, four):
        reference.take()
        reference.take()
    # three samples of each moment; the product that wakes the threads is none
    assert (len(one.samples), len(four.samples)) == (2 * 3, 2 * 4 * 3)
    assert min(four.samples) > 0
