"""Forms of single experts: the knapsack by hand, against all choices, and what the checker sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.check import check_plan
from planner.compare import _bounds, compare, compare_bound
from planner.documents import (
    OWN,
    FormName,
    LayerPolicy,
    ModelSpec,
    Plan,
    Workload,
    parse_document,
    to_json,
)
from planner.encode import Encoding
from planner.entries import Entry
from planner.factors import Factors
from planner.forms import Choice, Option, allowing, choose, forms_words, knapsack, uses
from planner.groups import candidates
from planner.memory import default_head_tiling, head_tile_bytes, slot_bytes
from planner.objectives import objective_named
from planner.profiles import Profile
from planner.smallest import smallest_budget_bytes
from planner.solve import document
from planner.sweep import sweep
from solvers.errors import OptionError
from solvers.outcome import Stop
from solvers.registry import Limits, load
from tests.several_forms import INT8, several

WORKLOAD, FEW = Workload(4, 8, 4), Workload(9, 4, 2)


# --- the choice ----------------------------------------------------------------------------------

# (error, price) of own, int8 and int4: the steps save 20, 2.5; 10, 5 / 3 for each unit of error
HAND = [
    [Option(OWN, 0, 100), Option("int8-1", 2, 60), Option("int4-1", 10, 40)],
    [Option(OWN, 0, 80), Option("int8-1", 3, 50), Option("int4-1", 6, 45)],
]


@pytest.mark.parametrize(
    ("allowed", "forms", "error", "price", "bound"),
    [
        (0, (OWN, OWN), 0, 180, 180),
        # half of the first step, 40 for 2
        (1, (OWN, OWN), 0, 180, 160),
        (2, ("int8-1", OWN), 2, 140, 140),
        (5, ("int8-1", "int8-1"), 5, 110, 110),
        # 4 of the 8 that int4 of the first adds for 20; the best is int8 and int4, 105
        (9, ("int8-1", "int8-1"), 5, 110, 100),
        (13, ("int4-1", "int8-1"), 13, 90, 90),
        (99, ("int4-1", "int4-1"), 16, 85, 85),
    ],
)
def test_knapsack_by_hand(
    allowed: int, forms: tuple[FormName, ...], error: int, price: int, bound: int
) -> None:
    assert knapsack(HAND, allowed) == Choice(forms, error, price, bound)


def test_forms_that_others_replace_are_passed_over() -> None:
    """Dearer for more error; and above the line from own to int4, which is 60 for 6: int8 for 5
    would save 10."""
    dear = [Option(OWN, 0, 100), Option("int8-1", 3, 120), Option("int4-1", 6, 40)]
    above = [Option(OWN, 0, 100), Option("int8-1", 5, 90), Option("int4-1", 6, 40)]
    for options in (dear, above):
        assert knapsack([options], 5) == Choice((OWN,), 0, 100, 50)
        assert knapsack([options], 6).forms == ("int4-1",)


@st.composite
def experts(draw: st.DrawFn) -> list[list[Option]]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        rest = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=2))
        names: tuple[FormName, ...] = ("int8-1", "int4-1")
        own = Option(OWN, 0, draw(st.integers(0, 50)))
        found.append([own, *(Option(name, *one) for name, one in zip(names, rest, strict=False))])
    return found


@settings(max_examples=150, deadline=None)
@given(experts(), st.integers(0, 30), st.integers(0, 10))
def test_near_the_best_of_all_choices_and_never_worse_with_more_allowed(
    given_experts: list[list[Option]], allowed: int, more: int
) -> None:
    found = knapsack(given_experts, allowed)
    named = [
        next(one for one in options if one.form == form)
        for options, form in zip(given_experts, found.forms, strict=True)
    ]
    assert sum(one.error for one in named) == found.error <= allowed
    assert sum(one.price for one in named) == found.price
    best = min(
        sum(one.price for one in chosen)
        for chosen in product(*given_experts)
        if sum(one.error for one in chosen) <= allowed
    )
    assert found.bound <= best <= found.price
    longest = max(
        max(one.price for one in options) - min(one.price for one in options)
        for options in given_experts
    )
    assert found.price - found.bound <= longest
    looser = knapsack(given_experts, allowed + more)
    assert looser.price <= found.price
    assert looser.bound <= found.bound


def test_experts_weigh_what_tokens_chose_and_once_more(small_profile: Profile) -> None:
    arrays, counted = small_profile.arrays.experts, uses(small_profile)
    for column, own in enumerate(counted):
        chosen = arrays[:, column].ravel().tolist()
        assert own == [chosen.count(expert) + 1 for expert in range(8)]


def test_only_as_many_are_quantized_as_memory_asks_for(profile_factory: Any) -> None:
    """Where quantized experts compute slower and all of them fit in int8, and none need be
    quantized to fit, none is; with less memory some are; as if nothing stayed, all are."""
    profile = allowing(several(profile_factory(), slower=1.5), 0.01)

    def chosen(memory: int) -> list[int]:
        found = choose(Encoding(profile, WORKLOAD, 1, 4, memory, 1 << 20))
        return [sum(form != OWN for own in forms for form in own) for forms in found]

    whole = Encoding(profile, WORKLOAD, 1, 4, 0, 1 << 20)
    room = whole.fixed_bytes + 2 * whole.slot_bytes
    room += sum(
        unit.held_bytes
        for stage in whole.stages(Factors())
        for unit in (*stage.items, *((stage.start,) if stage.start else ()))
    )
    few = 8 * profile.model.layers[0].expert_bytes
    # 32 experts, of which those twice as far off go beyond 1% on average where all are in int8
    (plenty,) = chosen(room)
    some, most = chosen(room - few)
    assert 0 < some < most == plenty < 32


# --- plans ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(profile_factory: Any) -> Profile:
    return several(profile_factory(layers=2, sequences=4))


def planned(profile: Profile, error: float) -> Plan:
    """On demand, all requests as one group: the best of all choices of forms."""
    view = allowing(profile, error)
    memory, goal = smallest_budget_bytes(profile, FEW) + 400_000, objective_named("throughput", FEW)
    entries = []
    for one in candidates(view, FEW, memory, 0, goal):
        if one.encoding.group == FEW.requests:
            schedule = load("on-demand").solve(one.problem("fit"), Limits()).schedule
            assert schedule is not None
            entries.append(Entry.of("on-demand", one, schedule, Stop.RULE))
    return document(view, min(entries, key=lambda entry: entry.chosen_value), [], 0)


def test_more_error_is_never_worse(profile: Profile) -> None:
    plans = [planned(profile, error) for error in (0, 0.004, 0.2)]
    objectives = [plan.objective for plan in plans]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < 0.9 * objectives[0]
    assert plans[0].policy.expert_forms == ()
    assert plans[0].expert_error is None
    for plan, allowed in zip(plans[1:], (4_000_000, 200_000_000), strict=True):
        assert plan.expert_error is not None
        assert 0 < plan.expert_error.mean_ppb <= plan.expert_error.allowed_ppb == allowed
        assert check_plan(plan, profile) == []


def test_comparisons_and_sweeps_choose_forms(profile: Profile) -> None:
    memory = smallest_budget_bytes(profile, FEW) + 400_000
    exact, near = (
        compare(allowing(profile, error), FEW, memory_bytes=memory, solvers=("on-demand",))[0].plan
        for error in (0, 0.2)
    )
    assert exact.expert_error is None
    assert near.expert_error is not None
    assert near.objective < 0.9 * exact.objective
    (point,) = sweep(allowing(profile, 0.2), FEW, [memory], solver="on-demand")
    assert point.plan == near


def test_bounds_are_of_each_plans_own_forms(profile: Profile) -> None:
    """Two plans alike in n, b and slowdown (there is none), one in int8 and int4: the bound of the
    other, which copies four times as much, is above what it takes."""
    exact, near = planned(profile, 0), planned(profile, 0.2)
    proven: dict[Any, tuple[float | None, float | None]] = {}
    pairs = [_bounds(plan, allowing(profile, 0.2), proven) for plan in (exact, near)]
    keys = [key[:6] + key[7:] for key in proven]
    assert keys[0] == keys[1]
    for plan, (own, known) in zip((exact, near), pairs, strict=True):
        assert own is not None
        assert known is not None
        assert known <= own <= plan.objective
    memory = smallest_budget_bytes(profile, FEW) + 400_000
    bound = compare_bound(allowing(profile, 0.2), FEW, memory_bytes=memory)
    assert bound.of_forms
    assert not compare_bound(profile, FEW, memory_bytes=memory).of_forms
    assert bound.value is not None
    assert bound.value <= near.objective


@pytest.fixture(scope="module")
def plan(profile: Profile) -> Plan:
    made = planned(profile, 0.004)
    used = {form for own in made.policy.expert_forms for form in own}
    assert used == {OWN, "int8-1"}
    return made


def with_layer(plan: Plan, change: Callable[[LayerPolicy], LayerPolicy]) -> Plan:
    at = next(index for index, layer in enumerate(plan.policy.layers) if layer.forms)
    layers = list(plan.policy.layers)
    layers[at] = change(layers[at])
    return replace(plan, policy=replace(plan.policy, layers=tuple(layers)))


def first(layer: LayerPolicy, old: FormName, new: FormName) -> LayerPolicy:
    """The first expert of one form in another."""
    at = layer.forms.index(old)
    return replace(layer, forms=(*layer.forms[:at], new, *layer.forms[at + 1 :]))


def test_a_changed_form_is_seen(plan: Plan, profile: Profile) -> None:
    def reasons(changed: Plan, known: Profile | None = profile) -> set[str]:
        return {one.reason for one in check_plan(changed, known, replayed=False)}

    pairs: tuple[tuple[FormName, FormName], ...] = (
        ("int8-1", OWN),
        (OWN, "int8-1"),
        ("int8-1", "int4-1"),
    )
    for pair in pairs:
        assert "error_sum" in reasons(with_layer(plan, partial(first, old=pair[0], new=pair[1])))
    assert "forms" in reasons(with_layer(plan, lambda one: replace(one, forms=one.forms[1:])))
    error = plan.expert_error
    assert error is not None
    for mean in (error.mean_ppb - 1, error.mean_ppb + 1):
        stated = replace(error, mean_ppb=mean, allowed_ppb=2 * mean)
        assert reasons(replace(plan, expert_error=stated)) == {"error_sum"}
    strict = replace(plan, expert_error=replace(error, allowed_ppb=error.mean_ppb - 1))
    assert reasons(strict, None) == {"error_above_allowed"}
    assert "forms" in reasons(replace(plan, expert_error=None), None)
    # another store: one that has experts in int4 beside their own, and one that has these alone
    fewer = replace(profile, model=replace(profile.model, forms=(profile.model.forms or ())[1:]))
    assert "forms" in reasons(plan, fewer)
    assert "forms" in reasons(plan, replace(profile, model=replace(profile.model, forms=None)))


def test_experts_that_have_no_form_are_told(plan: Plan, profile: Profile) -> None:
    """Once they ended the check: who is outside of the layer is outside of its forms, too."""
    count = profile.model.layers[0].experts
    outside = (count, count + 1)
    for name, edited in (
        ("resident", with_layer(plan, lambda one: replace(one, resident=outside))),
        ("prefetch", with_layer(plan, lambda one: replace(one, prefetch=outside))),
    ):
        said = f"{name} expert {count + 1}, and forms are of {count}"
        for known in (profile, None):
            assert said in {one.message for one in check_plan(edited, known)}


def test_plan_says_its_forms(plan: Plan) -> None:
    used = [form for own in plan.policy.expert_forms for form in own]
    quantized = used.count("int8-1")
    text = forms_words(plan.policy, plan.expert_error, 16)
    assert text in plan.notes
    assert f"of 16 experts {16 - quantized} as in the checkpoint, {quantized} in int8-1" in text
    assert "0.400% was allowed" in text


def test_slots_hold_the_largest_form(profile: Profile) -> None:
    """An expert has 98,304 bytes, 24,576 in int8, 12,288 in int4; head tiles fit the smallest."""
    model = profile.model
    rows, tiles = default_head_tiling(model, 4)
    # 12,288 less two blocks of 4,096 hold 16 rows of 64 numbers
    assert (rows, tiles) == (16, 32)
    assert head_tile_bytes(model, rows, 4) == 12_288
    eight: tuple[FormName, ...] = ("int8-1",) * 8
    four: tuple[FormName, ...] = ("int4-1",) * 8
    assert slot_bytes(model, rows, 4) == 98_304
    assert slot_bytes(model, rows, 4, (four, ())) == 98_304
    assert slot_bytes(model, rows, 4, (four, eight)) == 24_576
    assert slot_bytes(model, rows, 4, (four, four)) == 12_288


def test_what_cannot_be_allowed(profile: Profile, small_profile: Profile) -> None:
    with pytest.raises(OptionError, match=r"has its experts in one form; pack the checkpoint"):
        allowing(small_profile, 0.01)
    for wrong in (-0.1, 1.5, 1e-12, math.nan, math.inf):
        with pytest.raises(OptionError, match="is none: give 0, or 1e-9 to 1"):
            allowing(profile, wrong)
    assert allowing(profile, 0).allowed_ppb == 0
    # 0.07 is a little less as a binary fraction
    assert allowing(profile, 0.07).allowed_ppb == 70_000_000


def test_a_model_has_bytes_and_errors_for_each_expert(profile: Profile) -> None:
    model = profile.model
    assert parse_document(ModelSpec, to_json(model), "here") == model
    (eight, four) = model.forms or ()
    plain = replace(model, forms=None)
    for forms, said in (
        ((), "there is none, or one twice"),
        ((eight, eight), "there is none, or one twice"),
        ((replace(eight, errors_ppb=eight.errors_ppb[1:]),), "an error for each expert"),
        ((replace(four, expert_bytes=(0, 5)),), "bytes for each layer's experts"),
    ):
        with pytest.raises(ValueError, match=said):
            replace(plain, forms=forms)
    with pytest.raises(ValueError, match="quantized or compressed already"):
        replace(model, quantized=INT8)
