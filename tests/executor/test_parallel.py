"""Experts on several processes: the tokens of one, whatever lies where; and ranks that die."""

from __future__ import annotations

import os
import random
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from executor import caps, open_weights
from executor.caps import PROCESS_BYTES, Cap
from executor.parallel import ParallelEngine, RankGroup, Rebalance
from executor.parallel.buffer import ExpertBuffer
from executor.parallel.rank import RankOptions, rank_account
from executor.parallel.split import LayerSplit, copy_table
from executor.units import Unit
from planner.balance_simulator import check_fits
from planner.documents import (
    BalanceFigures,
    DevicePolicy,
    DevicePrediction,
    ExpertPlacement,
    Inputs,
    KeptExperts,
    LayerPlacement,
    ModelSpec,
    Offload,
    Slowdown,
    Workload,
)
from planner.memory import slot_bytes
from solvers.errors import (
    BudgetError,
    CheckpointError,
    DocumentError,
    OptionError,
    RunError,
    UnsupportedError,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"
NEW_TOKENS = 6
HANG_SECONDS = 8.0


def placed(model: ModelSpec, devices: int, replicas: int = 0, seed: int = 1) -> ExpertPlacement:
    """A placement without any order, and unevenly many experts on each device."""
    draw = random.Random(seed)
    moe = [spec for spec in model.layers if spec.experts]
    layers = []
    for spec in moe:
        held = [{draw.randrange(devices)} for _ in range(spec.experts)]
        for expert in draw.sample(range(spec.experts), replicas):
            others = set(range(devices)) - held[expert]
            held[expert].update(draw.sample(sorted(others), draw.randint(1, len(others))))
        layers.append(LayerPlacement(spec.index, tuple(tuple(sorted(one)) for one in held)))
    figures = BalanceFigures(1.0, 1.0, 1.0, 1)
    return ExpertPlacement(
        method="by hand",
        devices=devices,
        nodes=1,
        replicas=replicas * (devices - 1),
        experts=moe[0].experts,
        layers=tuple(layers),
        routing_hash="0" * 64,
        routing_source="synthetic",
        drawn="by hand",
        fitted=figures,
        held_out=figures,
        bound=0.0,
        gap=1.0,
        stop="rule",
    )


def planned(
    checkpoint: Path, placement: ExpertPlacement, slots: int = 3, eviction: str = "none"
) -> ExpertPlacement:
    """The placement with a plan without any order: some experts stay, some are copied ahead."""
    with open_weights(checkpoint) as source:
        inputs = Inputs(*("0" * 64,) * 4, source.fingerprint, source.store_fingerprint)
        spec = source.model
    policies = []
    for device in range(placement.devices):
        kept = tuple(KeptExperts(one[2:3], one[:2][::-1]) for one in placement.held(device))
        policies.append(
            DevicePolicy(
                layers=kept,
                slots=slots,
                reserve=1,
                eviction=eviction,  # type: ignore[arg-type]
                solver="cpsat",
                slowdown=Slowdown(),
                predicted=DevicePrediction(0, 0, 0),
                chosen_over={},
            )
        )
    most = max(sum(len(one.resident) for one in policy.layers) for policy in policies)
    size = slot_bytes(spec, 1, spec.dtype_bytes)
    offload = Offload(
        inputs=inputs,
        workload=Workload(len(PROMPTS), 9, NEW_TOKENS),
        batch_size=1,
        memory_bytes=(most + slots) * size,
        chunk_bytes=4096,
        devices=tuple(policies),
    )
    return replace(placement, offload=offload)


def model_of(checkpoint: Path) -> ModelSpec:
    with open_weights(checkpoint) as source:
        return source.model


# --- tokens ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 4])
def group(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    """Started once for all checkpoints: loading torch takes most of the time."""
    with RankGroup(request.param, timeout_seconds=HANG_SECONDS) as ranks:
        yield ranks


PROMPTS = [[5, 9, 11, 200, 7], [100], [30, 31, 32], [7] * 9, [150, 151], [55, 66, 77, 88]]


@pytest.fixture(scope="module")
def expected(helpers: Any) -> Callable[[Path], list[tuple[int, ...]]]:
    """What transformers generates."""
    return cache(lambda folder: list(map(tuple, helpers.greedy(folder, PROMPTS, NEW_TOKENS))))


@pytest.mark.parametrize("family", ["example", "mixtral", "qwen3_moe", "deepseek_v3"])
def test_tokens_of_several_processes_are_those_of_one(
    family: str,
    group: RankGroup,
    checkpoint_of: Callable[..., Path],
    expected: Callable[[Path], list[tuple[int, ...]]],
) -> None:
    checkpoint = EXAMPLE if family == "example" else checkpoint_of(family)
    model = model_of(checkpoint)
    size = max(spec.expert_bytes for spec in model.layers) + 4096
    want = expected(checkpoint)
    # with and without replicas, and memory for all experts or for two
    for replicas, slots, batch in ((0, None, None), (3, None, 2), (0, 2, None), (3, 2, 1)):
        placement = placed(model, group.devices, replicas)
        memory = None if slots is None else slots * size
        engine = ParallelEngine(checkpoint, placement, memory_bytes=memory, group=group)
        run = engine.generate(PROMPTS, NEW_TOKENS, batch_size=batch)
        assert list(run.token_ids) == want
        # every choice was computed somewhere, once
        tokens = sum(map(len, PROMPTS)) + sum(len(one) - 1 for one in want)
        choices = sum(spec.top_k for spec in model.layers)
        assert sum(rank.rows_computed for rank in run.ranks) == tokens * choices
        misses = sum(rank.misses for rank in run.ranks)
        assert misses == 0 if memory is None else misses > 0
        assert sum(rank.bytes_read for rank in run.ranks) >= misses * (size - 4096)
    for replicas, eviction in ((3, "none"), (0, "lru")):
        plan = planned(checkpoint, placed(model, group.devices, replicas), eviction=eviction)
        run = ParallelEngine(checkpoint, plan, group=group).generate(PROMPTS, NEW_TOKENS)
        assert list(run.token_ids) == want
        assert sum(rank.rows_computed for rank in run.ranks) == tokens * choices
        for rank in run.ranks:
            assert rank.bytes_read >= rank.prefetched_bytes >= rank.wasted_bytes
        # every use is one or the other, and residents alone make hits
        assert sum(rank.hits for rank in run.ranks) > 0


def test_fewer_prompts_than_devices(
    group: RankGroup, expected: Callable[[Path], list[tuple[int, ...]]]
) -> None:
    placement = placed(model_of(EXAMPLE), group.devices)
    engine = ParallelEngine(EXAMPLE, placement, group=group, eviction="lru", memory_bytes=1 << 20)
    run = engine.generate(PROMPTS[:1], NEW_TOKENS)
    assert list(run.token_ids) == expected(EXAMPLE)[:1]


def test_logits_that_are_no_numbers_end_all_ranks(
    checkpoint_of: Callable[..., Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint_of("mixtral"), copy)
    (file,) = copy.glob("*.safetensors")
    weights = load_file(file)
    weights["lm_head.weight"][1] = float("nan")
    save_file(weights, file, {"format": "pt"})
    with (
        ParallelEngine(copy, placed(model_of(copy), 2)) as engine,
        # the prompts of device 1 are the second and the fourth
        pytest.raises(RunError, match=r"pass 0: the logits of prompt [12] are NaN or infinite"),
    ):
        engine.generate(PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("memory", [None, 2 << 20])
def test_experts_move_between_passes_and_no_token_changes(
    memory: int | None, group: RankGroup, expected: Callable[[Path], list[tuple[int, ...]]]
) -> None:
    placement = placed(model_of(EXAMPLE), group.devices, replicas=2)
    engine = ParallelEngine(EXAMPLE, placement, memory_bytes=memory, group=group)
    # rows cost something and copies nothing: whatever evens the load out is done, also while
    # other prompts of a device have yet to begin
    free, batch = Rebalance(2, row_ns=1.0, copy_ns=0.0), None if memory is None else 1
    run = engine.generate(PROMPTS, NEW_TOKENS, batch_size=batch, rebalance=free)
    assert list(run.token_ids) == expected(EXAMPLE)
    assert run.ranks[0].swaps > 0
    assert len({rank.swaps for rank in run.ranks}) == 1
    # rows cost nothing: nothing moves
    run = engine.generate(PROMPTS, NEW_TOKENS, rebalance=Rebalance(2, row_ns=0.0, copy_ns=1.0))
    assert list(run.token_ids) == expected(EXAMPLE)
    assert run.ranks[0].swaps == 0


def test_what_a_simulator_is_fed(group: RankGroup) -> None:
    placement = placed(model_of(EXAMPLE), group.devices)
    curve, links = ParallelEngine(EXAMPLE, placement, group=group).measure()
    assert curve.source == "measured"
    assert curve.rows[0] == 1
    assert curve(256) > curve(1) > 0
    assert links.latency_ns >= 0


# --- failures -------------------------------------------------------------------------------------


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Waits:
    """Seconds that the watch over the ranks waits from ``begin`` on.

    A wait with a limit counts as that limit at most: what a busy machine adds to it is no wait of
    the watch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: float | None = None
        self._count(monkeypatch, selectors.DefaultSelector, "select")
        self._count(monkeypatch, subprocess.Popen, "wait")

    def begin(self) -> None:
        self.seconds = 0.0

    def _count(self, monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> None:
        really = getattr(cls, name)

        def wait(one: Any, timeout: float | None = None) -> Any:
            started = time.monotonic()
            try:
                return really(one, timeout)
            finally:
                if self.seconds is not None:
                    took = time.monotonic() - started
                    self.seconds += took if timeout is None else min(took, timeout)

        monkeypatch.setattr(cls, name, wait)


def test_a_rank_that_dies_or_hangs_ends_the_others(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of each group: of two a rank is killed, of four one is stopped."""
    waits = Waits(monkeypatch)
    engine = ParallelEngine(EXAMPLE, placed(model_of(EXAMPLE), group.devices), group=group)
    last = group.devices - 1
    kills = group.devices == 2

    def end(*_: int) -> None:
        if waits.seconds is None:
            waits.begin()
            os.kill(group.processes[last], signal.SIGKILL if kills else signal.SIGSTOP)

    told = (
        f"{last} of 2 was ended by SIGKILL" if kills else f"of 4 got no answer from device {last}"
    )
    with pytest.raises(RunError, match=told) as caught:
        engine.generate(PROMPTS, 900, progress=end)
    assert waits.seconds is not None
    assert waits.seconds < (10 if kills else 10 + HANG_SECONDS)
    assert len(str(caught.value).splitlines()) == 1
    assert not any(map(alive, group.processes))


_DIES = """
import os, signal, sys
if "executor.parallel.worker" in sys.orig_argv:
    from executor.parallel.rank import Rank
    preload, seen = Rank._preload, []
    def die(rank, placement):
        seen.append(placement)
        # the first is what a run begins with
        if len(seen) == 2 and rank._rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        preload(rank, placement)
    Rank._preload = die
"""


def test_a_rank_that_dies_while_experts_move_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_DIES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with RankGroup(2) as group:
        engine = ParallelEngine(EXAMPLE, placed(model_of(EXAMPLE), 2, replicas=2), group=group)
        # one that waited for the dead would say that it got no answer
        with pytest.raises(RunError, match="device 1 of 2 was ended by SIGKILL") as caught:
            engine.generate(PROMPTS, 900, rebalance=Rebalance(2, row_ns=1.0, copy_ns=0.0))
        assert len(str(caught.value).splitlines()) == 1
        assert not any(map(alive, group.processes))


def test_the_process_that_starts_ranks_is_named_when_it_is_killed() -> None:
    with RankGroup(2) as group:
        engine = ParallelEngine(EXAMPLE, placed(model_of(EXAMPLE), 2), group=group)
        killed: list[int] = []

        def end(*_: int) -> None:
            if not killed:
                killed.append(group._first.pid)
                os.kill(group._first.pid, signal.SIGKILL)

        told = "the process that starts devices 0 to 1 was ended by SIGKILL, so all were ended"
        with pytest.raises(RunError, match=told) as caught:
            engine.generate(PROMPTS, 900, progress=end)
        assert len(str(caught.value).splitlines()) == 1
        # nobody waits for them any more: they end by themselves, as their orders have
        left = time.monotonic() + 60
        while any(map(alive, group.processes)) and time.monotonic() < left:
            time.sleep(0.05)
        assert not any(map(alive, group.processes))


def test_processes_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RunError, match="3 processes cannot be started: Resource"):
        RankGroup(3)
    assert len(os.listdir("/proc/self/fd")) == before


# --- what is refused ------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(checkpoint_of: Callable[..., Path]) -> None:
    model = model_of(EXAMPLE)
    placement = placed(model, 2)
    with pytest.raises(DocumentError, match=r"placement: has 8 layers .*experts in 3"):
        check_fits(placement, model_of(checkpoint_of("mixtral")))
    with pytest.raises(DocumentError, match=r"has 16 experts in each layer, .* has 8"):
        check_fits(
            placed(model_of(checkpoint_of("olmoe")), 2),
            model_of(checkpoint_of("mixtral")),
        )
    with pytest.raises(BudgetError, match="do not hold one expert") as short:
        ParallelEngine(EXAMPLE, placement, memory_bytes=5000)
    ParallelEngine(EXAMPLE, placement, memory_bytes=short.value.smallest_bytes)
    with pytest.raises(UnsupportedError, match="at most 64"):
        ParallelEngine(EXAMPLE, placed(model, 65))
    engine = ParallelEngine(EXAMPLE, placement)
    with pytest.raises(OptionError, match="at most 2, on 2 devices"):
        engine.generate([[1]], 2, rebalance=Rebalance(2))
    for prompts, tokens, batch, words in (
        ([], 1, None, "no prompt"),
        ([[]], 1, None, "prompt 1 is empty"),
        ([[1], [5000]], 1, None, "prompt 2 has token 5000, which is outside"),
        ([[1]], 1024, None, "context of 1024"),
        ([[1]], 0, None, "1 is the least"),
        ([[1], [1]], 1, 2, "have no effect"),
    ):
        with pytest.raises(OptionError, match=words):
            engine.generate(prompts, tokens, batch_size=batch)


def test_paths_may_be_strings() -> None:
    placement = placed(model_of(EXAMPLE), 2)
    assert ParallelEngine(str(EXAMPLE), placement).model == model_of(EXAMPLE)
    with pytest.raises(CheckpointError, match="no-store"):
        ParallelEngine(str(EXAMPLE), placement, store=str(EXAMPLE / "no-store"))


def test_what_only_all_ranks_together_are_too_large_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(EXAMPLE)
    engine = ParallelEngine(EXAMPLE, placed(model, 2))
    ranks = [RankOptions(slots, "lifo", 3, 3, 9, 4) for slots in engine.slots]
    both = sum(rank_account(model, one).peak_bytes for one in ranks) + PROCESS_BYTES
    loads: list[str] = []
    monkeypatch.setattr(RankGroup, "__init__", lambda *_, **__: loads.append("begun"))
    monkeypatch.setattr(RankGroup, "ask", lambda *_: loads.append("asked"))
    for room, fits in ((both, True), (both - 1, False)):
        cap = Cap(room, Path("memory.max"))
        monkeypatch.setattr(caps, "lowest_cap", lambda _, cap=cap: cap)
        loads.clear()
        with nullcontext() if fits else pytest.raises(BudgetError, match="control group allows"):
            engine._load(engine._options(), batch_size=3, requests=3, prompt_tokens=9, new_tokens=4)
        assert bool(loads) == fits


# --- which rows go where --------------------------------------------------------------------------


def test_a_split_by_hand() -> None:
    # expert 0 on both devices, expert 1 on device 1 alone; rank 0 has rows 0, 1, 2 of expert 0,
    # rank 1 its row 3 and both rows of expert 1. Row g of expert e goes to copy (g + e) mod copies.
    split = LayerSplit(copy_table([(0, 1), (1,)], 2), np.array([[3, 0], [1, 2]]))
    assert split.sent(0).tolist() == [[2, 1], [0, 0]]
    assert split.sent(1).tolist() == [[0, 1], [0, 2]]
    assert split.received(0).tolist() == [[2, 0], [0, 0]]
    assert split.received(1).tolist() == [[1, 0], [1, 2]]
    # choices of rank 0 are rows 0, 1, 2 of expert 0: copies 0, 1, 0
    assert split.order(0, np.array([0, 0, 0])).tolist() == [0, 2, 1]
    # of rank 1: expert 1, 0, 1; all go to device 1, by expert
    assert split.order(1, np.array([1, 0, 1])).tolist() == [1, 0, 2]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**31))
def test_splits_are_even_and_agree(devices: int, experts: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    held = [
        tuple(sorted(draw.choice(devices, draw.integers(1, devices + 1), replace=False).tolist()))
        for _ in range(experts)
    ]
    chosen = [draw.integers(0, experts, draw.integers(0, 20)) for _ in range(devices)]
    counts = np.stack([np.bincount(one, minlength=experts) for one in chosen])
    split = LayerSplit(copy_table(held, devices), counts)
    sent = np.stack([split.sent(rank) for rank in range(devices)])
    received = np.stack([split.received(device) for device in range(devices)])
    # what is sent is what arrives, and all of it
    assert (sent.transpose(2, 0, 1) == received).all()
    assert (sent.sum(axis=2) == counts).all()
    for expert, where in enumerate(held):
        rows = received[:, :, expert].sum(axis=1)
        assert rows.sum() == sum(rows[list(where)])
        assert max(rows[list(where)]) - min(rows[list(where)]) <= 1
    for rank, mine in enumerate(chosen):
        # the order is one of all choices, and says the same as the sizes
        order = split.order(rank, mine)
        assert sorted(order.tolist()) == list(range(len(mine)))
        sizes = sent[rank].T.reshape(-1)
        wanted = np.repeat(np.tile(np.arange(experts), devices), sizes)
        assert mine[order].tolist() == wanted.tolist()


# --- the buffer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eviction", "hits", "kept"),
    [
        # three experts, two slots, walked through three times: 0 1 2 0 1 2 0 1 2
        # lru: what is next is always what has just gone
        ("lru", 0, {1, 2}),
        # lifo: 0 stays; 2 takes the place of 1 and 1 that of 2: 0 hits in rounds 2 and 3
        ("lifo", 2, {0, 2}),
    ],
)
def test_what_leaves_the_buffer(eviction: str, hits: int, kept: set[int]) -> None:
    units = [Unit(0, "expert", item) for item in range(3)]
    holds: dict[int, Unit] = {}
    buffer = ExpertBuffer(2, eviction, lambda unit, slot: holds.update({slot: unit}))  # type: ignore[arg-type]
    for _ in range(3):
        for unit in units:
            assert holds[buffer.use(unit)] == unit
    assert (buffer.hits, buffer.misses) == (hits, 9 - hits)
    assert {unit.item for unit in units if unit in buffer} == kept
    buffer.keep_only({units[2]})
    assert {unit.item for unit in units if unit in buffer} == {2}
    buffer.preload(units)
    assert {unit.item for unit in units if unit in buffer} == {0, 2}


def test_a_failed_read_leaves_its_slot_free() -> None:
    def fail(unit: Unit, slot: int) -> None:
        raise RunError("the disk is gone")

    buffer = ExpertBuffer(1, "lru", fail)
    for _ in range(2):
        with pytest.raises(RunError):
            buffer.use(Unit(0, "expert", 0))
    assert Unit(0, "expert", 0) not in buffer
