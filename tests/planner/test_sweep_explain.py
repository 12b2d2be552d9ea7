"""Budgets in a row, group sizes beside each other, and why a plan is as it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from planner.busy import BINDS_WORDS, busy_of
from planner.check import check_plan
from planner.compare import compare, compare_bound
from planner.documents import Asked, Plan, PredictedTotals, Workload
from planner.explain import explain
from planner.smallest import needed_bytes, smallest_budget_bytes
from planner.solve import make_plan
from planner.sweep import budgets_between, by_group, sweep
from solvers.errors import BudgetError, OptionError

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=4)


@pytest.fixture(scope="module")
def budget(small_profile: Any) -> int:
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    return smallest + small_profile.model.expert_bytes // 2


@pytest.fixture(scope="module")
def plan(small_profile: Any, budget: int) -> Plan:
    return make_plan(small_profile, WORKLOAD, memory_bytes=budget, time_limit_seconds=1)


def test_budgets() -> None:
    assert budgets_between(10, 17, 8) == tuple(range(10, 18))
    assert budgets_between(0, 10, 3) == (0, 5, 10)
    with pytest.raises(OptionError, match="2 steps or more, not 1"):
        budgets_between(10, 20, 1)
    with pytest.raises(OptionError, match="write the smaller one first"):
        budgets_between(20, 10, 8)
    with pytest.raises(OptionError, match="at most 2 steps"):
        budgets_between(1, 2, 3)


@pytest.mark.parametrize("solver", ["flexgen", "cpsat"])
def test_more_memory_is_never_worse(
    small_profile: Any, solver: str, request: pytest.FixtureRequest
) -> None:
    if solver == "flexgen":
        request.getfixturevalue("alone")
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    top = smallest + small_profile.model.expert_bytes
    budgets = (smallest // 2, smallest - 1, *budgets_between(smallest, top, 4))
    points = sweep(small_profile, WORKLOAD, budgets, solver=solver, time_limit_seconds=0.5, seed=3)
    assert [point.memory_bytes for point in points] == list(budgets)
    assert [point.plan is None for point in points] == [True, True, *[False] * 4]
    assert {point.smallest_bytes for point in points[:2]} == {smallest}
    plans = [point.plan for point in points if point.plan is not None]
    assert all(b.objective <= a.objective for a, b in pairwise(plans))
    for point in points:
        if point.plan is not None:
            assert point.plan.memory["device"].capacity_bytes == point.memory_bytes
            assert point.plan.memory["device"].peak_bytes <= point.made_for_bytes
            assert check_plan(point.plan, small_profile) == []


def test_groups_that_do_not_fit_say_how_much_they_need(small_profile: Any) -> None:
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    points = by_group(small_profile, WORKLOAD, memory_bytes=smallest, seconds_each=0.1)
    assert [point.sequences for point in points] == [1, 2, 4]
    assert [point.fits for point in points] == [True, False, False]
    assert points[0].objective is not None
    for point in points[1:]:
        assert point.objective is None
        # it works with what is said, and not with a page less
        for memory, works in ((point.needed_bytes, True), (point.needed_bytes - 4096, False)):
            (one,) = by_group(
                small_profile,
                WORKLOAD,
                memory_bytes=memory,
                seconds_each=0.1,
                only=[point.sequences],
            )
            assert one.fits == works
            if point is points[1]:
                assert (one.objective is not None) == works


def test_no_plan_is_below_the_clairvoyant_cache(
    small_profile: Any, budget: int, alone: None
) -> None:
    for objective in ("throughput", "bytes"):
        row = compare_bound(small_profile, WORKLOAD, memory_bytes=budget, objective=objective)
        assert row.value is not None
        for solver in ("frequency", "lifo"):
            made = make_plan(
                small_profile, WORKLOAD, memory_bytes=budget, solver=solver, objective=objective
            )
            assert row.value <= made.objective
    none = compare_bound(small_profile, WORKLOAD, memory_bytes=budget, objective="peak-memory")
    assert none.value is None


def test_explanation(small_profile: Any, plan: Plan) -> None:
    found = explain(plan, small_profile, time_limit_seconds=0.5)
    own = min(plan.policy.n_batches * plan.policy.batch_size, WORKLOAD.requests)
    assert own in [point.sequences for point in found.groups]
    assert 2 <= len(found.groups) <= 3
    layers = small_profile.model.layers
    tiles = plan.policy.head_tiles
    assert found.units == len(layers) + sum(layer.experts for layer in layers) + tiles
    kept = sum(layer.dense_resident + len(layer.resident) for layer in plan.policy.layers)
    assert found.residents == kept + plan.policy.resident_head_tiles
    totals = plan.predicted.totals
    waits = totals.bubble_inter_layer_ns + totals.bubble_intra_layer_ns
    assert found.compute_busy == pytest.approx(1 - waits / totals.wall_ns, abs=1e-3)
    # the plan's own note says the same
    busy = f"the channel is busy {found.channel_busy:.0%} of the time, compute "
    busy += f"{found.compute_busy:.0%}"
    assert f"{BINDS_WORDS[found.binds]}; {busy}" in plan.notes
    assert found.memory == plan.memory["device"].by_purpose
    assert list(found.memory.values()) == sorted(found.memory.values(), reverse=True)
    account = plan.memory["device"]
    assert found.spare_bytes == account.capacity_bytes - account.peak_bytes
    for price in (found.memory_price, found.bandwidth_price):
        assert price is not None
        assert price.bound_after <= price.bound_before <= plan.objective
    assert found.memory_price is not None
    slope = found.memory_price.slope
    # a shadow price is a tangent of a convex curve: at least what a longer step saves on average
    assert slope is not None
    saved = found.memory_price.bound_before - found.memory_price.bound_after
    assert slope * found.memory_price.added >= saved * (1 - 1e-3)
    if found.prefetching is not None:
        assert found.prefetching.objective == plan.objective
        assert 0 <= found.prefetching.wasted_share <= 1


@pytest.mark.parametrize(
    ("copies", "inter", "intra", "shares", "binds"),
    [
        # of 100 ns: the channel works 60 and computation 100 - 5 - 25 = 70
        (60, 5, 25, (0.7, 0.6), "latency"),
        (90, 5, 25, (0.7, 0.9), "copies"),
        (90, 2, 3, (0.95, 0.9), "compute"),
        (79, 20, 1, (0.79, 0.79), "latency"),
        # the last copy ends after the run
        (120, 0, 50, (0.5, 1.0), "copies"),
        (0, 0, 0, (1.0, 0.0), "compute"),
    ],
)
def test_what_binds(
    copies: int, inter: int, intra: int, shares: tuple[float, float], binds: str
) -> None:
    kinds: Any = {"expert": 50, "copy_dense": copies // 3, "copy_demand": copies - copies // 3}
    found = busy_of(PredictedTotals(100, 40, 60, 1, inter, intra, kinds))
    assert (found.compute, found.channel) == pytest.approx(shares)
    assert (found.host, found.binds) == (0, binds)
    # a CPU that is busier than both
    slow = busy_of(PredictedTotals(100, 40, 60, 1, inter, intra, {**kinds, "host_expert": 101}))
    assert (slow.host, slow.binds) == (1.01, "host")


def test_nothing_to_explain_where_all_is_resident(small_profile: Any) -> None:
    whole = make_plan(small_profile, WORKLOAD, memory_bytes=1 << 28, time_limit_seconds=0.5)
    found = explain(whole, small_profile, time_limit_seconds=0.5)
    assert found.first_left_out is None
    assert found.residents == found.units
    assert found.channel_busy == 0
    assert found.binds == "compute"
    assert found.prefetching is None
    assert found.memory_price is not None
    assert found.memory_price.slope == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("kv", ["device", "below"])
def test_the_needed_bytes_are_exact(small_profile: Any, kv: Any, alone: None) -> None:
    from planner.encode import Encoding

    place = "below" if kv == "below" else None
    least = needed_bytes(Encoding(small_profile, WORKLOAD, 1, 1, 0, 256 << 10, place))
    assert least == smallest_budget_bytes(small_profile, WORKLOAD, kv)
    made = make_plan(small_profile, WORKLOAD, memory_bytes=least, solver="lru", kv=kv)
    assert made.memory["device"].peak_bytes <= least
    with pytest.raises(BudgetError):
        make_plan(small_profile, WORKLOAD, memory_bytes=least - 1, solver="lru", kv=kv)


# keys and values of four sequences of 220 tokens are larger than all else
LONG = Workload(requests=4, prompt_tokens=200, new_tokens=20)


@pytest.mark.parametrize("kv", ["device", "below"])
def test_what_a_plan_was_asked_for_is_kept_when_it_is_explained(
    small_profile: Any, kv: Any, alone: None
) -> None:
    budget = smallest_budget_bytes(small_profile, LONG, "device") + (1 << 16)
    made = make_plan(small_profile, LONG, memory_bytes=budget, solver="lru", kv=kv)
    assert made.asked == Asked("lru", kv)
    found = explain(made, small_profile)
    price = found.memory_price
    assert price is not None

    def more(**asked: Any) -> float:
        memory = budget + int(price.added)
        return make_plan(small_profile, LONG, memory_bytes=memory, **asked).objective

    assert price.replanned == more(solver="lru", kv=kv)
    assert price.replanned != more(solver="lru", kv="below" if kv == "device" else "device")
    own = min(made.policy.n_batches * made.policy.batch_size, LONG.requests)
    assert [point.objective for point in found.groups if point.sequences == own] == [
        pytest.approx(made.objective)
    ]


def test_a_plan_is_not_what_was_not_asked_for(small_profile: Any, alone: None) -> None:
    budget = smallest_budget_bytes(small_profile, LONG, "device") + (1 << 16)
    made = make_plan(small_profile, LONG, memory_bytes=budget, solver="lru", kv="below")
    for asked, where in (
        (Asked("lru", "device"), "asked.kv"),
        (Asked("lur", "below"), "asked.solver"),
        (Asked("lru", "below", then="throughput", tolerance=0.1), "asked.then"),
    ):
        (fault,) = check_plan(replace(made, asked=asked))
        assert fault.where == where
    first = replace(made.policy.layers[0], prefetch=(0,), resident=(), predictor="popularity")
    policy = replace(made.policy, layers=(first, *made.policy.layers[1:]))
    faults = check_plan(replace(made, policy=policy))
    assert "asked.predictors" in [fault.where for fault in faults]
    with pytest.raises(ValueError, match="go together"):
        Asked("cpsat", then="bytes")


def test_comparisons_and_sweeps_take_the_place_of_keys_and_values(
    small_profile: Any, alone: None
) -> None:
    budget = smallest_budget_bytes(small_profile, LONG, "device")
    for kv, place in (("device", None), ("below", "below")):
        (row,) = compare(small_profile, LONG, memory_bytes=budget, solvers=("lru",), kv=kv)
        assert row.plan.policy.kv == place
        budgets = (budget, budget + (1 << 20))
        points = sweep(small_profile, LONG, budgets, solver="lru", kv=kv)
        assert {point.plan.policy.kv for point in points if point.plan} == {place}
    # a bound with them on the device is no bound for those below it
    bounds = [
        compare_bound(small_profile, LONG, memory_bytes=budget, kv=kv).value
        for kv in ("device", "below")
    ]
    assert bounds[0] != bounds[1]
