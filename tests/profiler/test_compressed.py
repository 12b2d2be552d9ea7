"""A compressed store is profiled as it is read, and planned for by what it has of each unit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from executor import Engine, open_weights, pack
from planner.check import check_plan
from planner.documents import Plan, Workload
from planner.encode import Encoding, schedule_of
from planner.entries import Entry
from planner.factors import Factors
from planner.memory import decode_bytes, smallest_budget
from planner.profiles import load_profile
from planner.recompute import candidate_of
from planner.solve import document, make_plan
from profiler import profile_checkpoint
from profiler.effort import Effort
from solvers.outcome import Stop

QUICK = Effort(cell_ns=1, rounds=1, fills=1, turns=1, passes=1, stream_ns=0)
PACE = 200_000_000


def test_profile_plan_and_run(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    folder, store = checkpoint("mixtral"), tmp_path / "store"
    pack(folder, store, compress="both")
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

    # at this pace all of its bytes take longer than what is stored of it
    every = (frozenset(range(8)),) * len(profile.model.layers)
    raw = Encoding(profile, workload, 1, 4, 24 << 20, 1 << 20, raw=every)
    assert raw.stages(Factors())[0].items[0].copy_ns >= 36_864 / PACE * 1e9

    memory_bytes = smallest_budget(profile.model, workload, 4) + 400_000
    # experts stream whatever was measured, so that most of what is read is theirs: a small dense
    # part is read in more blocks of 4 KiB than it fills
    plan = make_plan(profile, workload, memory_bytes=memory_bytes, solver="on-demand", kv="device")
    assert check_plan(plan, profile) == []
    assert plan.memory["device"].by_purpose["workspace"] > decode_bytes(profile.model) > 0

    def of(raw: set[int]) -> Plan:
        """The same policy with these experts as they are, wherever they stream."""
        candidate, schedule = candidate_of(plan, profile), schedule_of(plan.policy)
        every = (frozenset(raw),) * len(profile.model.layers)
        one = dataclasses.replace(
            candidate, encoding=dataclasses.replace(candidate.encoding, raw=every)
        )
        one.set_factors(schedule)
        return document(profile, Entry.of(plan.solver, one, schedule, Stop.RULE), [], 0)

    packed = of(set())
    with Engine.from_plan(packed, paced_bytes_per_second=PACE) as engine:
        engine.generate([[5, 6, 7, 8, 9, 10, 11, 12]] * 4)
        totals = engine.trace().totals
    assert totals.device_peak_bytes <= memory_bytes
    assert packed.predicted.totals.bytes_read > 0
    # bytes of a copy are those that arrive, those read are fewer
    copied = sum(
        event.size_bytes for event in engine.trace().timeline.events() if event.channel == "disk"
    )
    assert 0 < totals.bytes_read < copied

    mixed = of({0, 2, 5})
    assert check_plan(mixed, profile) == []
    assert mixed.predicted.totals.bytes_read > packed.predicted.totals.bytes_read
    with Engine.from_plan(mixed, paced_bytes_per_second=PACE) as engine:
        engine.generate([[5, 6, 7, 8, 9, 10, 11, 12]] * 4)
        trace = engine.trace()
    assert trace.totals.bytes_read > 0
    # what it copied as it is, for whoever corrects the links by it
    assert trace.raw == tuple(layer.raw for layer in mixed.policy.layers)
    assert any(trace.raw)
    layer = mixed.policy.layers[0]
    for change in ((5, 2), tuple(layer.resident)[:1] or (0, 0), (99,)):
        layers = (dataclasses.replace(layer, raw=change), *mixed.policy.layers[1:])
        other = dataclasses.replace(mixed.policy, layers=layers)
        assert check_plan(dataclasses.replace(mixed, policy=other), profile)
