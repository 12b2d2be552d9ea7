"""What copying costs experts in a form, and they cost copying."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.check import check_plan
from planner.documents import (
    OWN,
    CostProfile,
    Figure,
    FormName,
    FormSlowdown,
    Workload,
    document_hash,
    parse_document,
    to_json,
)
from planner.encode import Encoding
from planner.form_costs import copies_slowdown
from planner.forms import allowing
from planner.profiles import Profile, assemble
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from solvers.errors import DocumentError
from tests.several_forms import several

WORKLOAD, FEW = Workload(4, 8, 4), Workload(9, 4, 2)


@pytest.fixture(scope="module")
def profile(profile_factory: Any) -> Profile:
    return several(profile_factory(layers=2, sequences=4))


def beside(value: float) -> Figure:
    return Figure(value, "measured", None, 3)


def contended(plain: Profile) -> Profile:
    """Measured of int8, not of int4: half of computation beside copies is half of each of these."""
    measured = FormSlowdown(beside(1.5), beside(1.1), beside(1.4))
    costs = replace(
        plain.costs,
        compute_slowdown=beside(1.2),
        copy_slowdown=beside(1.25),
        slowdown_by_kind={"expert": beside(1.3)},
        form_slowdowns={"int8-1": measured},
    )
    return replace(plain, costs=costs)


def test_experts_in_a_form_are_slowed_as_these_are(profile: Profile) -> None:
    made = contended(profile)
    encoding = Encoding(made, WORKLOAD, 1, 4, 1 << 30, 1 << 20)
    alone = made.costs.curves["expert"](10)
    wanted: dict[tuple[FormName, str], float] = {
        (OWN, "decode"): 1.15,
        (OWN, "prefill"): 1.15,
        ("int8-1", "decode"): 1.05,
        ("int8-1", "prefill"): 1.2,
        ("int4-1", "decode"): 1.15,
    }
    for (form, phase), factor in wanted.items():
        (took,) = encoding.expert_times(np.array([10], dtype=np.int32), 1.1, phase, form)
        assert took == pytest.approx(alone * factor, abs=1)


def test_copies_are_slowed_by_the_form_that_costs_them_most(profile: Profile) -> None:
    costs = contended(profile).costs
    own: tuple[FormName, ...] = (OWN,) * 8
    eight: tuple[FormName, ...] = ("int8-1",) * 8
    four: tuple[FormName, ...] = ("int4-1",) * 8
    assert copies_slowdown(costs, ()) == 1.25
    assert copies_slowdown(costs, (own, four)) == 1.25
    assert copies_slowdown(costs, (eight, eight)) == 1.5
    assert copies_slowdown(costs, (eight, ())) == 1.5
    quicker = replace(costs, copy_slowdown=beside(1.7))
    assert copies_slowdown(quicker, (eight, eight)) == 1.5
    assert copies_slowdown(quicker, (eight, four)) == 1.7


def test_a_plan_is_priced_and_checked_with_its_forms_slowdowns(profile: Profile) -> None:
    made = contended(profile)
    memory = smallest_budget_bytes(made, FEW) + 400_000
    plan = make_plan(allowing(made, 0.012), FEW, memory_bytes=memory, solver="on-demand")
    slowed = plan.predicted.slowdown
    # of a plan with experts in int8 the most that copies are slowed is what int8 makes of them
    assert 1 < slowed.copy <= 1.5
    assert check_plan(plan, made) == []
    assert {form for own in plan.policy.expert_forms for form in own} >= {"int8-1"}
    for copy, most in ((1.51, "1.5"), (1.6, "1.5")):
        changed = replace(slowed, copy=copy)
        (fault,) = check_plan(
            replace(plan, predicted=replace(plan.predicted, slowdown=changed)), made
        )
        assert fault.where == "predicted.slowdown.copy"
        assert f"{most} were measured at most" in fault.message


def whole(profile: Profile) -> Profile:
    """Put together with the hashes that its documents have."""
    model = document_hash(profile.model)
    costs = replace(profile.costs, model_hash=model)
    routing = replace(profile.routing, model_hash=model)
    hashes = {"costs_hash": document_hash(costs), "routing_hash": document_hash(routing)}
    index = replace(profile.index, model_hash=model, **hashes)
    return assemble(replace(profile, index=index, costs=costs, routing=routing))


def test_slowdowns_of_no_form_or_below_their_least_are_refused(profile: Profile) -> None:
    plain = profile.costs
    good = FormSlowdown(beside(1.0), beside(0.5), beside(0.5))
    model = replace(profile.model, forms=None)
    costs = replace(plain, forms=None, form_slowdowns={"int8-1": good})
    with pytest.raises(DocumentError, match="form_slowdowns: int8-1 is none of the store's forms"):
        whole(replace(profile, model=model, costs=costs))
    with pytest.raises(ValueError, match="copy is below 1"):
        replace(good, copy=beside(0.9))
    with pytest.raises(ValueError, match=r"a slowdown is below 0\.5"):
        replace(good, decode=beside(0.4))
    costs = replace(plain, form_slowdowns={"int8-1": good})
    assert parse_document(CostProfile, to_json(costs), "here") == costs
    assert "form_slowdowns" not in to_json(plain)
