"""The predictor of each layer, chosen on routing whose rule is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.check import check_plan, check_policy
from planner.documents import LayerPolicy, Plan, Workload, document_hash
from planner.prefetching import choose_predictors
from planner.profiles import Profile
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan

WORKLOAD = Workload(requests=1, prompt_tokens=8, new_tokens=4)


@pytest.fixture(scope="module")
def profile(small_profile: Profile) -> Profile:
    """Experts 0 to 6 come evenly, and 7 as the second choice always. Those of layer 1 follow those
    of layer 0 (e -> e + 1 mod 7); those of layer 2 follow nothing, but its router, asked a layer
    ahead, is right."""
    trace, arrays = small_profile.routing, small_profile.arrays
    rng = np.random.default_rng(5)
    experts = np.full_like(arrays.experts, 7)
    experts[..., 0] = rng.integers(0, 7, experts.shape[:2])
    experts[:, 1, 0] = (experts[:, 0, 0] + 1) % 7
    ahead = np.full_like(experts, 7)
    ahead[:, 2:] = experts[:, 2:]
    routing = replace(trace, arrays_hash="c" * 64)
    index = replace(small_profile.index, routing_hash=document_hash(routing))
    return replace(
        small_profile,
        index=index,
        routing=routing,
        arrays=replace(arrays, experts=experts, ahead=ahead),
    )


@pytest.fixture(scope="module")
def plan(profile: Profile) -> Plan:
    """Each layer prefetches two of the experts 0 to 6; 7 stays."""
    memory = smallest_budget_bytes(profile, WORKLOAD) * 2
    made = make_plan(profile, WORKLOAD, memory_bytes=memory, solver="on-demand")
    layers = tuple(
        LayerPolicy(True, (7,), (0, 1)) if spec.experts else LayerPolicy(True, (), ())
        for spec in profile.model.layers
    )
    return replace(made, policy=replace(made.policy, layers=layers))


def test_each_layer_takes_what_finds_most(plan: Plan, profile: Profile) -> None:
    made = choose_predictors(plan, profile)
    moe = profile.routing.moe_layers
    names = [made.policy.layers[layer].predictor for layer in moe]
    # the first has no router before it; the rest of the layers are as the third
    assert names[:3] == ["plan", "coactivation", "lookahead"]
    assert set(names[3:]) <= {"lookahead"}
    assert "coactivation in 1, lookahead in" in made.notes[-1]
    assert "they name 100% of the experts to copy" in made.notes[-1]
    # all but the predictors and the note is as it was
    back = tuple(replace(layer, predictor="plan") for layer in made.policy.layers)
    assert replace(made, policy=replace(made.policy, layers=back), notes=plan.notes) == plan


def test_a_router_that_is_not_resident_is_not_asked(plan: Plan, profile: Profile) -> None:
    layers = tuple(replace(layer, dense_resident=False) for layer in plan.policy.layers)
    made = choose_predictors(replace(plan, policy=replace(plan.policy, layers=layers)), profile)
    names = {layer.predictor for layer in made.policy.layers}
    assert "lookahead" not in names
    assert "coactivation" in names


def test_a_layer_that_follows_a_predictor_already_keeps_it(plan: Plan, profile: Profile) -> None:
    """``coactivation`` would find more in the second layer, which looks ahead and waits for it."""
    second, third = profile.routing.moe_layers[1:3]
    layers = list(plan.policy.layers)
    layers[second] = replace(layers[second], predictor="lookahead", waits=True)
    made = choose_predictors(
        replace(plan, policy=replace(plan.policy, layers=tuple(layers))), profile
    )
    assert made.policy.layers[second] == layers[second]
    assert made.policy.layers[third].predictor == "lookahead"
    assert check_policy(made.policy) == []
    everywhere = tuple(
        replace(layer, predictor="lookahead", waits=True) if layer.prefetch else layer
        for layer in plan.policy.layers[second:]
    )
    first = replace(plan.policy.layers[0], prefetch=())
    rest = plan.policy.layers[1:second]
    all_look = replace(plan.policy, layers=(first, *rest, *everywhere))
    made = choose_predictors(replace(plan, policy=all_look), profile)
    assert made.policy == all_look
    assert made.notes[-1] == "predictors: each layer that prefetches follows one already"


def test_lists_that_are_as_good_stay(plan: Plan, profile: Profile) -> None:
    """With all that may come in the list nothing is to be gained, without a list nothing copied."""
    everything = LayerPolicy(True, (7,), tuple(range(7)))
    layers = tuple(everything if layer.prefetch else layer for layer in plan.policy.layers)
    made = choose_predictors(replace(plan, policy=replace(plan.policy, layers=layers)), profile)
    assert {layer.predictor for layer in made.policy.layers} == {"plan"}
    assert "none finds more" in made.notes[-1]
    layers = tuple(replace(layer, prefetch=()) for layer in plan.policy.layers)
    made = choose_predictors(replace(plan, policy=replace(plan.policy, layers=layers)), profile)
    assert "prefetches nothing" in made.notes[-1]


def test_the_checker_knows_predictors_that_cannot_work(plan: Plan, profile: Profile) -> None:
    def reasons(layer: int, **changes: Any) -> set[str]:
        layers = list(plan.policy.layers)
        layers[layer] = replace(layers[layer], **changes)
        policy = replace(plan.policy, layers=tuple(layers))
        return {one.reason for one in check_plan(replace(plan, policy=policy), profile)}

    first, second = profile.routing.moe_layers[:2]
    assert "predictor" not in reasons(second, predictor="coactivation")
    assert "predictor" in reasons(first, predictor="coactivation")
    assert "predictor" in reasons(second, predictor="coactivation", prefetch=())
    assert "predictor" in reasons(second, predictor="lookahead", dense_resident=False)
