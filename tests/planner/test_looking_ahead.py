"""Plans that look ahead: never slower than what they were made from, and their numbers hold."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from planner.check import check_plan
from planner.compare import compare
from planner.documents import Plan, Workload, document_hash
from planner.encode import schedule_of
from planner.explain import explain
from planner.groups import smallest_budget_bytes
from planner.looking_ahead import with_predictors
from planner.profiles import Profile
from planner.recompute import candidate_of
from planner.solve import make_plan
from planner.sweep import sweep

WORKLOAD = Workload(requests=1, prompt_tokens=8, new_tokens=8)


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
    lists = tuple(replace(layer, predictor="plan") for layer in made.policy.layers)
    listed = replace(made, policy=replace(made.policy, layers=lists))
    assert any(one.reason == "prediction" for one in check_plan(listed, profile))
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


def test_comparisons_sweeps_and_explanations_look_ahead_too(right: Made) -> None:
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
