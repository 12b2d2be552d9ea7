"""A compressed store is profiled as it is read, and planned for by what it has of each unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from executor import Engine, open_weights, pack
from planner.check import check_plan
from planner.documents import Workload
from planner.encode import Encoding, Factors
from planner.memory import decode_bytes, smallest_budget
from planner.profiles import load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint
from profiler.measure import Effort

QUICK = Effort(cell_ns=1, rounds=1, fills=1, turns=1, passes=1)
PACE = 200_000_000


def test_profile_plan_and_run(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    folder, store = checkpoint("mixtral"), tmp_path / "store"
    pack(folder, store, compress="exact")
    index = profile_checkpoint(
        folder,
        tmp_path / "p",
        memory_bytes=24 << 20,
        prompts=prompts,
        effort=QUICK,
        store=store,
        paced_bytes_per_second=PACE,
    )
    profile = load_profile(tmp_path / "p")
    with open_weights(folder, store) as source:
        assert profile.model == source.model
        assert index.store_fingerprint == source.store_fingerprint
    shares = profile.model.stored
    assert shares is not None
    assert 0.8 < shares.expert < 0.9  # float32: 8 bits of 32 become 2.55
    # an expert of 36,864 bytes takes at least as long as reading what the store has of it
    workload = Workload(4, 8, 4)
    encoding = Encoding(profile, workload, 1, 4, 24 << 20, 1 << 20)
    expert = encoding.stages(Factors())[0].items[0]
    assert expert.size_bytes == 36_864
    assert expert.copy_ns >= 36_864 * shares.expert / PACE * 1e9

    memory_bytes = smallest_budget(profile.model, workload, 4) + 400_000
    plan = make_plan(profile, workload, memory_bytes=memory_bytes, time_limit_seconds=1)
    assert check_plan(plan, profile) == []
    assert plan.memory["device"].by_purpose["workspace"] > decode_bytes(profile.model) > 0
    with Engine.from_plan(plan, paced_bytes_per_second=PACE) as engine:
        engine.generate([[5, 6, 7, 8, 9, 10, 11, 12]] * 4)
        totals = engine.trace().totals
    assert totals.device_peak_bytes <= memory_bytes
    assert plan.predicted.totals.bytes_read > 0
    # bytes of a copy are those that arrive, those read are fewer
    copied = sum(
        event.size_bytes for event in engine.trace().timeline.events() if event.channel == "disk"
    )
    assert 0 < totals.bytes_read < copied
