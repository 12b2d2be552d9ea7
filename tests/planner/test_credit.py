"""A link that is ahead after a rest: predictions count it, what is solved does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from planner.check import check_plan
from planner.credit import credit_of
from planner.documents import (
    Channel,
    Figure,
    Plan,
    Workload,
    parse_document,
    to_json,
)
from planner.encode import Encoding
from planner.explain import explain
from planner.profiles import Profile
from planner.smallest import CHUNK_BYTES, smallest_budget_bytes
from planner.solve import make_plan
from solvers.errors import DocumentError
from solvers.replay import Credit
from tests.bursting import bursting

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=4)


@pytest.fixture(scope="module")
def plain(profile_factory: Any) -> Profile:
    made: Profile = profile_factory(layers=2, sequences=6, bandwidth=1e8, latency_ns=0)
    return made


def on_demand(profile: Profile, workload: Workload = WORKLOAD) -> Plan:
    budget = smallest_budget_bytes(profile, workload) + profile.model.expert_bytes // 3
    return make_plan(profile, workload, memory_bytes=budget, solver="on-demand")


def test_credit_in_time(plain: Profile) -> None:
    def credit(profile: Profile) -> Credit | None:
        return credit_of(Encoding(profile, WORKLOAD, 1, 4, 1 << 30, CHUNK_BYTES[0]))

    assert credit(plain) is None
    # 2 MB at 0.1 GB/s are 20 ms; at a peak of 0.3 GB/s a copy takes a third, rounded up
    assert credit(bursting(plain, 3e8, 2e6)) == Credit(20_000_000, 333_334)
    # a peak that is none, as of a drive that has slowed down since
    assert credit(bursting(plain, 1e8, 2e6)) is None


def test_a_bottomless_credit_is_a_drive_at_its_peak(plain: Profile, profile_factory: Any) -> None:
    # with more credit than the run has copies, each takes what it does on a drive of twice the rate
    fast = profile_factory(layers=2, sequences=6, bandwidth=2e8, latency_ns=0)
    ahead, quick = on_demand(bursting(plain, 2e8, 1e12)), on_demand(fast)
    assert ahead.policy == quick.policy
    assert ahead.predicted.totals.wall_ns == pytest.approx(quick.predicted.totals.wall_ns, rel=1e-4)
    assert ahead.predicted.credit_ns == 3_600_000_000_000
    assert quick.predicted.credit_ns is None


def test_objective_and_bound_stay_those_of_the_lasting_rate(plain: Profile) -> None:
    without, ahead = on_demand(plain), on_demand(bursting(plain, 5e8, 1e6))
    assert ahead.policy == without.policy
    assert (ahead.objective, ahead.bound, ahead.gap) == (
        without.objective, without.bound, without.gap,
    )  # fmt: skip
    assert ahead.predicted.credit_ns == 10_000_000
    totals, before = ahead.predicted.totals, without.predicted.totals
    assert totals.wall_ns < before.wall_ns
    assert totals.bytes_read == before.bytes_read
    rate = WORKLOAD.requests * WORKLOAD.new_tokens * 1e9 / totals.wall_ns
    assert ahead.predicted.tokens_per_second.value == pytest.approx(rate)
    # the timeline's copies are the prediction's: at the peak while there is credit
    first = next(e for e in ahead.predicted.timeline.events() if e.kind.startswith("copy_"))
    assert (first.end_ns - first.start_ns) * 5e8 / 1e9 == pytest.approx(first.size_bytes, rel=0.01)
    (note,) = [note for note in ahead.notes if "when it has rested" in note]
    assert "0.5 GB/s" in note
    assert "0.1 GB/s" in note
    assert not any("rested" in note for note in without.notes)
    # how many experts a pass copies does not ask how long each takes
    said = [
        [note for note in one.notes if note.startswith("a pass copies")] for one in (without, ahead)
    ]
    assert said[0] == said[1]


def test_the_checker_counts_it_too(plain: Profile) -> None:
    profile = bursting(plain, 5e8, 1e6)
    plan = on_demand(profile)
    assert check_plan(plan, profile) == []
    assert check_plan(plan) == []
    for credit_ns in (None, 10_000_001):
        predicted = dataclasses.replace(plan.predicted, credit_ns=credit_ns)
        edited = dataclasses.replace(plan, predicted=predicted)
        found = {violation.where for violation in check_plan(edited, profile)}
        assert found & {"predicted.credit_ns", "predicted.objective"}
    # nor may a plan claim the credit of another profile's disk
    slower = dataclasses.replace(plan, inputs=on_demand(plain).inputs)
    assert "predicted.credit_ns" in {one.where for one in check_plan(slower, plain)}


def test_documents_with_and_without(plain: Profile) -> None:
    without, ahead = plain.hardware, bursting(plain, 5e8, 1e6).hardware
    assert "burst" not in to_json(without)["channels"][0]
    for one in (without, ahead):
        assert parse_document(type(one), to_json(one), "here") == one
    for field in ("peak_bytes_per_second", "depth_bytes"):
        text = to_json(ahead)
        text["channels"][0]["burst"][field]["value"] = 0
        with pytest.raises(DocumentError, match="above 0"):
            parse_document(type(ahead), text, "here")


def test_credit_that_nothing_is_copied_with(plain: Profile) -> None:
    profile = bursting(plain, 5e8, 1e6)
    plan = make_plan(profile, WORKLOAD, memory_bytes=1 << 30, solver="on-demand")
    assert plan.predicted.totals.bytes_read == 0
    assert "no expert is copied in a pass" in plan.notes
    assert check_plan(plan, profile) == []
    told = explain(plan, profile, time_limit_seconds=1)
    assert (told.channel_busy, told.binds) == (0, "compute")


def test_a_link_without_a_burst_needs_none() -> None:
    assert Channel("disk", Figure(1e9, "measured"), Figure(0.0, "measured")).burst is None
