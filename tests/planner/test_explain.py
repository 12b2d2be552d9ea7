"""What more of something buys, and that it is never less than what is there already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.documents import Workload
from planner.explain import explain
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=4)


def test_faster_copies_serve_the_plan_as_it_is(
    small_profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    budget = smallest + small_profile.model.expert_bytes // 2
    made = make_plan(small_profile, WORKLOAD, memory_bytes=budget, solver="on-demand")
    # a search that is cut short brings nothing new
    monkeypatch.setattr("planner.explain._replan", lambda *_: made)
    price = explain(made, small_profile, time_limit_seconds=0.1).bandwidth_price
    assert price is not None
    assert price.base == made.objective
    # the rule's own plan on the machine with faster copies has the same policy
    channels = tuple(channel.faster(1.1) for channel in small_profile.hardware.channels)
    faster = replace(small_profile, hardware=replace(small_profile.hardware, channels=channels))
    again = make_plan(faster, WORKLOAD, memory_bytes=budget, solver="on-demand")
    assert again.policy == made.policy
    assert price.replanned == pytest.approx(again.objective, rel=1e-3)
    assert price.replanned < 0.99 * price.base
    assert (price.n_batches, price.batch_size) == (made.policy.n_batches, made.policy.batch_size)
