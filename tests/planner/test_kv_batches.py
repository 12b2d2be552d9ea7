"""Keys and values of batches copied by themselves: stages, prices, what is chosen and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from executor.units import Unit, model_units
from executor.virtual import VirtualStage, run_virtual
from planner.check import check_plan
from planner.documents import LayerPolicy, Plan, StoredShares, Workload, document_hash, to_json
from planner.encode import Encoding, schedule_of
from planner.explain import explain
from planner.factors import Factors
from planner.kv import check_place
from planner.looking_ahead import with_predictors
from planner.memory import account_device, aligned
from planner.predict import predict
from planner.recompute import candidate_of
from planner.scenarios import PassShape
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from planner.stages import Grid, Start
from solvers.checker import check_proofs, check_schedule
from solvers.errors import UnsupportedError
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem
from solvers.problem import Unit as ProblemUnit
from solvers.registry import Limits, load
from solvers.relaxation import Relaxed, plan_bound, relax
from solvers.replay import objective

WORK = Workload(requests=8, prompt_tokens=64, new_tokens=192)
CHUNK = 64 << 10
pytestmark = pytest.mark.usefixtures("alone")


def batched(profile: Any, n: int = 3, b: int = 2, requests: int = 6) -> Encoding:
    return Encoding(profile, replace(WORK, requests=requests), n, b, 8 << 20, CHUNK, "batches")


@pytest.fixture(scope="module")
def offloaded(small_profile: Any) -> Plan:
    """With too little memory for all keys and values, and dense parts that stay."""
    least = smallest_budget_bytes(small_profile, WORK, "batches")
    return make_plan(
        small_profile, WORK, memory_bytes=least + (1 << 20), solver="lru", kv="batches"
    )


def test_which_stage_is_whose() -> None:
    whole, parts = Grid(2, 1), Grid(2, 3)
    assert whole.starts == [Start(0, None), Start(1, None), None]
    assert parts.starts == [Start(0, 0), Start(0, 1), None, Start(1, 0), Start(1, 1), None, None]
    assert [parts.layer(stage) for stage in range(parts.stages)] == [0, 0, 0, 1, 1, 1, 2]
    assert [parts.batch(stage) for stage in range(parts.stages)] == [0, 1, -1, 0, 1, -1, -1]
    assert [whole.batch(stage) for stage in range(whole.stages)] == [-1, -1, -1]


def test_stages_and_times_by_hand(small_profile: Any) -> None:
    encoding, whole = batched(small_profile), Encoding(small_profile, WORK, 3, 2, 8 << 20, CHUNK)
    model = small_profile.model
    layers, token = len(model.layers), model.layers[0].kv_bytes_per_token
    # a group of six, and a last one of three: of its three batches the second is half full
    shapes = (
        PassShape("prefill", 0, 6, 64, 1),
        PassShape("decode", 0, 6, 100, 1),
        PassShape("decode", 1, 3, 100, 1),
    )
    stages = encoding.stages(Factors(), shapes)
    assert len(stages) == 4 * layers + 1
    assert token == 512
    room = 2 * aligned(256 * token)
    for stage in stages[:3]:
        assert stage.items == ()
        assert stage.start is not None
        assert (stage.start.size_bytes, stage.start.held_bytes) == (2 * 256 * token, room)
    # passes copy nothing, 99 columns of two tokens (24.75 blocks), and those of two batches
    sizes = [[part.size_bytes for part in stage.short_starts] for stage in stages[:3]]
    assert sizes == [[0, 25 * 4096, 25 * 4096]] * 2 + [[0, 0, 25 * 4096]]
    assert stages[0].short_starts[0] == ProblemUnit(0, room)
    assert stages[0].short_starts[1].copy_ns == encoding.copy_ns(CHUNK, kind="kv") + (
        encoding.copy_ns(25 * 4096 - CHUNK, kind="kv")
    )
    assert stages[3].start is None
    assert len(stages[3].items) == model.layers[0].experts
    counts = np.ones((3, layers, model.layers[0].experts), dtype=np.int32)
    parts = encoding.scenarios(shapes, counts, Factors())
    plain = whole.scenarios(shapes, counts, Factors())
    assert parts.shortened == [1, 3, 2]
    assert parts.start_lead_ns is not None
    # the same computation, in more stages
    assert parts.compute_ns.sum() == plain.compute_ns.sum()
    for index, sequences in ((0, 6), (1, 6), (2, 3)):
        for layer in range(layers):
            first = 4 * layer
            steps = whole.lead(shapes[index], layer, 1.0).steps
            attention = [step[3] for step in steps if step[0] == "attention"]
            attention += [0] * (3 - len(attention))
            assert parts.lead_ns[index, first : first + 3].tolist() == attention
            rest = sum(step[3] for step in steps) - sum(attention)
            assert parts.lead_ns[index, first + 3] == rest
            assert not parts.demand[index, first : first + 3].any()
            # a prefill writes 64 columns of 1,024 bytes, a decode the block with its new column
            size = 64 * 1024 if index == 0 else 4096
            wrote = [encoding.copy_ns(size, kind="kv") * (2 * k < sequences) for k in range(3)]
            assert parts.start_lead_ns[index, first : first + 4].tolist() == [*wrote, 0]


def test_memory_is_slots_and_what_stays(small_profile: Any) -> None:
    encoding, model = batched(small_profile), small_profile.model
    stays = [StageChoice(stage in (1, 4, 5)) for stage in range(4 * len(model.layers) + 1)]
    account = encoding.account(Schedule(tuple(stays), 0, 2, 0))
    room = 2 * aligned(256 * model.layers[0].kv_bytes_per_token)
    # two slots, one batch of the first layer and two of the second
    assert account.by_purpose["kv"] == 5 * room
    assert account.by_purpose["dense_slots"] == 0
    policy = encoding.policy(Schedule(tuple(stays), 0, 2, 0))
    assert [layer.kv_resident for layer in policy.layers] == [(1,), (0, 1), (), ()]
    assert all(layer.dense_resident for layer in policy.layers)
    assert (policy.kv_slots, policy.dense_slots, policy.stages_each) == (2, 0, 4)
    assert schedule_of(policy).stages[:-1] == tuple(stays[:-1])
    assert account_device(model, policy, WORK, 4, 0).by_purpose["kv"] == 5 * room


def test_a_plan_of_batches_is_whole(small_profile: Any, offloaded: Plan) -> None:
    assert check_plan(offloaded, small_profile) == []
    policy, totals = offloaded.policy, offloaded.predicted.totals
    assert policy.kv == "batches"
    assert policy.kv_slots
    spent = totals.duration_by_kind_ns
    assert spent["copy_kv"] > 0
    assert spent["write_kv"] > 0
    assert "copy_dense" not in spent
    assert totals.bubble_inter_layer_ns == spent.get("wait_kv", 0)
    note = next(note for note in offloaded.notes if note.startswith("keys and values"))
    below = sum(policy.n_batches - len(layer.kv_resident) for layer in policy.layers)
    assert f"of {below} of {policy.n_batches} batches x 4 layers lie below" in note
    assert f"each batch's by themselves ({policy.kv_slots} slots)" in note
    events = list(offloaded.predicted.timeline.events())
    # nothing is copied where sequences begin, and all is written, batch by batch
    prefill = [event for event in events if not event.pass_index]
    assert not any(event.kind == "copy_kv" for event in prefill)
    wrote = {(event.layer, event.item) for event in prefill if event.kind == "write_kv"}
    assert len(wrote) == below
    copied = {(event.layer, event.item) for event in events if event.kind == "copy_kv"}
    assert copied == wrote


def test_a_prediction_is_what_the_runtime_does_to_the_nanosecond(
    small_profile: Any, offloaded: Plan
) -> None:
    """The judging passes on the executor's virtual clock, by its own units."""
    candidate = candidate_of(offloaded, small_profile)
    judged, schedule = candidate.judged(), schedule_of(offloaded.policy)
    problem, scenarios = judged.problem, judged.problem.scenarios
    first = scenarios.runs()[0]
    units = model_units(small_profile.model, offloaded.policy)
    head = len(problem.stages) - 1
    sizes = dict(units.sizes)
    starts: dict[int, dict[Unit, int]] = {index: {} for index in first}
    chunk: dict[Unit, ProblemUnit] = {}
    for stage, one in enumerate(problem.stages):
        layer, batch = units.place(stage)
        for item, unit in enumerate(one.items):
            chunk[Unit(layer, "head" if stage == head else "expert", item)] = unit
        if batch is not None and one.start is not None:
            kept = Unit(layer, "kv", batch)
            chunk[kept], sizes[kept] = one.start, one.start.size_bytes
            for index in first:
                unit_now = one.start_in(scenarios.shortened[index])
                assert unit_now is not None
                starts[index][kept] = unit_now.size_bytes

    def chunk_ns(unit: Unit, size_bytes: int) -> int:
        kind = unit.kind if unit.kind != "dense" else "expert"
        return candidate.encoding.copy_ns(size_bytes, judged.factors.copy, kind) * (size_bytes > 0)

    leads = scenarios.lead_ns.copy()
    assert scenarios.start_lead_ns is not None
    for stage, choice in enumerate(schedule.stages):
        leads[:, stage] += scenarios.start_lead_ns[:, stage] * (not choice.start_resident)
    passes = [
        [
            VirtualStage(
                int(scenarios.prologue_ns[index, stage]),
                int(leads[index, stage]),
                tuple(
                    (item, int(rows), int(scenarios.work_ns[index, stage, item]))
                    for item, rows in enumerate(scenarios.demand[index, stage].tolist())
                    if rows
                ),
                int(scenarios.epilogue_ns[index, stage]),
            )
            for stage in range(head + 1)
        ]
        for index in first
    ]
    got = run_virtual(offloaded.policy, replace(units, sizes=sizes), passes, chunk_ns, starts)
    want = predict(replace(judged, problem=problem), schedule).timeline
    copies = [event for event in want.events() if event.kind.startswith("copy_")]
    assert len(copies) > 20
    assert [event for event in got.copies if event.size_bytes][: len(copies)] == [
        event._replace(channel="disk") for event in copies
    ]
    experts = [event for event in want.events() if event.kind in ("expert", "head", "wait_kv")]
    mine = [event for event in got.compute if event.kind in ("expert", "head", "wait_kv")]
    assert [
        (event.kind, event.pass_index, event.layer, event.item, event.start_ns, event.end_ns)
        for event in mine[: len(experts)]
    ] == [
        (event.kind, event.pass_index, event.layer, event.item, event.start_ns, event.end_ns)
        for event in experts
    ]


def test_many_batches_fit_where_a_whole_group_does_not(small_profile: Any) -> None:
    """Of a budget that holds dense parts and one expert beside two batches of one sequence, a group
    of eight has no room with its layers' keys and values together."""
    model = small_profile.model
    one, all_of = (Encoding(small_profile, WORK, 8, 1, 0, CHUNK, kv) for kv in ("batches", "below"))
    room = aligned(256 * model.layers[0].kv_bytes_per_token)
    assert [encoding.kept.room_bytes(0) for encoding in (one, all_of)] == [room, 8 * room]
    budget = one.fixed_bytes + 2 * room + 2 * one.slot_bytes
    made = make_plan(small_profile, WORK, memory_bytes=budget, solver="lru")
    policy = made.policy
    assert policy.kv == "batches"
    assert check_plan(made, small_profile) == []
    others = [
        make_plan(small_profile, WORK, memory_bytes=budget, solver="lru", kv=kv)
        for kv in ("below", "device")
        if smallest_budget_bytes(small_profile, WORK, kv) <= budget
    ]
    assert others
    for other in others:
        assert policy.n_batches * policy.batch_size > (
            other.policy.n_batches * other.policy.batch_size
        )
        assert made.promised < other.promised


def test_bounds_hold_for_whatever_is_planned(small_profile: Any, offloaded: Plan) -> None:
    """Of one n and b: every strategy's schedule lies above the bounds of both classes, whose
    certificates the checker recomputes."""
    candidate = candidate_of(offloaded, small_profile)
    whole = candidate.problem("judge")
    problem = whole.replace(scenarios=whole.scenarios.take_passes(12))
    plan, clairvoyant = plan_bound(problem, 4_000)
    assert plan is not None
    assert clairvoyant is not None
    assert clairvoyant.value_ns <= plan.value_ns
    for bound in (plan, clairvoyant):
        assert list(check_proofs(problem, bound)) == []
    values = {}
    for name in ("all-experts", "on-demand", "frequency", "flexgen", "klotski"):
        found = load(name).solve(candidate.problem("fit"), Limits(seed=1)).schedule
        assert found is not None
        assert list(check_schedule(problem, found)) == []
        assert found.eviction == "none"
        values[name] = objective(problem, found)
        assert values[name] >= plan.value_ns, name
    assert len(set(values.values())) > 2


def test_an_explanation_names_batches(
    small_profile: Any, offloaded: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    # prices by bounds of the first passes: of all of them they take most of the time
    def few(problem: Problem) -> Relaxed | None:
        return relax(problem.replace(scenarios=problem.scenarios.take_passes(12)))

    monkeypatch.setattr("planner.explain.relax", few)
    told = explain(offloaded, small_profile, time_limit_seconds=1)
    assert told.memory_price is not None
    policy = offloaded.policy
    stay = sum(len(layer.kv_resident) for layer in policy.layers)
    experts = sum(len(layer.resident) for layer in policy.layers)
    assert told.residents == stay + experts + policy.resident_head_tiles
    model = small_profile.model
    units = 4 * (policy.n_batches + model.layers[0].experts) + policy.head_tiles
    assert told.units == units
    kinds = {unit.kind for unit in (told.last_kept, told.first_left_out) if unit is not None}
    assert kinds <= {"kv", "expert", "head"}


def edited(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, policy=replace(plan.policy, **changes))


def with_layer(plan: Plan, **changes: Any) -> Plan:
    first, *rest = plan.policy.layers
    return edited(plan, layers=(replace(first, **changes), *rest))


def test_a_plan_that_says_otherwise_is_found_out(small_profile: Any, offloaded: Plan) -> None:
    n = offloaded.policy.n_batches
    for wrong, reason in (
        (edited(offloaded, kv_slots=0), "kv_slots"),
        (edited(offloaded, kv_slots=None), "kv_slots"),
        (edited(offloaded, kv_slots=2 * 4 * n + 1), "kv_slots"),
        (edited(offloaded, kv=None), "kv_slots"),
        (edited(offloaded, kv="below", kv_slots=None), "memory_account"),
        (edited(offloaded, kv_slots=(offloaded.policy.kv_slots or 0) + 1), "memory_account"),
        (with_layer(offloaded, dense_resident=False), "kv_dense"),
        (with_layer(offloaded, kv_resident=(n,)), "kv_resident"),
        (with_layer(offloaded, kv_resident=(0, 0)), "kv_resident"),
        (with_layer(offloaded, prefetch=(7,), predictor="popularity"), "predictor"),
        (replace(offloaded, device="cuda"), "kv"),
    ):
        assert reason in {one.reason for one in check_plan(wrong, small_profile)}, reason
    asked = offloaded.asked
    assert asked is not None
    assert asked.kv == "batches"
    for kv, found in (("auto", set()), ("below", {"asked"}), ("device", {"asked"})):
        one = replace(offloaded, asked=replace(asked, kv=kv))
        assert {fault.reason for fault in check_plan(one, small_profile)} == found


def test_documents_without_it_are_as_they_were(offloaded: Plan) -> None:
    policy = replace(offloaded.policy, kv=None, kv_slots=None)
    policy = replace(policy, layers=tuple(replace(one, kv_resident=()) for one in policy.layers))
    written = to_json(replace(offloaded, policy=policy))["policy"]
    assert not {"kv", "kv_slots"} & written.keys()
    assert "kv_resident" not in written["layers"][0]
    with_it = to_json(with_layer(offloaded, kv_resident=(0,)))["policy"]
    assert (with_it["kv"], with_it["layers"][0]["kv_resident"]) == ("batches", [0])


def test_predictors_stay_out(small_profile: Any, offloaded: Plan) -> None:
    told = with_predictors(offloaded, small_profile)
    assert told.policy == offloaded.policy
    assert told.notes[-1].startswith("predictors: none, as keys and values of batches are copied")
    assert check_plan(told, small_profile) == []


def test_of_a_compressed_store_keys_and_values_are_read_as_they_are(
    small_profile: Any, offloaded: Plan
) -> None:
    """What is read of experts and tiles halves with their shares, and copies of keys and values
    stay."""

    def read(*shares: float) -> int:
        model = replace(small_profile.model, stored=StoredShares(*shares))
        index = replace(small_profile.index, model_hash=document_hash(model))
        profile = replace(small_profile, model=model, index=index)
        return predict(
            candidate_of(offloaded, profile).judged(), schedule_of(offloaded.policy)
        ).totals.bytes_read

    whole, half = read(1.0, 1.0, 1.0), read(1.0, 0.5, 0.5)
    shapes = candidate_of(offloaded, small_profile).shapes("judge")
    policy, token = offloaded.policy, small_profile.model.layers[0].kv_bytes_per_token
    below = sum(policy.n_batches - len(layer.kv_resident) for layer in policy.layers)
    kept = sum(
        shape.weight * below * aligned((shape.context - 1) * policy.batch_size * token)
        for shape in shapes
        if shape.phase == "decode"
    )
    assert 2 * half - whole == pytest.approx(kept, rel=0.02)


def test_what_is_refused(small_profile: Any) -> None:
    with pytest.raises(UnsupportedError, match="--kv batches cannot be had: keys and values stay"):
        check_place("batches", small_profile.model, "cuda")
    check_place("batches", small_profile.model, "cpu")
    layer = LayerPolicy(True, (), (), kv_resident=(0,))
    assert layer.kv_resident == (0,)
