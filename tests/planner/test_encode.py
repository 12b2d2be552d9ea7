"""From documents to the problem and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.documents import Channel, Figure, Hardware, StoredShares, Workload
from planner.encode import Encoding, schedule_of
from planner.factors import Factors
from planner.memory import account_device
from planner.scenarios import PassShape
from solvers.checker import used_bytes
from solvers.errors import UnsupportedError
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem

WORKLOAD = Workload(8, 16, 8)


def encoding(profile: Any, **changes: Any) -> Encoding:
    options = {"n_batches": 2, "batch_size": 4, "memory_bytes": 8 << 20, "chunk_bytes": 65536}
    return Encoding(profile, WORKLOAD, **{**options, **changes})


def schedule(layers: int, tiles: int) -> Schedule:
    first = StageChoice(True, (0, 3), (5, 1))
    other = StageChoice(False, (), (2,))
    head = StageChoice(False, (0,), tuple(range(1, tiles)))
    return Schedule((first, *(other,) * (layers - 1), head), 3, 2, 1, hold=1)


def test_policy_and_schedule_are_inverse(small_profile: Any) -> None:
    one = encoding(small_profile)
    made = schedule(4, one.tiling[1])
    assert schedule_of(one.policy(made)) == made


def test_the_problems_memory_is_the_account(small_profile: Any) -> None:
    # what the checker adds up for a schedule, on top of what is fixed, is the plan's account
    one = encoding(small_profile)
    stages = one.stages(Factors())
    counts = np.ones((1, 4, 8), dtype=np.int32)
    scenarios = one.scenarios((PassShape("decode", 0, 8, 20, 1),), counts, Factors())
    problem = Problem(stages, scenarios, one.capacity_bytes, one.slot_bytes)
    for made in (
        schedule(4, one.tiling[1]),
        schedule(4, one.tiling[1]).replace(slots=7, start_slots=1),
    ):
        account = account_device(small_profile.model, one.policy(made), WORKLOAD, 4, 8 << 20)
        assert account.peak_bytes == one.fixed_bytes + used_bytes(problem, made)


def test_copies_take_latency_and_bandwidth_chunk_by_chunk(small_profile: Any) -> None:
    # 20 us + bytes at 1 GB/s; an expert has 3 x 64 x 128 x 4 = 98,304 bytes: chunks of 65,536 and
    # 32,768 take 85,536 and 52,768 ns
    expert = encoding(small_profile).stages(Factors())[0].items[0]
    assert (expert.size_bytes, expert.chunks) == (98_304, 2)
    assert (expert.chunk_ns, expert.last_ns) == (85_536, 52_768)
    assert expert.copy_ns == 138_304
    slow = encoding(small_profile).stages(Factors(copy=1.5))[0].items[0]
    assert slow.chunk_ns == 128_304


def test_a_paced_link_is_never_faster_than_its_pace(profile_factory: Any) -> None:
    # 200 MB/s: 65,536 bytes take 327,680 ns, more than 85,536; slowing down hides in the pace
    paced = encoding(profile_factory(paced=200_000_000))
    assert paced.stages(Factors())[0].items[0].chunk_ns == 327_680
    assert paced.stages(Factors(copy=1.5))[0].items[0].chunk_ns == 327_680


def test_copies_from_a_compressed_store_take_what_is_read_of_them(profile_factory: Any) -> None:
    # three quarters of an expert's 65,536 + 32,768 bytes: 20 us + 49,152 and 24,576 ns at 1 GB/s
    plain = profile_factory()
    stored = StoredShares(dense=0.5, expert=0.75, head=1.0)
    profile = replace(plain, model=replace(plain.model, stored=stored))
    stages = encoding(profile).stages(Factors())
    expert = stages[0].items[0]
    assert (expert.size_bytes, expert.held_bytes) == (98_304, 98_304)
    assert (expert.chunk_ns, expert.last_ns) == (69_152, 44_576)
    before = encoding(plain).stages(Factors())
    assert stages[-1] == before[-1]
    # a dense part has two chunks or more, each of which keeps its latency
    dense, old = stages[0].start, before[0].start
    assert dense is not None
    assert old is not None
    assert dense.copy_ns - 20_000 * dense.chunks == (old.copy_ns - 20_000 * old.chunks) // 2
    # and no faster than the pace of the disk
    paced = profile_factory(paced=200_000_000)
    paced = replace(paced, model=replace(paced.model, stored=stored))
    assert encoding(paced).stages(Factors())[0].items[0].chunk_ns == 245_760


def test_times_follow_the_curves(small_profile: Any) -> None:
    # synthetic curves are lines: fixed + each x rows. 2 batches of 4 at context 16.
    one = encoding(small_profile)
    counts = np.zeros((1, 4, 8), dtype=np.int32)
    counts[0, :, 2], counts[0, :, 5] = 3, 13
    made = one.scenarios((PassShape("decode", 0, 8, 16, 1),), counts, Factors())
    attention = 40_000 + 4 * 160
    router = 8_000 + 8 * 100
    assert made.lead_ns[0].tolist() == [2 * attention + router] * 4 + [0]
    assert made.work_ns[0, 1, 2] == 30_000 + 3 * 4_000
    assert made.work_ns[0, 1, 5] == 30_000 + 13 * 4_000
    assert made.prologue_ns[0].tolist() == [5_000 + 8 * 200, 0, 0, 0, 0]
    assert made.epilogue_ns[0].tolist() == [4_000 + 8 * 100] * 4 + [6_000 + 8 * 300]
    tiles = one.tiling[1]
    assert made.demand[0, 4, :tiles].tolist() == [8] * tiles
    head = 20_000 + 8 * 3_000
    assert made.work_ns[0, 4, 0] == -(-head // tiles)


def test_prefill_computes_all_prompt_tokens_and_experts_in_tiles(small_profile: Any) -> None:
    one = encoding(small_profile, batch_size=3)
    counts = np.zeros((1, 4, 8), dtype=np.int32)
    counts[0, :, 0] = 1500
    made = one.scenarios((PassShape("prefill", 0, 8, 16, 1),), counts, Factors(prefill=2.0))
    # batches of 3, 3 and 2 sequences; twice as long as alone
    attention = sum(50_000 + size * 960 for size in (3, 3, 2))
    assert made.lead_ns[0, 0] == 2 * attention + 2 * (8_000 + 128 * 100)
    # 1,024 rows and 476 rows
    assert made.work_ns[0, 0, 0] == 2 * (60_000 + 1500 * 4_000)


def test_dense_layers_and_shared_experts(profile_factory: Any) -> None:
    profile = profile_factory(dense_layers=1, shared=True)
    one = encoding(profile)
    shape = PassShape("decode", 0, 8, 16, 1)
    kinds = [[step[0] for step in one.lead(shape, layer, 1.0).steps] for layer in (0, 1)]
    assert kinds == [
        ["attention", "attention", "dense_mlp"],
        ["attention", "attention", "shared_expert", "router"],
    ]
    made = one.scenarios((shape,), np.ones((1, 3, 8), dtype=np.int32), Factors())
    assert made.demand[0, 0].sum() == 0
    assert made.epilogue_ns[0, 0] == 0
    assert (made.demand[0, 1:4, :8] == 1).all()


def test_a_machine_without_a_disk_channel_is_refused(small_profile: Any) -> None:
    link = Channel("h2d", Figure(1e9, "measured"), Figure(0.0, "measured"))
    old = small_profile.hardware
    hardware = Hardware(old.name, "cpu", old.processor, 2, old.tiers, (link,))
    with pytest.raises(UnsupportedError, match="no 'disk' channel"):
        encoding(replace(small_profile, hardware=hardware)).stages(Factors())
