"""Predicted against measured, with numbers that can be checked in the head."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.documents import (
    CostProfile,
    Event,
    Figure,
    Inputs,
    LayerPolicy,
    Locations,
    MemoryAccount,
    Plan,
    Policy,
    Predicted,
    PredictedTotals,
    Range,
    Timeline,
    Trace,
    TraceTotals,
    Workload,
    document_hash,
)
from profiler.verify import REFINE, verify
from solvers.errors import StaleError

SECOND = 10**9
NO_HASH = "0" * 64
EMPTY = Timeline.of([])


def plan_of() -> Plan:
    """4 requests of 5 new tokens; 20 tokens promised in 2 s: 0.5 s prefill, 1.5 s decode."""
    totals = PredictedTotals(
        wall_ns=2 * SECOND,
        prefill_ns=SECOND // 2,
        decode_ns=SECOND * 3 // 2,
        bytes_read=1000,
        bubble_inter_layer_ns=100,
        bubble_intra_layer_ns=0,
        duration_by_kind_ns={"copy_demand": 50, "expert": 900, "attention": 600, "router": 0},
    )
    rate = Range(10.0, 8.0, 12.0)
    decode = Range(16 / 1.5, 9.0, 11.0)
    return Plan(
        solver="cpsat",
        stop="optimal",
        objective_name="throughput",
        objective=1.0,
        bound=None,
        bound_class=None,
        gap=None,
        inputs=Inputs(NO_HASH, NO_HASH, NO_HASH, NO_HASH, NO_HASH, None),
        locations=Locations("p", "c", None),
        workload=Workload(4, 8, 5),
        device="cpu",
        dtype="float32",
        policy=Policy(1, 4, (LayerPolicy(True, (), ()),), 8, 1, 1, 0, 0, 0, "none", 4096),
        memory={"device": MemoryAccount(500, {"kv": 300, "dense": 100})},
        predicted=Predicted(rate, decode, SECOND // 2, totals, EMPTY),
        chosen_over={},
        notes=(),
    )


def trace_of(plan: Plan, **changed: Any) -> Trace:
    totals: dict[str, Any] = {
        "wall_ns": SECOND * 5 // 2, "prefill_ns": SECOND // 2, "decode_ns": 2 * SECOND,
        "prompt_tokens": 30, "new_tokens": 20, "requests": 4, "passes": 5, "bytes_read": 1250,
        "wasted_prefetch_bytes": 0, "bubble_inter_layer_ns": 50, "bubble_intra_layer_ns": 7,
        "duration_by_kind_ns": {"expert": SECOND, "attention": SECOND, "wait_expert": 7,
                                "copy_demand": 40},
        "count_by_kind": {}, "pass_ns": (), "device_peak_bytes": 400, "device_budget_bytes": 500,
        "process_peak_bytes": 900,
    }  # fmt: skip
    return Trace(document_hash(plan), "cpu", None, 0, TraceTotals(**{**totals, **changed}), EMPTY)


def test_the_machine_s_drift_is_told() -> None:
    plan = plan_of()
    trace = dataclasses.replace(trace_of(plan), reference_ns=(120, 130, 90))
    costs = cast(CostProfile, SimpleNamespace(reference_ns=Figure(100.0, "measured", 1.0, 9)))
    found = verify(plan, trace, costs=costs)
    assert found.drift == pytest.approx(1.2)
    assert any("1.20 times as long" in note for note in found.notes)
    steady = dataclasses.replace(trace, reference_ns=(110, 100, 90))
    assert verify(plan, steady, costs=costs).notes == ()
    # a trace without them, or a profile that is gone, says nothing of it
    assert verify(plan, trace_of(plan), costs=costs).drift is None
    assert verify(plan, trace).drift is None


def test_costs_that_are_off_name_what_corrects_them() -> None:
    plan = plan_of()
    # 8 tokens/s in decode, where 9 to 11 are promised
    trace = dataclasses.replace(trace_of(plan), inputs=plan.inputs, reference_ns=(100,))
    assert verify(plan, trace).notes == (REFINE,)
    assert "--refine TRACE" in REFINE
    quick = trace_of(plan, wall_ns=2 * SECOND, decode_ns=SECOND * 3 // 2)
    assert verify(plan, dataclasses.replace(quick, inputs=plan.inputs)).notes == ()
    # a busy machine, other work than planned, or a trace that says too little: nothing to learn
    costs = cast(CostProfile, SimpleNamespace(reference_ns=Figure(80.0, "measured", 1.0, 9)))
    assert REFINE not in verify(plan, trace, costs=costs).notes
    other = dataclasses.replace(trace_of(plan, requests=2), inputs=plan.inputs)
    assert REFINE not in verify(plan, other).notes
    assert verify(plan, trace_of(plan)).notes == ()


def test_writes_of_keys_and_values_show_their_error_and_what_they_were_priced_by() -> None:
    plan = plan_of()
    spent: dict[Any, int] = {"write_kv": 200, "expert": 900}
    totals = dataclasses.replace(plan.predicted.totals, duration_by_kind_ns=spent)
    plan = dataclasses.replace(plan, predicted=dataclasses.replace(plan.predicted, totals=totals))
    trace = trace_of(plan, duration_by_kind_ns={"write_kv": 500, "expert": SECOND})
    reference = Figure(100.0, "measured", 1.0, 9)
    for writes, said in ((None, True), (object(), False)):
        costs: Any = SimpleNamespace(reference_ns=reference, kv_writes=writes)
        found = verify(plan, trace, costs=costs)
        assert any("write_kv: writes" in note for note in found.notes) == said
        kinds = {one.name: one.ratio for one in found.kinds}
        assert kinds["write_kv"] == 2.5


def test_rates_times_and_bytes() -> None:
    plan = plan_of()
    found = verify(plan, trace_of(plan))
    # 20 tokens in 2.5 s against 10 tokens/s promised
    assert found.tokens_per_second.measured == pytest.approx(8.0)
    assert found.tokens_per_second.error == pytest.approx(-0.2)
    assert found.tokens_per_second.inside
    # 16 tokens come out of decode passes, in 2 s: below the promised 9 to 11
    assert found.decode_tokens_per_second.measured == pytest.approx(8.0)
    assert not found.decode_tokens_per_second.inside
    assert found.wall.ratio == pytest.approx(1.25)
    assert found.prefill.ratio == 1
    assert found.bytes_read.ratio == pytest.approx(1.25)
    assert found.bubble_inter_layer.ratio == 0.5
    assert found.bubble_intra_layer.ratio is None  # none was predicted
    assert found.device_peak_bytes.ratio == 1
    # 2.5 s less 1 s of attention, 1 s of experts and 7 ns of waiting; copies run beside
    assert found.unaccounted_ns == SECOND // 2 - 7
    assert found.notes == ()
    assert found.not_comparable is None


def test_kinds_of_either_side_in_the_order_of_a_pass() -> None:
    plan = plan_of()
    kinds = verify(plan, trace_of(plan)).kinds
    assert [kind.name for kind in kinds] == [
        "attention", "router", "expert", "copy_demand", "wait_expert",
    ]  # fmt: skip
    by_name = {kind.name: kind for kind in kinds}
    assert by_name["expert"].ratio == pytest.approx(SECOND / 900)
    assert by_name["router"].ratio is None  # predicted with 0 ns
    assert by_name["copy_demand"].ratio == pytest.approx(0.8)
    assert by_name["wait_expert"].predicted == 0
    assert by_name["wait_expert"].ratio is None


def test_a_token_that_is_missing_is_noted() -> None:
    plan = plan_of()
    found = verify(plan, trace_of(plan, new_tokens=19))
    assert found.not_comparable is None
    assert len(found.notes) == 1
    assert "20 new tokens, the run made 19" in found.notes[0]


def test_other_work_than_planned_judges_nothing() -> None:
    plan = plan_of()
    found = verify(plan, trace_of(plan, requests=2, prompt_tokens=11, new_tokens=10))
    # 11 tokens of two prompts are 5.5 each
    said = "planned for 4 requests of 8+5 tokens, ran 2 of 5.5+5: not comparable"
    assert found.not_comparable == said
    assert found.notes == (said,)
    # 10 new tokens of 2 requests: 8 of them come out of decode passes, in 2 s
    assert found.decode_tokens_per_second.measured == pytest.approx(4.0)


def test_a_run_of_nothing_has_no_ratios() -> None:
    plan = plan_of()
    found = verify(plan, trace_of(plan, wall_ns=0, decode_ns=0, duration_by_kind_ns={}))
    assert found.tokens_per_second.error is None
    assert found.wall.ratio == 0
    assert not any(kind.ratio for kind in found.kinds)


def test_another_plans_trace_is_refused() -> None:
    plan = plan_of()
    with pytest.raises(StaleError, match="another plan") as caught:
        verify(dataclasses.replace(plan, seed=1), trace_of(plan))
    assert caught.value.document == "plan"


def test_it_goes_into_json() -> None:
    plan = plan_of()
    value = json.loads(json.dumps(verify(plan, trace_of(plan)).to_json()))
    assert value["tokens_per_second"]["predicted"] == {"value": 10.0, "low": 8.0, "high": 12.0}
    assert value["kinds"][0]["name"] == "attention"


def test_rows_of_the_embedding_are_no_copies() -> None:
    plan = plan_of()
    found = verify(plan, trace_of(plan, embedding_bytes=250))
    assert (found.bytes_read.measured, found.bytes_read.ratio) == (1000, 1.0)
    assert found.embedding_bytes == 250


def test_waste_and_how_experts_were_met_are_handed_on() -> None:
    plan = plan_of()
    met = {"cached": 3, "on_demand": 1}
    found = verify(plan, trace_of(plan, wasted_prefetch_bytes=40, served=met))
    assert (found.wasted_prefetch_bytes, found.served) == (40, met)
    # a trace of an older moeplan has no such counts
    assert verify(plan, trace_of(plan)).served == {}


@pytest.mark.parametrize(
    ("made", "fed", "said"),
    [
        (8192, 4, False),  # a column in two blocks
        (12_288, 4, True),
        (12_288, 9, False),  # a prompt of six tokens begins meanwhile: all is written
    ],
)
def test_larger_writes_of_unequal_prompts_are_told(made: int, fed: int, said: bool) -> None:
    def timeline(size: int, fed: int) -> Timeline:
        return Timeline.of(
            [
                Event("write_kv", "compute", 0, 0, -1, 0, 5, 32, 65_536),
                Event("embed", "compute", 1, -1, -1, 5, 6, fed, 0),
                Event("write_kv", "compute", 1, 0, -1, 6, 9, fed, size),
                Event("sample", "compute", 1, 1, -1, 9, 10, 4, 0),
                Event("write_kv", "compute", 2, 0, -1, 10, 11, 4, 65_536),
            ]
        )

    plan = plan_of()
    predicted = dataclasses.replace(plan.predicted, timeline=timeline(4096, 4))
    plan = dataclasses.replace(plan, predicted=predicted)
    trace = dataclasses.replace(trace_of(plan), timeline=timeline(made, fed))
    (*_, last) = ("", *verify(plan, trace).notes)
    assert last.startswith(f"write_kv: the first decode pass wrote back {made / 1024} KiB") == said
    # of a plan that has them on the device nothing is said
    assert verify(plan_of(), trace_of(plan_of())).notes == ()
