"""Keys and values below the device: tokens, memory, bytes, and what ends a run."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine
from executor.adapters.base import CacheShape
from executor.checks import check_account
from executor.device import Device
from executor.direct import Pacer, preadv
from executor.memory import Region
from executor.schedule import Chunk
from executor.source import open_weights
from executor.spill import Spill
from executor.units import Unit
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import account_device, aligned, smallest_budget, smallest_policy
from solvers.errors import BudgetError, RunError, UnsupportedError

NEW_TOKENS = 6
WORK = Workload(7, 12, NEW_TOKENS)


def prompts_of(vocabulary: int) -> list[list[int]]:
    draw = random.Random(11)
    return [
        [draw.randrange(3, vocabulary) for _ in range(length)] for length in (12, 1, 5, 12, 3, 9, 2)
    ]


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    return cache(lambda family: helpers.greedy(checkpoint_of(family), prompts_of(211), NEW_TOKENS))


def below(model: ModelSpec, resident: int, **changes: Any) -> Policy:
    """The first dense parts stay, with their keys and values; the others lie below."""
    layers = tuple(
        LayerPolicy(spec.index < resident, tuple(range(spec.experts))[:2], ())
        for spec in model.layers
    )
    changes = {"n_batches": 2, "batch_size": 2, "slots": 3, **changes}
    return replace(smallest_policy(model, 4), layers=layers, kv="below", **changes)


@pytest.mark.parametrize(
    ("family", "resident", "changes"),
    [
        ("mixtral", 0, {"dense_slots": 2}),
        ("mixtral", 1, {"chunk_bytes": 4096}),
        ("mixtral", 0, {"batch_size": 4, "dense_slots": 3, "eviction": "lru"}),
        ("deepseek_v2", 0, {"n_batches": 3, "dense_slots": 2}),
        ("gpt_oss", 0, {"chunk_bytes": 8192}),
    ],
)
def test_tokens_are_those_of_transformers(
    family: str,
    resident: int,
    changes: dict[str, Any],
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
) -> None:
    checkpoint = checkpoint_of(family)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = below(model, resident, **changes)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        # twice: what the first run left below is not looked at by the second
        for _ in range(2):
            got = [list(one.token_ids) for one in engine.generate(prompts_of(211))]
            assert got == expected(family)
        trace = engine.trace()
    written = [event for event in trace.timeline.events() if event.kind == "write_kv"]
    assert {event.layer for event in written} == set(range(resident, len(model.layers)))
    assert trace.totals.device_peak_bytes <= trace.totals.device_budget_bytes
    # where sequences begin, all of the group's; else whole blocks for the token of each
    group = min(policy.n_batches * policy.batch_size, WORK.requests)
    whole = group * aligned(18 * model.layers[0].kv_bytes_per_token)
    for event in written:
        begins = event.size_bytes == whole and event.rows > group
        assert begins or event.size_bytes == event.rows * 4096


def test_what_a_failed_run_has_left_below_is_not_met_again(
    checkpoint_of: Callable[..., Path], expected: Callable[[str], list[list[int]]], helpers: Any
) -> None:
    checkpoint = checkpoint_of("deepseek_v2")
    with open_weights(checkpoint) as source:
        policy = below(source.model, 0)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        device = engine._device
        assert device.spill is not None
        nothing = mmap.mmap(-1, device.spill.layer_bytes)
        nothing[:] = b"\xff" * len(nothing)  # no number in any type
        for layer in range(len(policy.layers)):
            device.spill.write(layer, memoryview(nothing))
        device.state.clean = False
        got = [list(one.token_ids) for one in engine.generate(prompts_of(211))]
    assert got == expected("deepseek_v2")


def test_with_a_window_and_sinks(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """The same tokens wherever keys and values lie: the window's columns come around below, too."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        policy = below(source.model, 0)
    work = replace(WORK, attention_window=5, attention_sinks=2)
    got = []
    for one in (policy, replace(policy, kv=None)):
        with Engine.from_plan(helpers.plan(checkpoint, one, work)) as engine:
            got.append([list(out.token_ids) for out in engine.generate(prompts_of(211))])
    assert got[0] == got[1]


def test_the_ledger_has_less_by_what_lies_below(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        model = source.model
    work, layers = Workload(16, 100, 28), len(model.layers)
    policy = replace(below(model, 0), n_batches=4, batch_size=4)
    there, here = (
        account_device(model, one, work, 4, 0).by_purpose
        for one in (policy, replace(policy, kv=None))
    )
    # 16 sequences of 128 tokens; keys and values of 2 heads of 8 in float32 are 128 bytes a token
    token = model.layers[0].kv_bytes_per_token
    assert here["kv"] == aligned(16 * 128 * token * layers)
    assert there["kv"] == 0
    assert there["dense_slots"] - here["dense_slots"] == 16 * aligned(128 * token)
    one = replace(
        policy, layers=(replace(policy.layers[0], dense_resident=True), *policy.layers[1:])
    )
    assert account_device(model, one, work, 4, 0).by_purpose["kv"] == aligned(16 * 128 * token)
    with Engine.from_plan(helpers.plan(checkpoint, policy, work)) as engine:
        engine.generate([[5] * 100] * 3, 4)
        totals = engine.trace().totals
        dense = sum(
            engine._source.size_bytes(unit)
            for unit in engine._device.units.sizes
            if unit.kind == "dense"
        )
        copied = sum(
            event.size_bytes
            for event in engine.trace().timeline.events()
            if event.kind == "copy_dense"
        )
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    # four passes: the first finds nothing below, each other has all of a layer's
    beyond = copied - 4 * dense
    assert (
        3 * layers * 16 * aligned(128 * token) <= beyond < 3.1 * layers * 16 * aligned(128 * token)
    )


LIMITS = [6, 6, 6, 6, 2, 5, 3]


@pytest.mark.parametrize(
    ("family", "changes", "begin"),
    [
        # four prompts end at once in pass 5, the other three begin anew in pass 6
        ("mixtral", {"dense_slots": 2}, {0, 6}),
        ("deepseek_v2", {"batch_size": 1, "n_batches": 4, "dense_slots": 3}, {0, 6}),
        # two at a time: the second pair in 6, the fifth and sixth in 12, the last in a freed place
        ("mixtral", {"batch_size": 1, "chunk_bytes": 4096}, {0, 6, 12}),
        # all at once, or one after the other
        ("gpt_oss", {"batch_size": 7, "n_batches": 1}, {0}),
        ("mixtral", {"batch_size": 1, "n_batches": 1}, {0, 6, 12, 18, 24, 26, 31}),
    ],
)
def test_where_all_begin_nothing_is_read_and_nothing_else_is_met(
    family: str,
    changes: dict[str, Any],
    begin: set[int],
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = checkpoint_of(family)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = below(model, 1, **changes)
    real = Device.copy

    def poisoned(self: Device, chunk: Chunk, *rest: Any) -> None:
        if chunk.unit.kind == "dense" and not chunk.offset_bytes:
            whole = self.units.sizes[chunk.unit]
            region = Region(self._offset(chunk.unit, chunk.slot), whole)
            self.memory.view(region)[:] = b"\xff" * whole  # no number in any type
        real(self, chunk, *rest)

    monkeypatch.setattr(Device, "copy", poisoned)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        for _ in range(2):
            got = [list(one.token_ids) for one in engine.generate(prompts_of(211), LIMITS)]
            want = zip(expected(family), LIMITS, strict=True)
            assert got == [tokens[:limit] for tokens, limit in want]
        events = list(engine.trace().timeline.events())
        dense = {layer: engine._source.size_bytes(Unit(layer, "dense", -1)) for layer in (1, 2)}
    group = min(policy.n_batches * policy.batch_size, WORK.requests)
    whole = {
        layer: aligned(size) + group * aligned(18 * model.layers[layer].kv_bytes_per_token)
        for layer, size in dense.items()
    }
    last = max(event.pass_index for event in events)
    for index in range(last):
        for layer in dense:
            copied = sum(
                event.size_bytes
                for event in events
                if (event.kind, event.pass_index, event.layer) == ("copy_dense", index, layer)
            )
            assert copied == (dense if index in begin else whole)[layer], index


CACHE = CacheShape(2, 8, 2, 4)
TOKEN = (2 * 8 + 2 * 4) * 4


def spilled(model: ModelSpec, folder: Path, work: Workload, read_into: Any = preadv) -> Spill:
    spec = replace(model.layers[0], kv_bytes_per_token=TOKEN)
    model = replace(model, layers=(spec, *model.layers[1:]))
    policy = below(model, 0, chunk_bytes=8192)
    return Spill(folder, model, policy, work, torch.float32, CACHE, Pacer(None), read_into)


@pytest.fixture(scope="module")
def model(checkpoint_of: Callable[..., Path]) -> ModelSpec:
    with open_weights(checkpoint_of("mixtral")) as source:
        return source.model


@pytest.fixture
def slot() -> tuple[torch.Tensor, memoryview]:
    """A slot's bytes of four sequences of 100 tokens, 9,600 bytes in three blocks each."""
    room = mmap.mmap(-1, 4 * 3 * 4096)
    return torch.frombuffer(room, dtype=torch.float32), memoryview(room)


def test_what_is_written_is_read_again(
    model: ModelSpec, tmp_path: Path, slot: tuple[torch.Tensor, memoryview]
) -> None:
    values, memory = slot
    spill = spilled(model, tmp_path, Workload(4, 90, 10))
    assert spill.layer_bytes == 4 * 3 * 4096
    keys, others = spill.views(values)
    assert (keys.shape, others.shape) == ((4, 2, 100, 8), (4, 2, 100, 4))
    keys.copy_(torch.arange(keys.numel()).view(keys.shape))
    others.copy_(-torch.arange(others.numel()).view(others.shape))
    spill.write(1, memory)
    before = keys.clone()
    keys[2, :, 41] = 0.5
    spill.write_token(1, memory, 2, 41)
    keys[3, :, 7] = 9.5  # not written
    spill.read(1, memory, 0, 8192)
    spill.read(1, memory, 8192, spill.layer_bytes - 8192)
    want = before.clone()
    want[2, :, 41] = 0.5
    assert torch.equal(keys, want)
    assert spill.bytes_read == spill.layer_bytes
    spill.read(0, memory, 0, spill.layer_bytes)
    assert not values.any()  # nothing was written there
    assert list(tmp_path.iterdir()) == []
    spill.close()


def test_faults_end_in_one_error(
    model: ModelSpec,
    tmp_path: Path,
    slot: tuple[torch.Tensor, memoryview],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, memory = slot
    spill = spilled(model, tmp_path, Workload(4, 90, 10))
    real, calls = os.pwrite, []

    def short(descriptor: int, data: memoryview, offset: int) -> int:
        calls.append(len(data))
        return real(descriptor, data[:4096], offset)

    memory[:] = bytes(range(256)) * (len(memory) // 256)
    monkeypatch.setattr(os, "pwrite", short)
    spill.write(0, memory)
    assert len(calls) == 12  # a block at a time
    memory[:] = bytes(len(memory))
    spill.read(0, memory, 0, spill.layer_bytes)
    assert memory[:] == bytes(range(256)) * (len(memory) // 256)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"\(keys and values\): writing 4096 bytes failed: No space"):
        spill.write_token(0, memory, 0, 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="cannot be kept there: No space left on device; plan again"):
        spilled(model, tmp_path, Workload(4, 90, 10))
    broken = lambda *_: full()  # noqa: E731
    monkeypatch.undo()
    with pytest.raises(RunError, match="reading 4096 bytes at 0 failed: No space"):
        spilled(model, tmp_path, Workload(4, 90, 10), broken).read(0, memory, 0, 4096)


def test_a_plan_for_a_gpu_is_refused(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        plan = helpers.plan(checkpoint, below(source.model, 0), WORK)
        check_account(plan, source.model)
        with pytest.raises(UnsupportedError, match="stay on the device where that is 'cuda'"):
            check_account(replace(plan, device="cuda"), source.model)


def test_the_smallest_budget_is_that_of_either_place(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    work = Workload(1, 60, 40)
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        plan = helpers.plan(checkpoint, below(source.model, 0, n_batches=1, batch_size=1), work)
        on_device = smallest_budget(source.model, work, 4)
        beneath = smallest_budget(source.model, work, 4, "below")
        assert beneath < on_device
        tight = replace(plan.memory["device"], capacity_bytes=beneath - 1)
        with pytest.raises(BudgetError, match=f"at least {beneath} bytes") as caught:
            check_account(replace(plan, memory={"device": tight}), source.model)
    assert caught.value.smallest_bytes == beneath
