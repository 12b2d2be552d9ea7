"""Plans: never worse than the baselines, within memory, the same each time, honest when refused."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from planner.check import check_plan
from planner.documents import Plan, Workload, dump_document, parse_document, to_json
from planner.groups import batch_sizes, group_sizes
from planner.memory import smallest_budget
from planner.smallest import smallest_budget_bytes
from planner.solve import BASELINES, OBJECTIVES, SOLVERS, make_plan
from solvers.errors import BudgetError, OptionError
from solvers.registry import Feature, load

WORKLOAD = Workload(requests=8, prompt_tokens=16, new_tokens=8)
MIB = 1 << 20
LIMIT = 2.0
"""Work for these plans; ``CAP`` lies where a busy machine never comes, so that the clock never
decides."""
CAP = 600.0


@pytest.fixture(scope="module")
def budget(small_profile: Any) -> int:
    """Room for about half of the experts."""
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    return smallest + small_profile.model.expert_bytes // 2


def planned(profile: Any, budget: int, progress: Any = None) -> Plan:
    """Its work alone ends the search."""
    return make_plan(
        profile,
        WORKLOAD,
        memory_bytes=budget,
        time_limit_seconds=LIMIT,
        cap_seconds=CAP,
        progress=progress,
    )


@pytest.fixture(scope="module")
def plan(small_profile: Any, budget: int) -> Plan:
    return planned(small_profile, budget)


@pytest.fixture(scope="module")
def least(small_profile: Any) -> Plan:
    """Within the smallest budget."""
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    return make_plan(small_profile, WORKLOAD, memory_bytes=smallest)


def test_a_plan_fits_and_passes_the_checker(small_profile: Any, plan: Plan, budget: int) -> None:
    assert check_plan(plan, small_profile) == []
    assert plan.memory["device"].capacity_bytes == budget
    assert plan.memory["device"].peak_bytes <= budget
    assert plan.bound is not None
    assert plan.gap is not None
    assert plan.bound <= plan.objective
    assert plan.bound_class == "clairvoyant"
    assert set(plan.chosen_over) == set(BASELINES)
    assert plan.notes


def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert parse_document(Plan, to_json(plan), "here") == plan


def test_the_prediction_adds_up(plan: Plan) -> None:
    totals = plan.predicted.totals
    assert totals.wall_ns == totals.prefill_ns + totals.decode_ns
    # throughput's objective is ns a token
    assert plan.objective == pytest.approx(totals.wall_ns / (8 * 8), rel=1e-3)
    rate = plan.predicted.tokens_per_second
    assert rate.low <= rate.value <= rate.high
    assert rate.value == pytest.approx(64e9 / totals.wall_ns)
    kinds = totals.duration_by_kind_ns
    # compute is busy or waits, all the time
    copies = ("copy_dense", "copy_prefetch", "copy_demand", "copy_head")
    on_compute = sum(ns for kind, ns in kinds.items() if kind not in copies)
    assert on_compute == pytest.approx(totals.wall_ns, rel=1e-4)
    waits = sum(kinds.get(kind, 0) for kind in ("wait_dense", "wait_expert", "wait_head"))
    assert waits == totals.bubble_inter_layer_ns + totals.bubble_intra_layer_ns
    assert 0 < plan.predicted.time_to_first_token_ns <= totals.wall_ns


def test_the_timeline_is_without_overlaps(plan: Plan) -> None:
    for channel in ("compute", "disk"):
        events = [e for e in plan.predicted.timeline.events() if e.channel == channel]
        assert events
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(events))
    first = next(plan.predicted.timeline.events())
    assert first.start_ns == 0
    kinds = {event.kind for event in plan.predicted.timeline.events()}
    assert {"embed", "attention", "router", "expert", "combine", "head", "sample"} <= kinds


def test_the_same_plan_byte_for_byte_and_progress_says_which_n_and_b(
    small_profile: Any, plan: Plan, budget: int
) -> None:
    told: list[tuple[str, int, int | None]] = []
    again = planned(small_profile, budget, lambda *one: told.append(one))
    assert dump_document(again) == dump_document(plan)
    searched = [name for name, objective, _ in told if objective > 0]
    assert searched
    assert all(re.fullmatch(r"cpsat, n x b = \d+ x \d+", name) for name in searched)
    # what the time limit is not of is told, too, each once, before and after the search
    first, *after = [(name, bound) for name, objective, bound in told if objective == 0]
    assert re.fullmatch(r"a first look at \d+ sizes of groups", first[0])
    asking, last = "asking routers a layer ahead", "judging on sequences that were kept apart"
    ends = (f"comparing with {name}, {at} of 7" for at, name in enumerate(BASELINES, 1))
    assert after == [*((words, None) for words in ends), (asking, None), (last, None)]
    assert told[0][0] == first[0]
    assert told[-1][0] == last


def test_under_another_cap_the_clock_decides_nothing(
    profile_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_factory(layers=2, experts=4, sequences=12, prompt=4, new=4)
    workload = Workload(2, 8, 2)
    memory = smallest_budget_bytes(profile, workload) + profile.model.expert_bytes // 2

    def planned(**more: float) -> str:
        limits = {"memory_bytes": memory, "time_limit_seconds": 0.5, **more}
        return dump_document(make_plan(profile, workload, **limits))

    free = planned(cap_seconds=1e6)
    # between any two looks at the clock more than the limit goes by
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    assert planned(cap_seconds=1e6) == free
    assert planned() != free


def test_of_a_rule_no_clock_decides_which_n_and_b_are_looked_at(
    profile_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_factory(layers=2, experts=4, sequences=12, prompt=4, new=4)
    workload = Workload(8, 8, 2)
    memory = smallest_budget_bytes(profile, workload) + profile.model.expert_bytes // 2

    def ruled() -> Plan:
        return make_plan(profile, workload, memory_bytes=memory, solver="lru")

    plan = ruled()
    # each look at the clock finds an hour gone: a busy machine
    ticks = itertools.count(0, 3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    assert ruled() == plan


def test_no_baseline_is_better_where_it_was_chosen(small_profile: Any, budget: int) -> None:
    from planner.solve import solve

    entry, rivals = solve(
        small_profile,
        WORKLOAD,
        memory_bytes=budget,
        solver="cpsat",
        objective="throughput",
        time_limit_seconds=LIMIT,
        cap_seconds=CAP,
        seed=1,
    )
    assert all(entry.chosen_value <= rival.chosen_value for rival in rivals)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_plans(
    small_profile: Any, plan: Plan, budget: int, solver: str, request: pytest.FixtureRequest
) -> None:
    made = plan
    if Feature.BOUND not in load(solver).features:
        request.getfixturevalue("alone")
    if solver != "cpsat":
        made = make_plan(
            small_profile, WORKLOAD, memory_bytes=budget, solver=solver, time_limit_seconds=LIMIT
        )
    assert check_plan(made, small_profile) == []
    if solver in BASELINES:
        assert made.solver == solver
        assert made.stop == "rule"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective(small_profile: Any, plan: Plan, budget: int, objective: str) -> None:
    made = plan
    if objective != "throughput":
        made = make_plan(
            small_profile,
            WORKLOAD,
            memory_bytes=budget,
            objective=objective,
            time_limit_seconds=LIMIT,
        )
    assert check_plan(made, small_profile) == []
    assert made.objective_name == objective
    totals = made.predicted.totals
    expected = {
        "throughput": totals.wall_ns / 64,
        "time-per-token": totals.decode_ns
        / (7 * -(-8 // made.policy.n_batches // made.policy.batch_size)),
        "first-token": made.predicted.time_to_first_token_ns,
        "bubble": (totals.bubble_inter_layer_ns + totals.bubble_intra_layer_ns) / 64,
        "bytes": totals.bytes_read / 64,
        "peak-memory": made.memory["device"].peak_bytes,
    }[objective]
    assert made.objective == pytest.approx(expected, rel=0.02)


def test_everything_resident_when_it_fits(small_profile: Any) -> None:
    made = make_plan(small_profile, WORKLOAD, memory_bytes=1 << 30)
    assert made.policy.slots == 0
    assert all(layer.dense_resident for layer in made.policy.layers)
    assert made.predicted.totals.bytes_read == 0
    assert made.gap == pytest.approx(0.0, abs=1e-4)


def test_the_smallest_budget_is_exact(small_profile: Any, least: Plan) -> None:
    with pytest.raises(BudgetError, match="the smallest that works is") as caught:
        make_plan(small_profile, WORKLOAD, memory_bytes=100_000)
    smallest = caught.value.smallest_bytes
    assert smallest == smallest_budget(small_profile.model, WORKLOAD, 4, "below")
    assert least.memory["device"].capacity_bytes == smallest
    assert least.memory["device"].peak_bytes == smallest
    assert check_plan(least, small_profile) == []
    with pytest.raises(BudgetError) as again:
        make_plan(small_profile, WORKLOAD, memory_bytes=smallest - 1)
    assert again.value.smallest_bytes == smallest


def test_one_sequence_at_a_time_under_a_small_budget(least: Plan) -> None:
    assert (least.policy.n_batches, least.policy.batch_size) == (1, 1)
    assert "in 8 groups" in least.notes[0]


def test_one_new_token_has_no_decode(small_profile: Any, budget: int) -> None:
    workload = Workload(3, 16, 1)
    made = make_plan(small_profile, workload, memory_bytes=budget, time_limit_seconds=LIMIT)
    assert made.predicted.totals.decode_ns == 0
    assert made.predicted.decode_tokens_per_second.value == 0
    with pytest.raises(OptionError, match="needs at least 2 new tokens"):
        make_plan(small_profile, workload, memory_bytes=budget, objective="time-per-token")


def test_slowdowns_lengthen_the_plan(profile_factory: Any, plan: Plan, budget: int) -> None:
    slow = profile_factory(copy_slowdown=1.5, compute_slowdown=1.3)
    made = planned(slow, budget)
    assert made.objective > plan.objective
    assert any("times as long as alone" in note for note in made.notes)


def test_bad_options_are_refused(small_profile: Any) -> None:
    with pytest.raises(OptionError, match="solver 'best' is unknown"):
        make_plan(small_profile, WORKLOAD, memory_bytes=MIB, solver="best")
    with pytest.raises(OptionError, match="objective 'speed' is unknown"):
        make_plan(small_profile, WORKLOAD, memory_bytes=MIB, objective="speed")
    with pytest.raises(OptionError, match="give a positive one"):
        make_plan(small_profile, WORKLOAD, memory_bytes=MIB, time_limit_seconds=0)
    long = Workload(1, 4000, 200)
    with pytest.raises(OptionError, match="exceed the model's context of 4096"):
        make_plan(small_profile, long, memory_bytes=MIB)


def test_few_sequences_are_said_so(profile_factory: Any, budget: int) -> None:
    few = profile_factory(sequences=2)
    made = make_plan(few, WORKLOAD, memory_bytes=budget, solver="frequency")
    assert any("only 2 sequences" in note for note in made.notes)


def test_group_and_batch_sizes() -> None:
    assert group_sizes(8) == [8, 4, 3, 2, 1]
    assert group_sizes(1) == [1]
    assert batch_sizes(8) == [1, 2, 4, 8]
    assert batch_sizes(6) == [1, 2, 3, 6]


def test_a_hand_edited_plan_is_caught(small_profile: Any, plan: Plan) -> None:
    broken = replace(plan, policy=replace(plan.policy, slots=plan.policy.slots + 1000))
    assert {v.reason for v in check_plan(broken, small_profile)} >= {
        "memory_account",
        "memory_overflow",
    }
