"""Plans that look ahead: never slower than what they were made from, and their numbers hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from planner import looking_ahead
from planner.check import check_plan
from planner.compare import compare
from planner.documents import Plan, Workload, document_hash, dump_document
from planner.encode import schedule_of
from planner.entries import Entry
from planner.explain import explain
from planner.looking_ahead import looked, with_predictors
from planner.profiles import Profile
from planner.recompute import candidate_of, check_prediction
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from planner.sweep import sweep
from solvers.outcome import Stop

WORKLOAD = Workload(requests=1, prompt_tokens=8, new_tokens=8)
QUICK: Any = {"time_limit_seconds": 0.2, "cap_seconds": 600.0}
"""Little work, which no busy machine cuts short."""


def routed(profile: Profile, right: bool) -> Profile:
    """Choices without any rule; the routers, asked a layer ahead, are right always or have nothing
    to do with it."""
    rng = np.random.default_rng(5)
    arrays, shape = profile.arrays, profile.arrays.experts.shape
    experts = np.empty(shape, np.uint16)
    ahead = np.empty(shape, np.uint16)
    for chosen in (experts, ahead):
        chosen[..., 0] = rng.integers(0, 8, shape[:2])
        chosen[..., 1] = (chosen[..., 0] + rng.integers(1, 8, shape[:2])) % 8
    if right:
        ahead = experts.copy()
    ahead[:, 0] = 0
    routing = replace(profile.routing, arrays_hash="c" * 64)
    index = replace(profile.index, routing_hash=document_hash(routing))
    arrays = replace(arrays, experts=experts, ahead=ahead)
    return replace(profile, index=index, routing=routing, arrays=arrays)


def plan_of(profile: Profile) -> Plan:
    memory = smallest_budget_bytes(profile, WORKLOAD) * 2
    return make_plan(profile, WORKLOAD, memory_bytes=memory, solver="frequency")


class Made(NamedTuple):
    profile: Profile
    plan: Plan
    ahead: Plan


def made_of(profile: Profile) -> Made:
    plan = plan_of(profile)
    return Made(profile, plan, with_predictors(plan, profile))


@pytest.fixture(scope="module")
def right(small_profile: Profile) -> Made:
    return made_of(routed(small_profile, right=True))


@pytest.fixture(scope="module")
def wrong(small_profile: Profile) -> Made:
    return made_of(routed(small_profile, right=False))


def test_routers_that_are_right_make_a_faster_plan(right: Made) -> None:
    profile, plan, made = right
    looking = [layer.predictor == "lookahead" for layer in made.policy.layers]
    # each layer with a router before it
    assert looking == [False] + [True] * (len(looking) - 1)
    assert made.objective < plan.objective
    assert made.predicted.tokens_per_second.value > plan.predicted.tokens_per_second.value
    # its numbers are what a replay, made from the documents alone, says
    assert not list(check_plan(made, profile))
    # and not those of its lists
    lists = tuple(replace(layer, predictor="plan", waits=False) for layer in made.policy.layers)
    listed = replace(made, policy=replace(made.policy, layers=lists))
    assert any(one.reason == "prediction" for one in check_plan(listed, profile))
    # nor those of versions that did not count what asking takes
    totals = replace(made.predicted.totals, prefill_ns=made.predicted.totals.prefill_ns - 1)
    earlier = replace(
        made, predicted=replace(made.predicted, totals=replace(totals, wall_ns=totals.wall_ns - 1))
    )
    (fault,) = check_prediction(earlier, profile)
    assert fault.message.endswith("did not count what asking a router takes: plan again")
    assert made.notes[-1].startswith("predictors by layers: lookahead in ")


def test_routers_that_are_wrong_make_it_no_slower(wrong: Made) -> None:
    profile, plan, made = wrong
    candidate = candidate_of(plan, profile)
    before, after = (candidate.score("choose", schedule_of(one.policy)) for one in (plan, made))
    assert after <= before
    assert not list(check_plan(made, profile))


def test_memory_is_shared_out_within_the_budget(right: Made, wrong: Made) -> None:
    for made in (right, wrong):
        account = made.ahead.memory["device"]
        assert account.peak_bytes <= account.capacity_bytes


def test_comparisons_sweeps_and_explanations_look_ahead_too(right: Made, alone: None) -> None:
    profile, plan, made = right
    memory = plan.memory["device"].capacity_bytes
    assert plan.asked is not None
    assert made.asked == replace(plan.asked, predictors=True)
    rows = [
        compare(profile, WORKLOAD, memory_bytes=memory, solvers=("frequency",), predictors=ahead)[0]
        for ahead in (False, True)
    ]
    assert [row.plan.policy for row in rows] == [plan.policy, made.policy]
    # the bound of the class plan is none for what prefetches by what was chosen before
    assert [row.plan_bound is None for row in rows] == [plan.policy.eviction != "none", True]
    points = sweep(profile, WORKLOAD, (memory, memory + 4096), solver="frequency", predictors=True)
    swept = [point.plan for point in points if point.plan is not None]
    assert swept[0].policy == made.policy
    assert swept[1].objective <= swept[0].objective
    assert swept[1].memory["device"].capacity_bytes == memory + 4096
    assert [check_plan(one, profile) for one in swept] == [[], []]
    found = explain(made, profile)
    (own,) = [point for point in found.groups if point.sequences == 1]
    assert own.objective == made.objective


class Searched(NamedTuple):
    profile: Profile
    lists: Plan
    plan: Plan


def searched(profile: Profile) -> Searched:
    memory = smallest_budget_bytes(profile, WORKLOAD) * 2
    lists = make_plan(profile, WORKLOAD, memory_bytes=memory, predictors=False, **QUICK)
    plan = make_plan(profile, WORKLOAD, memory_bytes=memory, **QUICK)
    return Searched(profile, lists, plan)


@pytest.fixture(scope="module")
def found(small_profile: Profile) -> Searched:
    return searched(routed(small_profile, right=True))


def predictors_of(plan: Plan) -> set[str]:
    return {layer.predictor for layer in plan.policy.layers}


def test_a_search_looks_ahead_where_that_is_faster(found: Searched) -> None:
    profile, lists, plan = found
    assert predictors_of(lists) == {"plan"}
    assert predictors_of(plan) == {"plan", "lookahead"}
    assert lists.asked is not None
    assert plan.asked is not None
    assert (lists.asked.predictors, plan.asked.predictors) == (False, None)
    # by more than what it must be on the choosing sequences, also on those that judge
    assert plan.objective < 0.99 * lists.objective
    assert check_plan(plan, profile) == []
    # every name was right
    (said,) = [note for note in plan.notes if "asked a layer ahead in" in note]
    assert "where 100% of the experts that they name are needed (100% at least)" in said


def test_the_same_inputs_look_ahead_in_the_same_way(found: Searched) -> None:
    profile, _, plan = found
    memory = plan.memory["device"].capacity_bytes
    again = make_plan(profile, WORKLOAD, memory_bytes=memory, **QUICK)
    assert dump_document(again) == dump_document(plan)


def test_where_routers_are_wrong_a_search_looks_ahead_only_where_that_pays_all_the_same(
    small_profile: Profile,
) -> None:
    """Whatever is copied early may be what is needed, and stay: so names that are drawn can serve,
    too, but then the same plan without asking is slower, and so is the one with lists."""
    profile, lists, plan = searched(routed(small_profile, right=False))
    schedule, candidate = schedule_of(plan.policy), candidate_of(plan, profile)
    if plan.policy == lists.policy:
        return
    silent = schedule.replace(
        stages=tuple(replace(one, looks_ahead=False, waits=False) for one in schedule.stages)
    )
    own = candidate.score("choose", schedule)
    assert own < candidate.score("choose", silent)
    assert own < 0.99 * candidate.score("choose", schedule_of(lists.policy))
    assert sum(one.looks_ahead for one in schedule.stages) < len(schedule.stages) - 2


def test_nobody_looks_ahead_unasked_where_a_rule_plans_or_routers_were_not_asked(
    found: Searched,
) -> None:
    profile, _, plan = found
    memory = plan.memory["device"].capacity_bytes
    rule = make_plan(profile, WORKLOAD, memory_bytes=memory, solver="frequency")
    assert predictors_of(rule) == {"plan"}
    silent = replace(profile, arrays=replace(profile.arrays, ahead=None))
    bare = make_plan(silent, WORKLOAD, memory_bytes=memory, **QUICK)
    assert predictors_of(bare) == {"plan"}


def test_asking_a_router_once_more_is_priced(found: Searched) -> None:
    """Nothing slows anything else here, so each layer's router takes as long: all layers' is asked
    once, and again for each that looks ahead."""
    _, lists, plan = found
    looking = sum(layer.predictor == "lookahead" for layer in plan.policy.layers)
    layers = len(plan.policy.layers)
    own, more = (one.predicted.totals.duration_by_kind_ns["router"] for one in (lists, plan))
    assert more * layers == own * (layers + looking)


def test_no_trial_begins_after_the_deadline(
    found: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, lists, _ = found
    candidate = candidate_of(lists, profile)
    entry = Entry.of("cpsat", candidate, schedule_of(lists.policy), Stop.RULE)
    cut: list[str] = []
    # so few trials are made without a look at the clock
    better = looked(entry, time.monotonic() - 1, cut)
    assert better.chosen_value < entry.chosen_value
    assert cut == []
    monkeypatch.setattr(looking_ahead, "_SMALL_SECONDS", 0.0)
    assert looked(entry, time.monotonic() - 1, cut) is entry
    assert cut == ["looked ahead in 0 ways only"]


def test_what_nobody_asked_for_is_found(found: Searched) -> None:
    _, _, plan = found
    assert plan.asked is not None
    refused = replace(plan, asked=replace(plan.asked, predictors=False))
    assert [fault.where for fault in check_plan(refused)] == ["asked.predictors"]
    layers = tuple(replace(one, predictor="plan") for one in plan.policy.layers)
    waiting = replace(plan, policy=replace(plan.policy, layers=layers))
    if any(one.waits for one in layers):
        assert "predictor" in {fault.reason for fault in check_plan(waiting)}
