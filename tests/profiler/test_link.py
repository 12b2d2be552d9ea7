"""Copies that are measured are those of a disk at work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor import open_weights
from profiler import measure
from profiler.bench import Tokens
from profiler.effort import Effort
from profiler.link import CopySample
from profiler.measure import Measurement


def test_what_a_disk_that_rested_lets_through_is_not_counted(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk held to 400 MB/s that after a rest reads 90 MB at 1 GB/s."""
    now, credit = [0], [90_000_000]

    def copies(bench: Any, order: Any) -> list[CopySample]:
        size = 4_000_000
        took = 4_000_000 if credit[0] > 0 else 10_000_000
        credit[0] -= size
        now[0] += took
        return [CopySample(1, size, took)]

    class Resting:
        """Stands for the reference operation, beside which nothing is read."""

        moments = 1

        def take(self) -> None:
            now[0] += 100_000_000
            credit[0] = 90_000_000

    monkeypatch.setattr(measure, "copies_alone", copies)
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    with open_weights(checkpoint("mixtral")) as source:
        nothing: Any = Resting()
        measurement = Measurement(
            source, 1 << 30, Tokens([1], 211), effort=Effort(), reference=nothing
        )
        for _ in range(2):
            for task in measurement.link_tasks(4 << 20):
                task.run()
    # 23 copies of the credit take 92 ms, and 300 ms go before any is counted
    assert len(measurement.copies) == 6
    assert {copy.duration_ns for copy in measurement.copies} == {10_000_000}
