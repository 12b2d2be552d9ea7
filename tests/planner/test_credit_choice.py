"""Policies of a link with credit are compared with it; solvers, objectives and bounds without."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import Any, NamedTuple

import pytest

import planner.entries
import planner.explain
from planner.candidate import Candidate
from planner.check import check_plan
from planner.compare import compare
from planner.credit import credit_of
from planner.documents import (
    BalanceFigures,
    Burst,
    Channel,
    ExpertPlacement,
    Figure,
    LayerPlacement,
    Plan,
    Workload,
    to_json,
)
from planner.entries import Entry
from planner.offload import make_offload
from planner.offload_check import check_placement_plan
from planner.profiles import Profile
from planner.recompute import candidate_of
from planner.smallest import smallest_budget_bytes
from planner.solve import document, make_plan, solve
from planner.sweep import sweep
from solvers.relaxation import relax
from solvers.replay import replay
from tests.bursting import bursting

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=6)
# a cap that no busy machine reaches: which policy comes out must not hang on the clock
ASKED: dict[str, Any] = {
    "solver": "cpsat", "objective": "throughput", "seed": 0, "cap_seconds": 60.0
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(profile_factory: Any) -> Profile:
    made: Profile = profile_factory(
        layers=3, experts=8, sequences=12, bandwidth=4e8, latency_ns=0, skew=0.4
    )
    return made


@pytest.fixture(scope="module")
def ahead(plain: Profile) -> Profile:
    return bursting(plain, 4e9, 4e5)


FEW = Workload(requests=2, prompt_tokens=8, new_tokens=3)


@pytest.fixture(scope="module")
def less(profile_factory: Any) -> Profile:
    """Smaller than ``plain``, where any plan will do."""
    made: Profile = profile_factory(
        layers=2, experts=4, sequences=6, prompt=4, new=4, bandwidth=4e8, latency_ns=0
    )
    return made


def room_in(profile: Profile) -> int:
    """For ``FEW``, and two of the experts."""
    return smallest_budget_bytes(profile, FEW) + 2 * profile.model.layers[0].expert_bytes


def budget_of(profile: Profile) -> int:
    return smallest_budget_bytes(profile, WORKLOAD) + 6 * profile.model.layers[0].expert_bytes


def with_credit(candidate: Candidate, which: Any, entry: Entry) -> float:
    """ns a token by a replay with credit, without a call of what is tested: all passes by weight,
    of each run, over 4 x 6 tokens."""
    problem = candidate.problem(which)
    result = replay(problem, entry.schedule, credit=credit_of(candidate.encoding))
    total = int((result.pass_ns * problem.scenarios.weight).sum())
    runs = problem.scenarios.passes // len(candidate.shapes(which))
    return total / runs / 24


class Chosen(NamedTuple):
    """A search, all policies that it looked at, and its plan."""

    best: Entry
    rivals: list[Entry]
    found: list[Entry]
    plan: Plan


@pytest.fixture(scope="module")
def chosen(ahead: Profile) -> Chosen:
    found: list[Entry] = []
    original = Entry.of

    def keep(*args: Any, **options: Any) -> Entry:
        found.append(original(*args, **options))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Entry, "of", staticmethod(keep))
        best, rivals = solve(
            ahead, WORKLOAD, memory_bytes=budget_of(ahead), time_limit_seconds=1.0, **ASKED
        )
    return Chosen(best, rivals, found, document(ahead, best, rivals, 0))


def test_the_choice_is_by_credited_times(ahead: Profile, chosen: Chosen) -> None:
    best, rivals, _, plan = chosen
    for entry in (best, *rivals):
        assert entry.chosen_value == pytest.approx(with_credit(entry.candidate, "choose", entry))
    assert best.chosen_value <= min(rival.chosen_value for rival in rivals)
    lasting = [one.candidate.score("choose", one.schedule) for one in (best, *rivals)]
    # what is ahead makes all of them faster, and turns the order of some round
    assert all(
        one.chosen_value < value for one, value in zip((best, *rivals), lasting, strict=True)
    )
    by_value = sorted(range(len(lasting)), key=lambda i: lasting[i])
    by_credit = sorted(range(len(lasting)), key=lambda i: (best, *rivals)[i].chosen_value)
    assert by_value != by_credit
    assert plan.promised == pytest.approx(with_credit(best.candidate, "judge", best))
    assert plan.promised < plan.objective
    assert plan.objective == best.candidate.score("judge", best.schedule)
    for rival in rivals:
        told = plan.chosen_over[rival.solver]
        assert told == pytest.approx(with_credit(rival.candidate, "judge", rival))
    assert check_plan(plan, ahead) == []
    # the objective with credit is the prediction's time for each of 24 tokens
    assert plan.promised * 24 == pytest.approx(plan.predicted.totals.wall_ns, abs=2)
    assert plan.predicted.credit_ns == 1_000_000  # 400 kB at 0.4 GB/s


def test_a_baseline_that_credit_makes_faster_wins(chosen: Chosen) -> None:
    """Of two policies the slower one by lasting rate is returned where it is promised to be faster.

    A group's prefill copies nearly every expert, and what is on demand rests while attention is
    computed, so that credit tells most for those that wait for the router.
    """
    promised = min(chosen.found, key=lambda one: one.chosen_value)
    assert chosen.best.chosen_value == promised.chosen_value


def test_without_credit_all_is_as_before(less: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte what comparing by the objective itself gives."""
    # a cap that no busy machine reaches: what is compared must not hang on the clock
    asked: dict[str, Any] = {"memory_bytes": room_in(less), "time_limit_seconds": 0.5}
    asked["cap_seconds"] = 60.0
    for options in ({}, {"solver": "on-demand"}, {"then": "peak-memory"}):
        plan = make_plan(less, FEW, **asked, **options)
        assert "objective" not in to_json(plan)["predicted"]
        assert plan.promised == plan.objective
        with monkeypatch.context() as patched:
            patched.setattr(Candidate, "promised", Candidate.score)
            patched.setattr(planner.entries, "credit_of", lambda encoding: None)
            before = make_plan(less, FEW, **asked, **options)
        assert json.dumps(to_json(plan)) == json.dumps(to_json(before))


def test_more_bandwidth_is_also_more_at_the_peak() -> None:
    burst = Burst(Figure(3e8, "fitted"), Figure(2e6, "fitted"))
    link = Channel("disk", Figure(1e8, "measured"), Figure(5.0, "measured"), 10_000, burst)
    faster = link.faster(1.5)
    assert faster.bandwidth_bytes_per_second.value == 1.5e8
    assert faster.paced_bytes_per_second == 15_000
    assert faster.latency_ns.value == 5.0
    assert faster.burst is not None
    assert faster.burst.peak_bytes_per_second.value == 4.5e8
    assert faster.burst.depth_bytes.value == 2e6
    none = dataclasses.replace(link, paced_bytes_per_second=None, burst=None).faster(2.0)
    assert (none.paced_bytes_per_second, none.burst) == (None, None)


def test_sweep_and_compare_rank_by_what_is_promised(less: Profile) -> None:
    ahead = bursting(less, 4e9, 4e5)
    low = room_in(ahead)
    expert = ahead.model.layers[0].expert_bytes
    points = sweep(ahead, FEW, (low, low + expert, low + 3 * expert), time_limit_seconds=0.5)
    rates = [point.plan.predicted.tokens_per_second.value for point in points if point.plan]
    assert len(rates) == 3
    assert rates == sorted(rates)
    rows = compare(ahead, FEW, memory_bytes=low, solvers=("on-demand", "frequency", "all-experts"))
    for row in rows:
        # 1e9 / (ns a token) is tokens/s
        assert 1e9 / row.promised == pytest.approx(row.tokens_per_second)
        assert row.promised < row.objective_value == row.plan.objective


def test_an_explanation_holds_credited_times_against_each_other(
    less: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = bursting(less, 4e9, 4e5)
    # searches end by their work: no clock decides what they find
    plan = make_plan(
        ahead, FEW, memory_bytes=room_in(ahead), time_limit_seconds=0.5, cap_seconds=60.0
    )
    patient = partial(planner.explain.by_group, cap_seconds=60.0)
    monkeypatch.setattr(planner.explain, "by_group", patient)
    told = planner.explain.explain(plan, ahead, time_limit_seconds=0.2)
    own = next(point for point in told.groups if point.sequences == FEW.requests)
    assert own.objective is not None
    # the same group by a shorter search: as fast as a plan that counts credit, not as one without
    assert own.objective < plan.objective
    assert told.memory_price is not None
    assert told.memory_price.base <= plan.promised
    # the bound is of the passes at the rate that lasts
    candidate = candidate_of(plan, ahead)
    relaxed = relax(candidate.problem("judge"))
    assert relaxed is not None
    bound = candidate.value("judge", relaxed.bound.value_ns)
    assert told.memory_price.bound_before == bound


HALVES = tuple((0,) if expert < 4 else (1,) for expert in range(8))


def placed(layers: int) -> ExpertPlacement:
    figures = BalanceFigures(1.0, 1.0, 1.0, 1)
    return ExpertPlacement(
        method="by hand", devices=2, nodes=1, replicas=0, experts=8,
        layers=tuple(LayerPlacement(at, HALVES) for at in range(layers)),
        routing_hash="0" * 64, routing_source="synthetic", drawn="by hand",
        fitted=figures, held_out=figures, bound=0.0, gap=1.0, stop="rule",
    )  # fmt: skip


def test_offload_counts_it(plain: Profile, profile_factory: Any) -> None:
    """More credit than copies is a drive at its peak, here of twice the rate."""
    quick = profile_factory(
        layers=3, experts=8, sequences=12, bandwidth=8e8, latency_ns=0, skew=0.4
    )
    expert = plain.model.layers[0].expert_bytes
    made = {
        name: make_offload(
            profile, placed(3), WORKLOAD, memory_bytes=4 * expert, solver="on-demand"
        ).offload
        for name, profile in (
            ("plain", plain), ("ahead", bursting(plain, 8e8, 1e13)), ("quick", quick)
        )
    }  # fmt: skip
    for slow, fast, twice in zip(*(one.devices for one in made.values() if one), strict=True):
        assert (slow.predicted.credit_ns, twice.predicted.credit_ns) == (None, None)
        assert fast.predicted.credit_ns == 3_600_000_000_000
        assert fast.predicted.wall_ns < slow.predicted.wall_ns
        assert fast.predicted.wall_ns == pytest.approx(twice.predicted.wall_ns, rel=1e-3)
        assert fast.predicted.copied_bytes == slow.predicted.copied_bytes


def test_the_checker_of_offload_plans_counts_it_too(plain: Profile) -> None:
    profile = bursting(plain, 2e9, 1e5)
    expert = plain.model.layers[0].expert_bytes
    made = make_offload(profile, placed(3), WORKLOAD, memory_bytes=4 * expert, solver="frequency")
    assert check_placement_plan(made, profile) == []
    assert made.offload is not None
    one = made.offload.devices[0]
    for credit_ns in (None, 1):
        edited = dataclasses.replace(
            one, predicted=dataclasses.replace(one.predicted, credit_ns=credit_ns)
        )
        offload = dataclasses.replace(made.offload, devices=(edited, *made.offload.devices[1:]))
        (found,) = check_placement_plan(dataclasses.replace(made, offload=offload), profile)
        assert (found.reason, found.where) == ("prediction", "offload.devices.0.predicted")


def test_credit_and_its_objective_go_together(ahead: Profile, plain: Profile) -> None:
    plan = make_plan(ahead, WORKLOAD, memory_bytes=budget_of(ahead), solver="on-demand")
    predicted = dataclasses.replace(plan.predicted, objective=None)
    (found,) = check_plan(dataclasses.replace(plan, predicted=predicted))
    assert found.reason == "objective_credit"
    predicted = dataclasses.replace(plan.predicted, objective=plan.promised / 2)
    (found,) = check_plan(dataclasses.replace(plan, predicted=predicted))
    assert (found.reason, found.where) == ("objective_inconsistent", "predicted.objective")
    without = make_plan(plain, WORKLOAD, memory_bytes=budget_of(plain), solver="on-demand")
    predicted = dataclasses.replace(without.predicted, objective=without.objective)
    (found,) = check_plan(dataclasses.replace(without, predicted=predicted))
    assert found.reason == "objective_credit"
