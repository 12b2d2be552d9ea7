"""Keys and values below the device: tokens, memory, bytes, and what ends a run."""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from executor import Engine, pack
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
from planner.kv_copies import KvCopies
from planner.memory import account_device, aligned, smallest_budget, smallest_policy
from planner.scenarios import pass_shapes
from solvers.errors import BudgetError, RunError, UnsupportedError
from tests.spilled import NEW_TOKENS, WORK, greedy_of, prompts_of


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    return greedy_of(checkpoint_of, helpers)


def below(model: ModelSpec, resident: int, **changes: Any) -> Policy:
    """The first dense parts stay, with their keys and values; the others lie below."""
    layers = tuple(
        LayerPolicy(spec.index < resident, tuple(range(spec.experts))[:2], ())
        for spec in model.layers
    )
    changes = {"n_batches": 2, "batch_size": 2, "slots": 3, **changes}
    return replace(smallest_policy(model, 4), layers=layers, kv="below", **changes)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slot held before a dense part comes is no number in any type."""
    real = Device.copy

    def copy(self: Device, chunk: Chunk, *rest: Any) -> None:
        if chunk.unit.kind == "dense" and not chunk.offset_bytes:
            whole = self.units.sizes[chunk.unit]
            memory = self.memory.view(Region(self._offset(chunk.unit, chunk.slot), whole))
            memory[:] = b"\xff" * len(memory)
        real(self, chunk, *rest)

    monkeypatch.setattr(Device, "copy", copy)


def passes_of(lengths: list[int], limits: list[int], places: int) -> list[list[tuple[int, int]]]:
    """By hand: of each place in each pass, its tokens before and in it. Who has ended makes room
    for who waits, in the next pass; where all have, as many as there are places begin anew."""
    waiting = deque(zip(lengths, limits, strict=True))

    def begin() -> tuple[int, int, int]:
        return 0, *waiting.popleft()

    rows = [begin() for _ in range(min(places, len(waiting)))]
    passes = []
    while rows:
        passes.append([(past, count) for past, count, _ in rows])
        rows = [(past + count, int(count > 0 and left > 1), left - 1) for past, count, left in rows]
        if not any(count for _, count, _ in rows):
            rows = [begin() for _ in range(min(places, len(waiting)))]
        rows = [begin() if not row[1] and waiting else row for row in rows]
    return passes


def blocks_read(one: list[tuple[int, int]], column_bytes: int) -> int:
    """Bytes of keys and values that a pass needs of a layer: as many columns as the longest
    sequence has that goes on."""
    return aligned(column_bytes * max((past for past, count in one if past and count), default=0))


def blocks_written(
    one: list[tuple[int, int]], token_bytes: int, places: int, apart_bytes: int
) -> int:
    """Bytes that it writes back: the columns of sequences that begin, the blocks with new tokens of
    the others, and those between that are no wider than ``apart_bytes``."""
    column_bytes = token_bytes * places
    begun = column_bytes * max((count for past, count in one if not past), default=0)
    blocks = {*range(-(-begun // 4096))}
    for place, (past, count) in enumerate(one):
        if past and count:
            start = past * column_bytes + place * token_bytes
            blocks |= {*range(start // 4096, -(-(start + token_bytes) // 4096))}
    gaps = [b - a - 1 for a, b in pairwise(sorted(blocks))]
    return 4096 * (len(blocks) + sum(gap for gap in gaps if gap * 4096 <= apart_bytes))


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
    group = min(policy.n_batches * policy.batch_size, WORK.requests)
    passes = passes_of(list(map(len, prompts_of(211))), [NEW_TOKENS] * 7, group)
    token = model.layers[0].kv_bytes_per_token
    want = [
        (
            index,
            sum(count for _, count in one),
            blocks_written(one, token, group, 64 << 10),
        )
        for index, one in enumerate(passes)
        for _ in range(resident, len(model.layers))
    ]
    got_writes = [(event.pass_index, event.rows, event.size_bytes) for event in written]
    # of the first passes the trace keeps all
    assert got_writes == want[: len(got_writes)]
    assert written[-1].pass_index > 2


@pytest.mark.parametrize("how", ["exact", "both"])
@pytest.mark.parametrize("chunk_bytes", [4096, 12_288, 256 << 10])
def test_with_a_compressed_store(
    how: Literal["exact", "both"],
    chunk_bytes: int,
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    poisoned: None,
    tmp_path: Path,
) -> None:
    """Dense parts are decoded, keys and values behind them are not; a chunk may have both."""
    checkpoint, store = checkpoint_of("mixtral"), tmp_path / "store"
    pack(checkpoint, store, compress=how)
    with open_weights(checkpoint, store) as source:
        model = source.model
    policy = below(model, 1, chunk_bytes=chunk_bytes, dense_slots=2)
    if how == "both":
        raw = tuple(replace(layer, raw=(3, 5)) for layer in policy.layers)
        policy = replace(policy, layers=raw)
    plan = helpers.plan(checkpoint, policy, WORK, store=store)
    with Engine.from_plan(plan, verify=True) as engine:
        for _ in range(2):
            got = [list(one.token_ids) for one in engine.generate(prompts_of(211))]
            assert got == expected("mixtral")
        totals = engine.trace().totals
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    assert totals.duration_by_kind_ns["write_kv"] > 0


@pytest.mark.parametrize(
    ("counts", "past", "came", "cleared"),
    [
        # prompts of one length: attention makes all, but for the rest of the last block
        ([11] * 4, [0] * 4, 0, {*range(11_264, 12_288)}),
        ([12] * 4, [0] * 4, 0, set()),
        # from the first column that not all of them make
        ([12, 1, 5, 12], [0] * 4, 0, {*range(1024, 12_288)}),
        # and places without a sequence
        (
            [11, 11],
            [0, 0],
            0,
            {*range(11_264, 12_288)}
            | {column * 1024 + at for column in range(11) for at in range(512, 1024)},
        ),
        # one more token: its column lies in the last block that came, or in a new one
        ([1] * 4, [10] * 4, 12_288, set()),
        ([1] * 4, [12] * 4, 12_288, {*range(12_288, 16_384)}),
        # one begins while others go on
        ([1, 9, 1, 1], [10, 0, 10, 10], 12_288, set()),
        ([1, 9, 1, 1], [2, 0, 2, 2], 4096, {*range(4096, 12_288)}),
    ],
)
def test_only_what_a_pass_does_not_make_is_cleared(
    counts: list[int],
    past: list[int],
    came: int,
    cleared: set[int],
    checkpoint_of: Callable[..., Path],
    helpers: Any,
) -> None:
    """Of four places of 256 bytes in a column."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        policy = below(source.model, 0)
        assert source.model.layers[1].kv_bytes_per_token == 256
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        device, unit = engine._device, Unit(1, "dense", -1)
        assert device.kept is not None
        memory = device.kept.memory(unit, 0)
        memory[:] = b"\xff" * len(memory)
        device.kept.came[0] = came
        device.operations.begin(counts, past)
        device.bind_dense(unit, 0)
        assert {at for at, one in enumerate(memory) if not one} == cleared


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
            device.spill.write(layer, memoryview(nothing), device.spill.columns)
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


def test_in_reduced_precision_with_room_for_what_is_masked(
    checkpoint_of: Callable[..., Path], helpers: Any, poisoned: None
) -> None:
    """In bfloat16 a pass looks at more columns than there are, in few lengths: masked ones, which
    hold numbers although the slot held none before. The same tokens as with all on the device."""
    checkpoint = checkpoint_of("deepseek_v2", torch.bfloat16)
    # so many that a column is most of a block
    work = Workload(63, 12, NEW_TOKENS)
    with open_weights(checkpoint) as source:
        policy = below(source.model, 0, batch_size=32)
        assert 63 * source.model.layers[0].kv_bytes_per_token > 3000
    got = []
    for one in (policy, replace(policy, kv=None)):
        with Engine.from_plan(helpers.plan(checkpoint, one, work)) as engine:
            got.append([list(out.token_ids) for out in engine.generate(prompts_of(211) * 9)])
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
    # four passes: the first finds nothing below, the others 100, 101 and 102 tokens in room for 16
    # sequences; three times a layer's dense part is copied in whole blocks
    beyond = layers * sum(aligned(16 * count * token) for count in (100, 101, 102))
    assert 4 * dense + beyond <= copied < 4 * dense + beyond + 3 * layers * 4096


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
    poisoned: None,
) -> None:
    checkpoint = checkpoint_of(family)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = below(model, 1, **changes)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        for _ in range(2):
            got = [list(one.token_ids) for one in engine.generate(prompts_of(211), LIMITS)]
            want = zip(expected(family), LIMITS, strict=True)
            assert got == [tokens[:limit] for tokens, limit in want]
        events = list(engine.trace().timeline.events())
        dense = {layer: engine._source.size_bytes(Unit(layer, "dense", -1)) for layer in (1, 2)}
    group = min(policy.n_batches * policy.batch_size, WORK.requests)
    passes = passes_of(list(map(len, prompts_of(211))), LIMITS, group)
    token = model.layers[0].kv_bytes_per_token
    kept = [blocks_read(one, group * token) for one in passes]
    assert {index for index, size in enumerate(kept) if not size} == begin
    last = max(event.pass_index for event in events)
    for index, size in enumerate(kept[:last]):
        for layer, alone in dense.items():
            copied = sum(
                event.size_bytes
                for event in events
                if (event.kind, event.pass_index, event.layer) == ("copy_dense", index, layer)
            )
            assert copied == (aligned(alone) + size if size else alone), index


@pytest.mark.parametrize(
    ("requests", "new_tokens", "window", "columns"),
    [
        (4, 4, None, [0, 12, 13, 14]),
        (4, 4, 11, [0, 12, 13, 13]),  # two sinks and a window of eleven
        (7, 2, None, [0, 12, 0, 12]),  # two groups, of four and of three
    ],
)
def test_runs_read_and_write_what_plans_say(
    requests: int,
    new_tokens: int,
    window: int | None,
    columns: list[int],
    checkpoint_of: Callable[..., Path],
    helpers: Any,
) -> None:
    """Prompts of one length, pass by pass; a trace keeps the events of four passes."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        model = source.model
    sinks = None if window is None else 2
    work = Workload(requests, 12, new_tokens, window, sinks)
    policy = below(model, 0, chunk_bytes=4096)
    shapes = pass_shapes(
        requests=requests, prompt_tokens=12, new_tokens=new_tokens, group=4, decode_passes=3
    )
    said = KvCopies(model, work, 4, 4, policy.chunk_bytes, below=True)
    with Engine.from_plan(helpers.plan(checkpoint, policy, work)) as engine:
        engine.generate([[7, 8, 9] * 4] * requests)
        events = list(engine.trace().timeline.events())
    assert [said.columns(shape) for shape in shapes] == columns
    assert max(event.pass_index for event in events) == len(shapes) - 1
    for index, shape in enumerate(shapes):
        for layer in range(len(model.layers)):
            sizes = {
                kind: sum(
                    event.size_bytes
                    for event in events
                    if (event.kind, event.pass_index, event.layer) == (kind, index, layer)
                )
                for kind in ("copy_dense", "write_kv")
            }
            assert sizes == {
                "copy_dense": said.start_bytes(layer, said.columns(shape)),
                "write_kv": said.written(shape, layer).size_bytes,
            }


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
    """A slot's bytes of four sequences of 100 tokens of 96 bytes: room for three blocks each."""
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
    assert spill.write(1, memory, 100) == 10 * 4096
    before = keys.clone()
    keys[2, :, 41] = 0.5
    # a column is 384 bytes: token 2 of column 41 lies in block 3, columns 10 and 21 in two each
    assert spill.write(1, memory, 0, [(41, 2)]) == 4096
    keys[3, :, 7] = 9.5  # not written
    spill.read(1, memory, 0, 8192)
    spill.read(1, memory, 8192, spill.layer_bytes - 8192)
    want = before.clone()
    want[2, :, 41] = 0.5
    assert torch.equal(keys, want)
    assert spill.bytes_read == spill.layer_bytes
    assert spill.write(1, memory, 0, [(10, at) for at in range(4)]) == 8192
    assert spill.write(1, memory, 0, [(10, 3)]) == 4096
    assert spill.write(1, memory, 0, [(10, 0), (10, 1)]) == 4096
    assert [spill.columns_bytes(count) for count in (0, 1, 10, 11, 100)] == [
        4096 * blocks for blocks in (0, 1, 1, 2, 10)
    ]
    values.fill_(2.0)
    assert spill.write(0, memory, 5) == 4096
    spill.read(0, memory, 0, spill.layer_bytes)
    assert values[:1024].eq(2.0).all()
    assert not values[1024:].any()  # nothing was written there
    spill.clear()
    for layer in (0, 1):
        spill.read(layer, memory, 0, spill.layer_bytes)
        assert not values.any()
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
    spill.write(0, memory, 100)
    assert len(calls) == 10  # a block at a time
    memory[:] = bytes(len(memory))
    spill.read(0, memory, 0, spill.layer_bytes)
    assert memory[:40_960] == bytes(range(256)) * 160
    assert not any(memory[40_960:])

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"\(keys and values\): writing 4096 bytes failed: No space"):
        spill.write(0, memory, 0, [(0, 0)])
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"values\): clearing it failed: No space left"):
        spill.clear()
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
