"""Faults in the read path: right tokens, or one RunError; nothing hangs."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine, open_weights, pack
from planner.documents import LayerPolicy, Plan, Workload
from planner.memory import smallest_policy
from solvers.errors import CheckpointError, OptionError, RunError

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
    a_store(plan)
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


def test_seeded_faults(checkpoint_of: Callable[..., Path], tmp_path: Path) -> None:
    """40 runs of the benchmark, whose committed result has 200, with delays of a second."""
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "faults.py"
    out = tmp_path / "faults.json"
    options = ["--checkpoint", checkpoint_of("mixtral"), "--runs", 40, "--delay", 0.01]
    done = subprocess.run(
        [sys.executable, *map(str, [script, *options, "--out", out])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["runs"], found["wrong"], found["hangs"], found["unclear"]) == (40, 0, 0, 0)
    outcomes = found["outcomes"]
    assert outcomes["short reads"] == outcomes["delays"] == {"right": 8}
    assert sum(outcomes["read error"].values()) == 8
    assert all("Input/output error" in told for told in outcomes["read error"])
    flipped = outcomes["flipped bit"].keys() - {"right"}
    assert flipped
    assert all("does not match its checksum" in told for told in flipped)


def a_store(plan: Plan) -> None:
    if plan.locations.store is None:
        pytest.skip("a checkpoint has no checksums")


@pytest.mark.parametrize("kind", ["expert", "dense", "head", "embedding", "final_norm"])
def test_one_wrong_bit_anywhere_is_found(
    plan: Plan, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flipped once everything was checked as the engine began: in what a run itself reads."""
    a_store(plan)
    # embedding rows are read as passes need them, and the head is an own matrix here
    monkeypatch.setattr("executor.embedding.EMBEDDING_CACHE_BYTES", 4096)
    with open_weights(Path(plan.locations.checkpoint), Path(str(plan.locations.store))) as source:
        pieces = {name: piece for name, (piece,) in source._pieces.items()}
    spans = [
        (piece.offset_bytes, piece.offset_bytes + piece.size_bytes)
        for name, piece in pieces.items()
        if name.startswith(kind)
    ]
    assert spans
    armed = kind == "final_norm"

    def wrong(descriptor: int, target: memoryview, offset: int) -> int:
        count = os.preadv(descriptor, [target], offset)
        for first, last in spans if armed else ():
            at = max(first, offset)
            if at < min(last, offset + count):
                target[at - offset] ^= 4
        return count

    with (  # noqa: PT012 - of the final norm, loading finds it
        pytest.raises(CheckpointError, match="does not match its checksum") as caught,
        Engine.from_plan(plan, read_into=wrong, verify=True) as engine,
    ):
        armed = True
        engine.generate(PROMPTS)
    assert kind in str(caught.value)


def test_a_checkpoint_has_nothing_to_verify(plan: Plan) -> None:
    if plan.locations.store is not None:
        pytest.skip("a store has checksums")
    with pytest.raises(OptionError, match="pack it"):
        Engine.from_plan(plan, verify=True)


# --- threads that die, reads that hang, memory that is out ----------------------------------------


VICTIMS = [("moeplan-reader", 20), ("moeplan-rows", 2)]
"""Threads, and the reads that they may make."""


@pytest.mark.parametrize(("victim", "after"), VICTIMS)
def test_a_killed_thread(
    plan: Plan, victim: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended by what is no error (as ``SystemExit``, thrown into a thread from outside, is)."""
    monkeypatch.setattr("executor.embedding.EMBEDDING_CACHE_BYTES", 4096)
    calls = 0

    def deadly(descriptor: int, target: memoryview, offset: int) -> int:
        nonlocal calls
        if threading.current_thread().name.startswith(victim):
            calls += 1
            if calls > after:
                raise SystemExit
        return os.preadv(descriptor, [target], offset)

    with pytest.raises(RunError, match="was ended from outside"):
        tokens_of(plan, deadly)


def test_a_reader_that_is_gone_without_a_word(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.transfers.Transfers._run", lambda _: None)
    with pytest.raises(RunError, match="was ended from outside"):
        tokens_of(plan)


@pytest.mark.parametrize(("victim", "after"), VICTIMS)
def test_a_read_that_does_not_come_back(
    plan: Plan, victim: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.embedding.EMBEDDING_CACHE_BYTES", 4096)
    for module in ("transfers", "embedding"):
        monkeypatch.setattr(f"executor.{module}.STALL_SECONDS", 0.2)
    monkeypatch.setattr("executor.transfers._LOOK_SECONDS", 0.05)
    hang, calls = threading.Event(), 0

    def hanging(descriptor: int, target: memoryview, offset: int) -> int:
        nonlocal calls
        if threading.current_thread().name.startswith(victim):
            calls += 1
            if calls > after:
                hang.wait(60)
        return os.preadv(descriptor, [target], offset)

    try:
        with Engine.from_plan(plan, read_into=hanging) as engine:
            with pytest.raises(RunError, match="has not come back for 0 s: does the disk hang"):
                engine.generate(PROMPTS)
            with pytest.raises(RunError, match="has not come back: close this engine"):
                engine.generate(PROMPTS)
    finally:
        hang.set()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nGPU 0 has ..."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
    ids=["python", "cuda", "torch", "system"],
)
def test_out_of_memory(
    plan: Plan, error: Exception, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third pass: the finished output is kept, and the next run is right."""
    passes = 0
    with Engine.from_plan(plan) as engine:
        operations = engine._device.operations
        combine = operations.combine

        def out() -> None:
            nonlocal passes
            passes += 1
            if passes == 8:  # three layers a pass
                raise error
            combine()

        monkeypatch.setattr(operations, "combine", out)
        with pytest.raises(RunError, match="pass 2: out of memory") as caught:
            engine.generate(PROMPTS, [1, 5, 5, 5, 5, 2])
        assert "\n" not in str(caught.value)
        assert [len(output.token_ids) for output in engine.outputs] == [1, 2, 2, 2, 2, 2]
        assert [output.finished for output in engine.outputs] == [True, *[False] * 4, True]
        assert [output.token_ids for output in engine.generate(PROMPTS)] == expected


def test_other_errors_stay_what_they_are(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("shapes differ")

    with Engine.from_plan(plan) as engine:
        monkeypatch.setattr(engine._device.operations, "combine", bug)
        with pytest.raises(RuntimeError, match="shapes differ"):
            engine.generate(PROMPTS)


def test_out_of_memory_while_loading(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("executor.arena.mmap.mmap", full)
    with pytest.raises(RunError, match="loading: out of memory"):
        Engine.from_plan(plan)
