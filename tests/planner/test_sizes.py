"""Sizes that a message names are large enough when they are typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.options import parse_size
from planner.sizes import typed_size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1, "0.1 KiB"),
        (1024, "1.0 KiB"),
        (1025, "1.1 KiB"),
        (2_831_155, "2.7 MiB"),  # 2.7 x 1,048,576 = 2,831,155.2
        (2_831_156, "2.8 MiB"),
        (1 << 30, "1024.0 MiB"),
    ],
)
def test_rounded_up_to_a_tenth(size_bytes: int, text: str) -> None:
    assert typed_size(size_bytes) == text


@given(st.integers(1, 1 << 50))
def test_what_is_typed_is_enough_and_little_more(size_bytes: int) -> None:
    typed = parse_size(typed_size(size_bytes), "--memory")
    assert size_bytes <= typed <= size_bytes + (1 << 20) // 10 + 1
