"""A plan's notes: figures of its prediction, not of its lists."""

from __future__ import annotations

import re
from typing import Any

import pytest

from planner.documents import Workload
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan

WORKLOAD = Workload(requests=8, prompt_tokens=16, new_tokens=8)


@pytest.mark.parametrize("solver", ["on-demand", "all-experts"])
def test_copies_are_those_that_the_prediction_makes(small_profile: Any, solver: str) -> None:
    budget = smallest_budget_bytes(small_profile, WORKLOAD) + small_profile.model.expert_bytes // 3
    plan = make_plan(small_profile, WORKLOAD, memory_bytes=budget, solver=solver)
    (note,) = [note for note in plan.notes if note.startswith("a pass copies")]
    found = re.search(r"about ([\d.]+) of (\d+) experts.*: ([\d.]+) ahead.*and ([\d.]+) on", note)
    assert found is not None
    copied, experts, ahead, demanded = map(float, found.groups())
    model, policy = small_profile.model, plan.policy
    assert experts == sum(layer.experts for layer in model.layers)
    # what is read but for dense parts and head tiles, which every pass streams alike; one prefill
    # and seven decode passes for each group
    passes = -(-8 // (policy.n_batches * policy.batch_size)) * 8
    dense = sum(
        spec.dense_bytes
        for spec, layer in zip(model.layers, policy.layers, strict=True)
        if not layer.dense_resident
    )
    row = model.hidden_size * model.dtype_bytes
    head = row * max(model.vocab_size - policy.resident_head_tiles * policy.head_tile_rows, 0)
    read = plan.predicted.totals.bytes_read - passes * (dense + head)
    assert copied == pytest.approx(read / passes / model.layers[0].expert_bytes, rel=0.06)
    assert ahead + demanded == pytest.approx(copied, abs=1)
    listed = sum(len(layer.prefetch) for layer in policy.layers)
    if solver == "on-demand":
        assert (listed, ahead) == (0, 0)
        # fewer than there are outside: not every expert is chosen in every pass
        assert 0 < demanded < experts - sum(len(layer.resident) for layer in policy.layers)
    else:
        assert ahead > 0


def test_nothing_is_said_twice(small_profile: Any) -> None:
    budget = smallest_budget_bytes(small_profile, WORKLOAD) + small_profile.model.expert_bytes // 3
    plan = make_plan(small_profile, WORKLOAD, memory_bytes=budget, time_limit_seconds=2)
    assert len(set(plan.notes)) == len(plan.notes)
    # what the plan's own fields say is told from them
    assert not any(note.startswith(("resident", "closest", "n = ")) for note in plan.notes)
    assert sum("extrapolated" in note for note in plan.notes) <= 1
