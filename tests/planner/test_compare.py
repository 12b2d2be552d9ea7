"""The matrix of solvers and objectives, and Klotski's rule."""

from __future__ import annotations

from typing import Any

import pytest

from planner.compare import compare
from planner.documents import Workload
from planner.klotski import klotski_batches
from planner.smallest import smallest_budget_bytes

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=4)


def test_one_row_for_each_pair(small_profile: Any) -> None:
    budget = smallest_budget_bytes(small_profile, WORKLOAD) + small_profile.model.expert_bytes // 3
    told: list[tuple[int, int, str]] = []
    rows = compare(
        small_profile,
        WORKLOAD,
        memory_bytes=budget,
        solvers=("cpsat", "on-demand"),
        objectives=("throughput", "bytes"),
        time_limit_seconds=2,
        progress=lambda *step: told.append(step),
    )
    assert told == [
        (0, 4, "cpsat for throughput"),
        (1, 4, "on-demand for throughput"),
        (2, 4, "cpsat for bytes"),
        (3, 4, "on-demand for bytes"),
    ]
    pairs = [(row.objective, row.solver) for row in rows]
    assert pairs == [
        ("throughput", "cpsat"),
        ("throughput", "on-demand"),
        ("bytes", "cpsat"),
        ("bytes", "on-demand"),
    ]
    for row in rows:
        assert row.objective_value == row.plan.objective
        assert row.peak_bytes <= budget
        assert row.solve_seconds > 0
    # the searching solver is judged no worse than the rule, but for chance
    assert rows[0].objective_value <= rows[1].objective_value * 1.01


def test_no_price_of_information_where_the_objective_is_not_a_time(small_profile: Any) -> None:
    budget = smallest_budget_bytes(small_profile, WORKLOAD) + small_profile.model.expert_bytes // 3
    (row,) = compare(
        small_profile,
        WORKLOAD,
        memory_bytes=budget,
        solvers=("on-demand",),
        objectives=("peak-memory",),
    )
    assert row.bound == row.objective_value == row.peak_bytes
    assert row.plan_bound is row.clairvoyant_bound is row.price_of_information is None


def test_klotski_batches_grow_with_slower_copies(profile_factory: Any) -> None:
    workload = Workload(512, 16, 8)
    # context in mid-decode 16 + 1 + 4 = 21: attention of one sequence 40,000 + 210 ns, router
    # 8,100 ns. Router weights: 64 x 8 x 4 = 2,048 bytes; an expert: 98,304 bytes. Without latency
    # and at 1 GB/s: cG = 2,048, cE = 98,304. Second inequality: n x 48,310 >= 2,048 + 2 x 98,304 =
    # 198,656, so n >= 4.11: at least 5, whatever the others say.
    fast = klotski_batches(profile_factory(latency_ns=0.0), workload, 1)
    assert fast is not None
    assert fast >= 5
    slow = klotski_batches(profile_factory(latency_ns=0.0, bandwidth=2.5e8), workload, 1)
    assert slow is not None
    # the second inequality alone: n >= 4 x 198,656 / 48,310 = 16.4
    assert slow >= 17
    assert slow > fast


def test_klotski_says_when_nothing_hides_the_copies(profile_factory: Any) -> None:
    profile = profile_factory(bandwidth=1e6)
    assert klotski_batches(profile, Workload(4, 16, 8), 1) is None


@pytest.mark.parametrize("requests", [1, 4])
def test_klotski_n_is_cut_to_the_requests(small_profile: Any, requests: int) -> None:
    found = klotski_batches(small_profile, Workload(requests, 16, 8), 1)
    assert found is None or found <= requests
