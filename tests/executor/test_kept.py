"""Keys and values of each batch copied by themselves: tokens, bytes, memory, what is met."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine, pack
from executor.device import Device
from executor.memory import Region
from executor.schedule import Chunk
from executor.source import open_weights
from executor.units import check_policy
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.kv_copies import KvCopies
from planner.memory import account_device, aligned, smallest_policy
from planner.scenarios import pass_shapes
from solvers.errors import DocumentError
from tests.spilled import NEW_TOKENS, WORK, greedy_of, prompts_of


@pytest.fixture(scope="module")
def expected(checkpoint_of: Callable[..., Path], helpers: Any) -> Callable[[str], list[list[int]]]:
    return greedy_of(checkpoint_of, helpers)


def batched(model: ModelSpec, stays: tuple[tuple[int, ...], ...] = (), **changes: Any) -> Policy:
    """All dense parts stay, and of the first layers these batches' keys and values."""
    layers = tuple(
        LayerPolicy(
            True,
            tuple(range(spec.experts))[:2],
            (),
            kv_resident=stays[spec.index] if spec.index < len(stays) else (),
        )
        for spec in model.layers
    )
    changes = {"n_batches": 2, "batch_size": 2, "slots": 3, "kv_slots": 2, **changes}
    return replace(smallest_policy(model, 4), layers=layers, kv="batches", dense_slots=0, **changes)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slot held before keys and values come is no number in any type."""
    real = Device.copy

    def copy(self: Device, chunk: Chunk, *rest: Any) -> None:
        if chunk.unit.kind == "kv" and not chunk.offset_bytes:
            assert self.kept is not None
            memory = self.kept.memory(chunk.unit, chunk.slot)
            memory[:] = b"\xff" * len(memory)
        real(self, chunk, *rest)

    monkeypatch.setattr(Device, "copy", copy)


@pytest.mark.parametrize(
    ("family", "stays", "changes"),
    [
        ("mixtral", (), {}),
        ("mixtral", ((0, 1), (1,)), {"chunk_bytes": 4096}),
        # four batches, of seven requests; the last one has a sequence
        ("mixtral", ((3,),), {"n_batches": 4, "kv_slots": 3, "eviction": "lru"}),
        # one after the other: nothing is copied while the batch before is attended to
        ("mixtral", (), {"n_batches": 7, "batch_size": 1, "kv_slots": 1}),
        ("mixtral", (), {"n_batches": 1, "batch_size": 7, "kv_slots": 2, "hold": 1}),
        ("deepseek_v2", ((1,),), {"n_batches": 3, "kv_slots": 4, "eviction": "plan"}),
        ("gpt_oss", (), {"chunk_bytes": 8192, "hold": 0}),
        ("qwen3_moe", ((), (0,)), {"eviction": "stale"}),
    ],
)
def test_tokens_are_those_of_transformers(
    family: str,
    stays: tuple[tuple[int, ...], ...],
    changes: dict[str, Any],
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    poisoned: None,
) -> None:
    checkpoint = checkpoint_of(family)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = batched(model, stays, **changes)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        # twice: what the first run left below is not looked at by the second
        for _ in range(2):
            got = [list(one.token_ids) for one in engine.generate(prompts_of(211))]
            assert got == expected(family)
        trace = engine.trace()
    every = {
        (layer, batch) for layer in range(len(model.layers)) for batch in range(policy.n_batches)
    }
    kept = {(layer, batch) for layer, some in enumerate(stays) for batch in some}
    for kind in ("copy_kv", "write_kv"):
        events = [event for event in trace.timeline.events() if event.kind == kind]
        assert {(event.layer, event.item) for event in events} == every - kept, kind
    totals = trace.totals
    assert totals.device_peak_bytes <= totals.device_budget_bytes
    waited = totals.duration_by_kind_ns.get("wait_kv", 0)
    assert totals.bubble_inter_layer_ns == waited


LIMITS = [6, 6, 6, 6, 2, 5, 3]


@pytest.mark.parametrize("seed", range(12))
def test_a_random_sample(
    seed: int,
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    poisoned: None,
) -> None:
    """Groups, slots, what stays, evictions, chunks; sequences of other lengths come and go."""
    draw = random.Random(seed)
    family = draw.choice(["mixtral", "deepseek_v2", "gpt_oss", "olmoe", "qwen2_moe"])
    checkpoint = checkpoint_of(family)
    with open_weights(checkpoint) as source:
        model = source.model
    n, b = draw.choice([(1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (7, 1)])
    stays = tuple(tuple(batch for batch in range(n) if draw.random() < 0.3) for _ in model.layers)
    if all(len(some) == n for some in stays):
        stays = ((),)
    slots = draw.randint(2, 5)
    policy = batched(
        model,
        stays,
        n_batches=n,
        batch_size=b,
        kv_slots=draw.randint(1, 4),
        slots=slots,
        reserve=draw.randint(1, slots),
        eviction=draw.choice(["none", "lru", "lifo", "fifo", "frequency", "stale", "plan"]),
        chunk_bytes=draw.choice([4096, 8192, 256 << 10]),
        hold=draw.choice([None, 0, 1, 2]),
    )
    ahead = tuple(
        replace(layer, prefetch=tuple(draw.sample(range(2, spec.experts), draw.randint(0, 2))))
        for layer, spec in zip(policy.layers, model.layers, strict=True)
        if spec.experts
    )
    if len(ahead) == len(policy.layers):
        policy = replace(policy, layers=ahead)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        for _ in range(2):
            got = [list(one.token_ids) for one in engine.generate(prompts_of(211), LIMITS)]
            want = zip(expected(family), LIMITS, strict=True)
            assert got == [tokens[:limit] for tokens, limit in want]


@pytest.mark.parametrize(
    ("requests", "new_tokens", "window"),
    [
        (4, 4, None),
        (4, 4, 11),  # two sinks and a window of eleven
        (7, 2, None),  # groups of four and of three: in the last one a batch is half full
        (5, 2, None),  # and one is empty
    ],
)
def test_runs_copy_and_write_what_plans_say(
    requests: int,
    new_tokens: int,
    window: int | None,
    checkpoint_of: Callable[..., Path],
    helpers: Any,
) -> None:
    """Prompts of one length, pass by pass and batch by batch."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        model = source.model
    sinks = None if window is None else 2
    work = Workload(requests, 12, new_tokens, window, sinks)
    policy = batched(model, chunk_bytes=4096)
    shapes = pass_shapes(
        requests=requests, prompt_tokens=12, new_tokens=new_tokens, group=4, decode_passes=3
    )
    said = KvCopies(model, work, 4, 4, policy.chunk_bytes, below=True, batch=2)
    with Engine.from_plan(helpers.plan(checkpoint, policy, work)) as engine:
        engine.generate([[7, 8, 9] * 4] * requests)
        events = list(engine.trace().timeline.events())
    assert max(event.pass_index for event in events) == len(shapes) - 1
    for index, shape in enumerate(shapes):
        for layer in range(len(model.layers)):
            for batch in range(2):
                sizes = [
                    sum(
                        event.size_bytes
                        for event in events
                        if (event.kind, event.pass_index) == (kind, index)
                        and (event.layer, event.item) == (layer, batch)
                    )
                    for kind in ("copy_kv", "write_kv")
                ]
                assert sizes == [
                    said.batch_bytes(layer, batch, said.copied(shape)),
                    said.written(shape, layer, batch).size_bytes,
                ], (index, layer, batch)


def test_bytes_and_memory_by_hand(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """16 sequences of 128 tokens, four at a time; a token of a layer has 256 bytes."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        model = source.model
    work, layers = Workload(16, 100, 28), len(model.layers)
    token = model.layers[0].kv_bytes_per_token
    assert token == 256
    policy = batched(model, ((0, 2), (3,)), n_batches=4, batch_size=4, kv_slots=2)
    room = 4 * aligned(128 * token)
    # three batches stay, and two slots
    assert account_device(model, policy, work, 4, 0).by_purpose["kv"] == 5 * room
    with Engine.from_plan(helpers.plan(checkpoint, policy, work)) as engine:
        engine.generate([[5] * 100] * 9, 4)
        trace = engine.trace()
    assert trace.totals.device_peak_bytes <= trace.totals.device_budget_bytes
    copied = [event for event in trace.timeline.events() if event.kind == "copy_kv"]
    # of nine sequences two batches are full, one has one and one none: four passes, of which the
    # first finds nothing; columns are of four sequences whether they are there or not
    below = {(0, 1), *((1, batch) for batch in (0, 1, 2))}
    below |= {(layer, batch) for layer in range(2, layers) for batch in (0, 1, 2)}
    each = [aligned(count * 4 * token) for count in (100, 101, 102)]
    for layer, batch in below:
        got = [
            sum(
                event.size_bytes
                for event in copied
                if (event.pass_index, event.layer, event.item) == (index, layer, batch)
            )
            for index in (1, 2, 3)
        ]
        assert got == each
    assert {(event.layer, event.item) for event in copied} == below


def test_in_reduced_precision_with_room_for_what_is_masked(
    checkpoint_of: Callable[..., Path], helpers: Any, poisoned: None
) -> None:
    """In bfloat16 a pass looks at more columns than there are: masked ones, which hold numbers. The
    same tokens as with all on the device."""
    checkpoint = checkpoint_of("deepseek_v2", torch.bfloat16)
    work = Workload(63, 12, NEW_TOKENS)
    with open_weights(checkpoint) as source:
        policy = batched(source.model, ((1,),), batch_size=32)
    plain = replace(
        policy,
        kv=None,
        kv_slots=None,
        layers=tuple(replace(layer, kv_resident=()) for layer in policy.layers),
    )
    got = []
    for one in (policy, plain):
        with Engine.from_plan(helpers.plan(checkpoint, one, work)) as engine:
            got.append([list(out.token_ids) for out in engine.generate(prompts_of(211) * 9)])
    assert got[0] == got[1]


def test_what_a_failed_run_has_left_is_not_met_again(
    checkpoint_of: Callable[..., Path], expected: Callable[[str], list[list[int]]], helpers: Any
) -> None:
    """Neither below nor where batches stay."""
    checkpoint = checkpoint_of("deepseek_v2")
    with open_weights(checkpoint) as source:
        policy = batched(source.model, ((0,), (1,)))
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK)) as engine:
        device = engine._device
        assert device.spill is not None
        assert device.kept is not None
        nothing = memoryview(bytearray(b"\xff" * device.spill.layer_bytes))
        for unit, offset in device.kept._resident.items():
            assert unit.kind == "kv"
            device.memory.view(Region(offset, len(nothing)))[:] = nothing
        device.spill._file.clear = lambda: cleared.append(True)  # type: ignore[method-assign]
        cleared: list[bool] = []
        device.state.clean = False
        got = [list(one.token_ids) for one in engine.generate(prompts_of(211))]
    assert got == expected("deepseek_v2")
    assert cleared == [True]


def test_with_a_compressed_store(
    checkpoint_of: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
    helpers: Any,
    poisoned: None,
    tmp_path: Path,
) -> None:
    """Experts are decoded while keys and values between them are read as they are."""
    checkpoint, store = checkpoint_of("mixtral"), tmp_path / "store"
    pack(checkpoint, store, compress="exact")
    with open_weights(checkpoint, store) as source:
        policy = batched(source.model, ((0,),), chunk_bytes=4096)
    with Engine.from_plan(helpers.plan(checkpoint, policy, WORK, store=store), verify=True) as one:
        got = [list(out.token_ids) for out in one.generate(prompts_of(211))]
    assert got == expected("mixtral")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_slots": 0}, "policy.kv_slots: keys and values of batches are copied, but have no"),
        ({"kv_slots": None}, "policy.kv_slots: keys and values of batches are copied, but have"),
        ({"kv": None}, "policy.kv_slots: slots or residents for batches"),
        ({"n_batches": 1, "batch_size": 4}, "keys and values of batch 1 stay, of only 1"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], said: str, checkpoint_of: Callable[..., Path]
) -> None:
    with open_weights(checkpoint_of("mixtral")) as source:
        model = source.model
    policy = batched(model, ((1,),))
    check_policy(model, policy)
    with pytest.raises(DocumentError, match=said):
        check_policy(model, replace(policy, **changes))
    streamed = (replace(policy.layers[0], dense_resident=False), *policy.layers[1:])
    with pytest.raises(DocumentError, match="the dense part is not resident"):
        check_policy(model, replace(policy, layers=streamed, dense_slots=1))
