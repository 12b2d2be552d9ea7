"""Faults in the read path: right tokens, or one RunError; nothing hangs."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import Engine, open_weights, pack
from planner.documents import LayerPolicy, Plan, Workload
from planner.memory import smallest_policy
from solvers.errors import CheckpointError, RunError

WORKLOAD = Workload(6, 9, 5)
PROMPTS = [[3 + (7 * i + j) % 200 for j in range(2 + i)] for i in range(6)]
Read = Callable[[int, memoryview, int], int]


@pytest.fixture(scope="module", params=["checkpoint", "store"])
def plan(
    request: pytest.FixtureRequest,
    checkpoint_of: Callable[..., Path],
    helpers: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Plan:
    """Everything streams, in small chunks."""
    checkpoint = checkpoint_of("mixtral")
    store = None
    if request.param == "store":
        store = tmp_path_factory.mktemp("faults") / "store"
        pack(checkpoint, store)
    with open_weights(checkpoint) as source:
        model = source.model
    policy = replace(
        smallest_policy(model, 4),
        n_batches=2,
        batch_size=3,
        layers=tuple(LayerPolicy(False, (0,), (5, 2)) for _ in model.layers),
        slots=4,
        dense_slots=2,
        chunk_bytes=8192,
    )
    made: Plan = helpers.plan(checkpoint, policy, WORKLOAD, store=store)
    return made


def tokens_of(plan: Plan, read: Read | None = None, **options: Any) -> list[tuple[int, ...]]:
    """Generate within a minute, or fail."""
    result: list[Any] = []

    def work() -> None:
        try:
            more = {} if read is None else {"read_into": read}
            with Engine.from_plan(plan, **more, **options) as engine:
                result.append([out.token_ids for out in engine.generate(PROMPTS)])
        except Exception as error:  # noqa: BLE001 - raised again below
            result.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the engine hangs"
    if isinstance(result[0], Exception):
        raise result[0]
    tokens: list[tuple[int, ...]] = result[0]
    return tokens


@pytest.fixture(scope="module")
def expected(plan: Plan) -> list[tuple[int, ...]]:
    return tokens_of(plan)


def test_short_reads(plan: Plan, expected: list[tuple[int, ...]]) -> None:
    draw = random.Random(3)

    def short(descriptor: int, target: memoryview, offset: int) -> int:
        # direct reads are of whole blocks, so a short one ends at a block or inside it
        count = os.preadv(descriptor, [target], offset)
        return min(count, max(4096, count - draw.choice([0, 0, 4096, 8192, 1000])))

    assert tokens_of(plan, short) == expected


def test_interrupted_and_slow_reads(plan: Plan, expected: list[tuple[int, ...]]) -> None:
    draw = random.Random(4)

    def slow(descriptor: int, target: memoryview, offset: int) -> int:
        if draw.random() < 0.05:
            raise InterruptedError
        if draw.random() < 0.02:
            time.sleep(draw.random() * 0.01)
        return os.preadv(descriptor, [target], offset)

    assert tokens_of(plan, slow) == expected


@pytest.mark.parametrize("after", [0, 7, 60, 200])
def test_read_error(plan: Plan, after: int) -> None:
    calls = 0

    def failing(descriptor: int, target: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(descriptor, [target], offset)

    with pytest.raises(RunError, match="Input/output error") as caught:
        tokens_of(plan, failing)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("brings", [0, 100])
def test_file_cut_short(plan: Plan, brings: int) -> None:
    """The end of the file inside a unit: no bytes, or never a whole block."""
    calls = 0

    def cut(descriptor: int, target: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        return os.preadv(descriptor, [target], offset) if calls < 100 else brings

    with pytest.raises(RunError, match="cut short"):
        tokens_of(plan, cut)


def test_what_was_generated_is_kept(plan: Plan, expected: list[tuple[int, ...]]) -> None:
    failing = False

    def read(descriptor: int, target: memoryview, offset: int) -> int:
        if failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(descriptor, [target], offset)

    def progress(done: int, whole: int) -> None:
        nonlocal failing
        failing = done >= 18  # three passes of six sequences

    with Engine.from_plan(plan, read_into=read) as engine:
        with pytest.raises(RunError):
            engine.generate(PROMPTS, progress=progress)
        kept = [out.token_ids for out in engine.outputs]
        totals = engine.trace().totals
        # the engine can be used again
        failing = False
        assert [out.token_ids for out in engine.generate(PROMPTS)] == expected
    assert totals.new_tokens == sum(map(len, kept)) >= 18
    for have, want in zip(kept, expected, strict=True):
        assert have == want[: len(have)]


def test_wrong_byte_is_found_at_load(plan: Plan) -> None:
    if plan.locations.store is None:
        pytest.skip("a checkpoint has no checksums")
    calls = 0

    def wrong(descriptor: int, target: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        count = os.preadv(descriptor, [target], offset)
        if calls == 80:
            target[5] ^= 1
        return count

    with pytest.raises(CheckpointError, match="does not match its checksum"):
        tokens_of(plan, wrong, verify=True)


def test_paced(plan: Plan, expected: list[tuple[int, ...]]) -> None:
    """A run takes as long as its bytes take at the pace, at the least."""
    pace = 40_000_000
    with Engine.from_plan(plan, paced_bytes_per_second=pace) as engine:
        got = [out.token_ids for out in engine.generate(PROMPTS)]
        trace = engine.trace()
    assert got == expected
    assert trace.paced_bytes_per_second == pace
    assert trace.totals.wall_ns >= trace.totals.bytes_read * 1_000_000_000 // pace - 10_000_000
