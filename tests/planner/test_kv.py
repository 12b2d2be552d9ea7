"""Keys and values below the device: sizes, prices, what is chosen, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.check import check_plan
from planner.documents import Plan, StoredShares, Workload, to_json
from planner.encode import Encoding, Factors
from planner.groups import smallest_budget_bytes
from planner.kv import check_place, kv_stays
from planner.memory import aligned
from planner.scenarios import PassShape
from planner.solve import make_plan
from solvers.errors import BudgetError, MoeplanError, OptionError, UnsupportedError

WORK = Workload(requests=8, prompt_tokens=64, new_tokens=192)


def planned(profile: Any, memory_bytes: int, **options: Any) -> Plan:
    return make_plan(profile, WORK, memory_bytes=memory_bytes, solver="lru", **options)


@pytest.fixture(scope="module")
def offloaded(small_profile: Any) -> Plan:
    """Of a budget that is a byte short for keys and values on the device."""
    return planned(small_profile, smallest_budget_bytes(small_profile, WORK, "device") - 1)


def test_sizes_and_prices(small_profile: Any) -> None:
    model, chunk = small_profile.model, 64 << 10
    below, here = (
        Encoding(small_profile, WORK, 2, 2, 8 << 20, chunk, kv) for kv in ("below", None)
    )
    # 4 sequences of 256 tokens
    token = model.layers[0].kv_bytes_per_token
    kv = 4 * aligned(256 * token)
    assert here.fixed.by_purpose["kv"] - below.fixed.by_purpose["kv"] == aligned(
        4 * 256 * token * len(model.layers)
    )
    (first, *_), (plain, *_) = below.stages(Factors()), here.stages(Factors())
    assert first.start is not None
    assert plain.start is not None
    assert first.start.size_bytes == aligned(plain.start.size_bytes) + kv
    assert first.start.held_bytes == plain.start.held_bytes + kv
    # read in chunks, written in chunks; then a block for each sequence's token
    assert kv % chunk == 0
    assert token <= 4096
    prefill, decode = PassShape("prefill", 0, 4, 64, 1), PassShape("decode", 0, 3, 100, 1)
    assert below.write_kv_ns(prefill, 0, 1.0) == kv // chunk * below.copy_ns(chunk)
    blocks = 4096 if token % 4096 == 0 else 8192
    assert below.write_kv_ns(decode, 0, 1.0) == 3 * below.copy_ns(blocks)
    assert here.write_kv_ns(decode, 0, 1.0) == 0


def test_where_the_device_is_too_small_they_lie_below(small_profile: Any, offloaded: Plan) -> None:
    assert check_plan(offloaded, small_profile) == []
    assert offloaded.policy.kv == "below"
    memory = offloaded.memory["device"]
    assert memory.peak_bytes <= memory.capacity_bytes
    assert memory.by_purpose["kv"] == 0
    note = next(note for note in offloaded.notes if note.startswith("keys and values"))
    assert "of 4 of 4 layers lie below the device" in note
    assert "with all of them on the device nothing works below" in note
    spent = offloaded.predicted.totals.duration_by_kind_ns
    assert spent["write_kv"] > 0
    rows = [row for row in offloaded.predicted.timeline.events() if row.kind == "write_kv"]
    assert {row.layer for row in rows} == {0, 1, 2, 3}
    with pytest.raises(BudgetError, match="the smallest that works is"):
        planned(small_profile, memory.capacity_bytes, kv="device")


def test_the_smallest_budget_is_exact_wherever_they_lie(small_profile: Any) -> None:
    least = {kv: smallest_budget_bytes(small_profile, WORK, kv) for kv in ("device", "below")}
    assert least["below"] < least["device"]
    assert smallest_budget_bytes(small_profile, WORK) == least["below"]
    made = planned(small_profile, least["below"])
    assert made.memory["device"].peak_bytes == least["below"]
    with pytest.raises(BudgetError) as caught:
        planned(small_profile, least["below"] - 1)
    assert caught.value.smallest_bytes == least["below"]


def test_a_place_that_is_asked_for(small_profile: Any) -> None:
    roomy = smallest_budget_bytes(small_profile, WORK, "device") + (1 << 20)
    for kv, want in (("device", None), ("below", "below")):
        made = planned(small_profile, roomy, kv=kv)
        assert made.policy.kv == want
        assert check_plan(made, small_profile) == []
    # with room for everything, every dense part and so every layer's keys and values stay
    made = planned(small_profile, 1 << 30, kv="below")
    assert made.predicted.totals.bytes_read == 0
    assert any("all stay on the device" in note for note in made.notes)


def test_plans_from_before_keep_their_hash(small_profile: Any, offloaded: Plan) -> None:
    assert to_json(offloaded)["policy"]["kv"] == "below"
    assert (
        "kv" not in to_json(replace(offloaded, policy=replace(offloaded.policy, kv=None)))["policy"]
    )


def test_a_plan_that_says_otherwise_is_found_out(small_profile: Any, offloaded: Plan) -> None:
    edited = replace(offloaded, policy=replace(offloaded.policy, kv=None))
    assert "memory_account" in {one.reason for one in check_plan(edited, small_profile)}
    assert "memory_account" in {one.reason for one in check_plan(edited)}
    moved = replace(offloaded, device="cuda")
    assert "kv" in {one.reason for one in check_plan(moved, small_profile)}


@pytest.mark.parametrize(
    ("kv", "changes", "device", "error", "said"),
    [
        ("host", {}, "cpu", OptionError, "--kv 'host' is unknown; choose from auto, device, below"),
        ("below", {}, "cuda", UnsupportedError, "stay on the device where that is 'cuda'"),
        (
            "below",
            {"stored": StoredShares(0.9, 0.7, 0.9)},
            "cpu",
            UnsupportedError,
            "with a compressed store",
        ),
    ],
)
def test_what_is_refused(
    kv: str,
    changes: dict[str, Any],
    device: str,
    error: type[MoeplanError],
    said: str,
    small_profile: Any,
) -> None:
    model = replace(small_profile.model, **changes)
    with pytest.raises(error, match=said):
        check_place(kv, model, device)
    check_place("auto", model, device)
    assert kv == "host" or kv_stays(model, device) is not None
