"""One plan for all devices of a placement: each device's problem, its memory, and its checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.candidate import Candidate
from planner.documents import (
    BalanceFigures,
    DevicePolicy,
    ExpertPlacement,
    KeptExperts,
    LayerPlacement,
    Offload,
    Workload,
    parse_document,
    to_json,
)
from planner.entries import BASELINES
from planner.memory import aligned
from planner.offload import make_offload, offload_group
from planner.offload_check import check_offload, check_placement_plan
from planner.offload_problem import DeviceCandidate, OwnExperts
from planner.profiles import Profile
from solvers.errors import BudgetError, DocumentError, OptionError, UnsupportedError
from solvers.outcome import Schedule
from solvers.replay import replay

WORKLOAD = Workload(4, 8, 4)
EXPERT = 4096 * 24
"""Bytes of one expert of ``small_profile``: 3 x 64 x 128 in float32."""


def placed(devices: list[list[tuple[int, ...]]], first: int = 0) -> ExpertPlacement:
    """For each MoE layer and expert the devices that hold it."""
    figures = BalanceFigures(1.0, 1.0, 1.0, 1)
    count = 1 + max(device for layer in devices for held in layer for device in held)
    return ExpertPlacement(
        method="by hand",
        devices=count,
        nodes=1,
        replicas=max(sum(map(len, layer)) - len(layer) for layer in devices),
        experts=len(devices[0]),
        layers=tuple(LayerPlacement(first + at, tuple(layer)) for at, layer in enumerate(devices)),
        routing_hash="0" * 64,
        routing_source="synthetic",
        drawn="by hand",
        fitted=figures,
        held_out=figures,
        bound=0.0,
        gap=1.0,
        stop="rule",
    )


HALVES = placed([[(0,)] * 4 + [(1,)] * 3 + [(0, 1)]] * 4)
"""Device 0 has experts 0 to 3, device 1 experts 4 to 6, both have 7; in 4 layers."""


def test_an_allowed_error_is_refused(small_profile: Profile) -> None:
    with pytest.raises(OptionError, match="an allowed error has no effect on several devices"):
        make_offload(
            replace(small_profile, allowed_ppb=1), HALVES, WORKLOAD, memory_bytes=10 * EXPERT
        )


@pytest.fixture(scope="module")
def made(small_profile: Profile) -> ExpertPlacement:
    """Room for 10 of device 0's 20 experts and of device 1's 16."""
    return make_offload(
        small_profile, HALVES, WORKLOAD, memory_bytes=10 * EXPERT, time_limit_seconds=60
    )


# --- a device's problem ---------------------------------------------------------------------------


def test_rows_and_chances_by_hand() -> None:
    # expert 0 on devices 0 and 1, expert 1 on 1 alone; row g of expert e goes to copy (g + e) mod 2
    both = placed([[(0, 1), (1,)]])
    first, second = (OwnExperts(both, device, 1) for device in (0, 1))
    counts = np.array([[[3, 2]], [[1, 0]]], dtype=np.int32)
    assert first.rows(counts).tolist() == [[[2, 0]], [[1, 0]]]
    assert second.rows(counts).tolist() == [[[1, 2]], [[0, 0]]]
    # of 3 tokens, each with probability 1/2: any comes to copy 0 unless none chooses it, 1/8; to
    # copy 1 unless none or one does, 1/8 + 3/8
    share = np.array([[0.5, 0.25]])
    assert first.asked(share, 3) == pytest.approx(np.array([[7 / 8, 0.0]]))
    assert second.asked(share, 3) == pytest.approx(np.array([[1 / 2, 1 - 0.75**3]]))
    # what is never or always chosen; and fewer tokens than the turn asks for
    assert second.asked(np.array([[1.0, 0.0]]), 2) == pytest.approx(np.array([[1.0, 0.0]]))
    assert second.asked(np.array([[1.0, 1.0]]), 1) == pytest.approx(np.array([[0.0, 1.0]]))


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**31))
def test_all_rows_are_somebodys(devices: int, experts: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    held: list[tuple[int, ...]] = [
        tuple(sorted(draw.choice(devices, draw.integers(1, devices + 1), replace=False).tolist()))
        for _ in range(experts)
    ]
    placement = replace(placed([[*held]]), devices=devices)
    counts = draw.integers(0, 9, size=(3, 1, experts)).astype(np.int32)
    rows = [OwnExperts(placement, device, 1).rows(counts) for device in range(devices)]
    assert (sum(rows) == counts).all()


def test_a_devices_problem_has_its_own_experts_alone(profile_factory: Any) -> None:
    profile = profile_factory(layers=3, dense_layers=1)
    placement = placed([[(0,)] * 6 + [(1,)] * 2, [(1,)] * 8], first=1)
    group = offload_group(profile, placement, WORKLOAD, 10 * EXPERT, 2, 1 << 20, 0)
    candidates = [DeviceCandidate(group, device) for device in (0, 1)]
    problems = [one.problem("fit") for one in candidates]
    # the dense layer, two MoE layers and the head
    assert [len(stage.items) for stage in problems[0].stages] == [0, 6, 0, 0]
    assert [len(stage.items) for stage in problems[1].stages] == [0, 2, 8, 0]
    assert all(stage.start is None for one in problems for stage in one.stages)
    # both devices end a layer together: what one computes less of, it waits
    total = [one.scenarios.compute_ns for one in problems]
    assert (total[0] == total[1]).all()
    # a policy and back
    kept = (KeptExperts((1, 4), (5, 0)), KeptExperts((), ()))
    own = candidates[0].own
    choices = own.choices(kept)
    assert choices[1].resident == (1, 4)
    assert choices[1].prefetch == (5, 0)


def test_one_device_computes_what_a_plan_for_one_says(small_profile: Profile) -> None:
    whole = placed([[(0,)] * 8] * 4)
    group = offload_group(small_profile, whole, WORKLOAD, 1 << 30, 4, 1 << 20, 0)
    own = DeviceCandidate(group, 0)
    plan = Candidate(group.encoding, group.sequences, group.split, 0, own.objective)
    for which in ("fit", "choose", "judge"):
        ours, theirs = own.problem(which).scenarios, plan.problem(which).scenarios
        assert (ours.compute_ns == theirs.compute_ns).all()
        assert (ours.demand[:, :4, :8] == theirs.demand[:, :4, :8]).all()
        assert ours.run_starts == theirs.run_starts
    ours, theirs = own.problem("fit").scenarios, plan.problem("fit").scenarios
    assert ours.mean_demanded is not None
    assert theirs.mean_demanded is not None
    assert ours.mean_demanded[:, :4] == pytest.approx(theirs.mean_demanded[:, :4, :8])


# --- the plan -------------------------------------------------------------------------------------


def test_a_plan_for_two_devices(made: ExpertPlacement, small_profile: Profile) -> None:
    offload = made.offload
    assert offload is not None
    assert replace(made, offload=None) == HALVES
    assert (offload.batch_size, offload.memory_bytes) == (2, 10 * EXPERT)
    for policy, own in zip(offload.devices, (set(range(4)) | {7}, {4, 5, 6, 7}), strict=True):
        stay = sum(len(layer.resident) for layer in policy.layers)
        assert stay + policy.slots <= 10
        assert policy.slots > 0
        assert all({*one.resident, *one.prefetch} <= own for one in policy.layers)
        assert policy.predicted.wall_ns < policy.chosen_over["on-demand"]
        assert 0 < policy.predicted.wait_ns < policy.predicted.wall_ns
    assert check_placement_plan(made, small_profile) == []
    assert parse_document(ExpertPlacement, to_json(made), "here") == made


def test_progress_says_which_device_and_what_the_search_is_not(
    made: ExpertPlacement, small_profile: Profile
) -> None:
    told: list[tuple[str, int]] = []
    again = make_offload(
        small_profile,
        HALVES,
        WORKLOAD,
        memory_bytes=10 * EXPERT,
        time_limit_seconds=60,
        progress=lambda name, objective, _: told.append((name, objective)),
    )
    assert again == made
    assert {name for name, objective in told if objective > 0} <= {
        "cpsat, device 0 (of 2)",
        "cpsat, device 1 (of 2)",
    }
    words = [
        "cpsat",
        *(f"comparing with {name}, {at} of 7" for at, name in enumerate(BASELINES, 1)),
    ]
    words.append("judging on sequences that were kept apart")
    assert [name for name, objective in told if objective == 0] == [
        f"{what}, device {device} (of 2)" for device in (0, 1) for what in words
    ]


def test_a_placement_without_a_plan_is_written_as_before() -> None:
    assert "offload" not in to_json(HALVES)
    assert check_placement_plan(HALVES) == []


def test_where_all_fits_all_stays(small_profile: Profile) -> None:
    placement = replace(placed([[(0,)] * 8] * 4), devices=2)
    made = make_offload(
        small_profile, placement, WORKLOAD, memory_bytes=32 * EXPERT, solver="lru"
    ).offload
    assert made is not None
    first, second = made.devices
    assert [len(layer.resident) for layer in first.layers] == [8] * 4
    assert (first.slots, first.predicted.copied_bytes, first.predicted.wait_ns) == (0, 0, 0)
    # the other has nothing, and waits for the first: it takes as long
    assert [layer.resident for layer in second.layers] == [()] * 4
    assert second.predicted == first.predicted


def test_the_smallest_memory_works(small_profile: Profile) -> None:
    with pytest.raises(BudgetError, match="too few: the smallest memory that works") as short:
        make_offload(small_profile, HALVES, WORKLOAD, memory_bytes=1000, solver="lifo")
    least = short.value.smallest_bytes
    assert least == aligned(EXPERT)
    made = make_offload(small_profile, HALVES, WORKLOAD, memory_bytes=least, solver="lifo")
    assert check_placement_plan(made, small_profile) == []
    with pytest.raises(BudgetError):
        make_offload(small_profile, HALVES, WORKLOAD, memory_bytes=least - 1, solver="lifo")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"batch_size": 3}, OptionError, "batches of 3 sequences have no effect"),
        ({"solver": "best"}, OptionError, "solver 'best' is unknown"),
        ({"time_limit_seconds": 0.0}, OptionError, "give a positive one"),
        ({"workload": Workload(4, 4096, 1)}, OptionError, "exceed the model's context"),
        ({"workload": Workload(4, 8, 4, 16, 4)}, UnsupportedError, "attention window"),
        ({"placement": placed([[(0,)] * 8] * 3)}, DocumentError, "has 3 layers"),
        ({"placement": placed([[(0,)] * 4] * 4)}, DocumentError, "4 experts in each layer"),
    ],
)
def test_what_is_refused(
    change: dict[str, Any], error: type[Exception], words: str, small_profile: Profile
) -> None:
    asked = {"placement": HALVES, "workload": WORKLOAD, "solver": "lru", **change}
    with pytest.raises(error, match=words):
        make_offload(
            small_profile,
            asked.pop("placement"),
            asked.pop("workload"),
            memory_bytes=10 * EXPERT,
            **asked,
        )


# --- the checker ----------------------------------------------------------------------------------


def _device(change: Callable[[DevicePolicy], DevicePolicy]) -> Callable[[Offload], Offload]:
    return lambda old: replace(old, devices=(change(old.devices[0]), *old.devices[1:]))


def _layer(**lists: tuple[int, ...]) -> Callable[[Offload], Offload]:
    kept = KeptExperts(**{"resident": (), "prefetch": (), **lists})
    return _device(lambda one: replace(one, layers=(kept, *one.layers[1:])))


@pytest.mark.parametrize(
    ("change", "reason", "where"),
    [
        (_layer(resident=(4,)), "foreign_expert", "devices.0.layers.0"),
        (_layer(prefetch=(5,)), "foreign_expert", "devices.0.layers.0"),
        (_layer(resident=(3, 1)), "resident_order", "devices.0.layers.0"),
        (_layer(resident=(1,), prefetch=(1,)), "resident_and_prefetch", "devices.0.layers.0"),
        (_layer(prefetch=(1, 1)), "prefetch_duplicate", "devices.0.layers.0"),
        (_device(lambda one: replace(one, slots=11)), "memory_capacity", "devices.0"),
        (_device(lambda one: replace(one, slots=0, reserve=0)), "slots", "devices.0.slots"),
        (_device(lambda one: replace(one, reserve=99)), "reserve", "devices.0.reserve"),
        (
            _device(lambda one: replace(one, reserve=0, eviction="lru")),
            "reserve_missing",
            "devices.0.reserve",
        ),
        (_device(lambda one: replace(one, solver="guess")), "solver", "devices.0"),
        (
            _device(lambda one: replace(one, predicted=replace(one.predicted, wait_ns=1))),
            "prediction",
            "devices.0.predicted",
        ),
        (
            _device(lambda one: replace(one, slowdown=replace(one.slowdown, copy=2.0))),
            "slowdown",
            "devices.0.slowdown",
        ),
        (lambda old: replace(old, memory_bytes=1), "memory_capacity", "devices.0"),
        (lambda old: replace(old, batch_size=3), "group", "batch_size"),
        (lambda old: replace(old, seed=old.seed + 1), "prediction", "devices.0.predicted"),
        (
            lambda old: replace(old, inputs=replace(old.inputs, costs="1" * 64)),
            "stale_costs",
            "inputs.costs",
        ),
        (
            lambda old: replace(old, workload=Workload(4, 4096, 4)),
            "not_recomputed",
            "workload",
        ),
    ],
)
def test_what_the_checker_finds(
    change: Callable[[Offload], Offload],
    reason: str,
    where: str,
    made: ExpertPlacement,
    small_profile: Profile,
) -> None:
    assert made.offload is not None
    broken = replace(made, offload=change(made.offload))
    found = check_placement_plan(broken, small_profile)
    assert (reason, f"offload.{where}") in {(one.reason, one.where) for one in found}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": ""}, "method"),
        ({"gap": 0.5}, "gap"),
        ({"bound": 0.5}, "gap"),
        # of two devices the fullest has half of the load at least, and its mean is not its most
        ({"held_out": BalanceFigures(0.4, 0.6, 0.1, 1)}, "load"),
        ({"held_out": BalanceFigures(0.7, 0.6, 0.1, 1)}, "load"),
    ],
)
def test_what_a_placement_says_of_itself(changes: dict[str, Any], reason: str) -> None:
    assert check_placement_plan(HALVES) == []
    (found,) = check_placement_plan(replace(HALVES, **changes))
    assert found.reason == reason


def test_a_plan_of_another_model(made: ExpertPlacement, profile_factory: Any) -> None:
    (found,) = check_placement_plan(made, profile_factory(layers=3))
    assert found.reason == "model"


def test_a_document_that_contradicts_itself(made: ExpertPlacement) -> None:
    value = to_json(made)
    value["offload"]["devices"].pop()
    with pytest.raises(DocumentError, match="offload has 1 of 2 devices"):
        parse_document(ExpertPlacement, value, "here")
    value = to_json(made)
    value["offload"]["devices"][1]["layers"].pop()
    with pytest.raises(DocumentError, match=r"offload\.devices\.1 has 3 of 4 layers"):
        parse_document(ExpertPlacement, value, "here")
    assert check_offload(made) == []


def test_predictions_are_the_replays(made: ExpertPlacement, small_profile: Profile) -> None:
    """Of all runs of the judging passes, the mean of one; each pass stands for itself."""
    offload = made.offload
    assert offload is not None
    group = offload_group(small_profile, made, WORKLOAD, 10 * EXPERT, 2, 1 << 20, 0)
    candidate, policy = DeviceCandidate(group, 1), offload.devices[1]
    problem = candidate.problem("judge")
    schedule = Schedule(
        candidate.own.choices(policy.layers), policy.slots, 0, policy.reserve, policy.eviction
    )
    result = replay(problem, schedule)
    # the workload is 4 passes, prefill and three of decode
    runs = problem.scenarios.passes / 4
    assert policy.predicted.copied_bytes == int(result.copied_bytes.sum() / runs)
    assert policy.predicted.wall_ns == int(result.pass_end_ns[-1] / runs)
