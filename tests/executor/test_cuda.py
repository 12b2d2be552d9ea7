"""The CUDA device: runs where torch finds a GPU; the refusal is tested everywhere."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine, Sampling, open_weights, pack
from executor.backends import make_backend
from executor.cuda import LIBRARY_BYTES
from executor.ledger import Ledger
from planner.documents import Event, Plan, Policy, Timeline, Workload
from planner.memory import smallest_policy
from solvers.errors import BudgetError, OptionError, RunError, UnsupportedError

EXAMPLE = Path(__file__).parents[2] / "examples" / "pycode-moe"
WORKLOAD = Workload(16, 24, 16)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")


def prompts_of(vocabulary: int) -> list[list[int]]:
    """16 prompts of unequal length."""
    draw = random.Random(11)
    lengths = [1, *(draw.randint(2, 24) for _ in range(14)), 24]
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def streaming(checkpoint: Path, **changes: Any) -> Policy:
    """Few slots, caching, several chunks a unit: slots are used over and over."""
    with open_weights(checkpoint) as source:
        model = source.model
    least = smallest_policy(model, model.dtype_bytes)
    base = replace(
        least, n_batches=2, batch_size=4, slots=4, reserve=2, dense_slots=2, chunk_bytes=8192
    )
    ahead = tuple(
        replace(layer, prefetch=tuple(range(min(3, spec.experts))))
        for layer, spec in zip(base.layers, model.layers, strict=True)
    )
    return replace(base, layers=ahead, **changes)


def on_gpu(plan: Plan, link: str = "disk") -> Plan:
    """The same plan for a GPU; its timeline says where copies come from."""
    row = Event("copy_dense", link, 0, 0, -1, 0, 1, 0, 1)
    return replace(
        plan, device="cuda", predicted=replace(plan.predicted, timeline=Timeline.of([row]))
    )


def tokens_of(engine: Engine, vocabulary: int) -> list[tuple[int, ...]]:
    return [output.token_ids for output in engine.generate(prompts_of(vocabulary))]


@pytest.fixture
def small(checkpoint_of: Callable[..., Path], helpers: Any) -> Plan:
    folder = checkpoint_of("mixtral")
    plan: Plan = helpers.plan(folder, streaming(folder, eviction="lru"), WORKLOAD)
    return plan


@pytest.fixture
def engine(small: Plan) -> Iterator[Engine]:
    with Engine.from_plan(on_gpu(small)) as made:
        yield made


# --- everywhere ---------------------------------------------------------------------------------


def test_without_a_gpu_it_is_refused_in_one_line(
    small: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="finds no CUDA GPU") as caught:
        Engine.from_plan(on_gpu(small))
    assert "\n" not in str(caught.value)
    with pytest.raises(UnsupportedError, match="'cuda': torch finds no CUDA GPU"):
        make_backend("cuda")
    with pytest.raises(OptionError, match="'tpu'"):
        make_backend("tpu")


# --- on a GPU -----------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("link", ["disk", "h2d"])
@pytest.mark.parametrize("eviction", ["none", "lru", "lifo", "fifo", "frequency", "plan"])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
def test_tokens_equal_the_cpus(
    family: str, eviction: str, link: str, checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    folder = checkpoint_of(family)
    plan = helpers.plan(folder, streaming(folder, eviction=eviction), WORKLOAD)
    with Engine.from_plan(plan) as engine:
        expected = tokens_of(engine, 211)
    with Engine.from_plan(on_gpu(plan, link)) as engine:
        assert tokens_of(engine, 211) == expected
        # a second run begins with slots that the first has used
        assert tokens_of(engine, 211) == expected


@needs_gpu
@pytest.mark.parametrize(
    "family",
    ["qwen2_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "phimoe",
     "minimax_m2", "ernie4_5_moe"],
)  # fmt: skip
def test_every_family_runs(family: str, checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    folder = checkpoint_of(family)
    plan = helpers.plan(folder, streaming(folder, eviction="lru"), WORKLOAD)
    with Engine.from_plan(plan) as engine:
        expected = tokens_of(engine, 211)
    with Engine.from_plan(on_gpu(plan)) as engine:
        assert tokens_of(engine, 211) == expected


@needs_gpu
@pytest.mark.parametrize("family", ["mixtral", "deepseek_v2", "gpt_oss", "qwen2_moe"])
def test_places_are_refilled(family: str, checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """8 places for 16 prompts, whose sequences end at different times."""
    folder = checkpoint_of(family)
    plan = helpers.plan(folder, streaming(folder, eviction="lru"), WORKLOAD)
    prompts, limits = prompts_of(211), [1 + 5 * i % 16 for i in range(16)]
    with Engine.from_plan(plan) as engine:
        expected = engine.generate(prompts, limits)
    with Engine.from_plan(on_gpu(plan)) as engine:
        assert engine.generate(prompts, limits) == expected


@needs_gpu
def test_drawn_and_streamed(small: Plan, engine: Engine) -> None:
    """Logits differ from the CPU's in their last bits, which hardly ever decides a draw."""
    prompts, sampling = prompts_of(211), Sampling(0.8, top_k=50, top_p=0.9, seed=3)
    pieces = list(engine.stream(prompts, sampling=sampling))
    drawn = engine.outputs
    assert engine.generate(prompts, sampling=sampling) == drawn
    for number, output in enumerate(drawn):
        own = tuple(piece.token_id for piece in pieces if piece.request == number)
        assert own == output.token_ids
    with Engine.from_plan(small) as cpu:
        expected = cpu.generate(prompts, sampling=sampling)
    assert sum(have == want for have, want in zip(drawn, expected, strict=True)) >= 15


@needs_gpu
@pytest.mark.parametrize("link", ["disk", "h2d"])
def test_the_example_and_everything_resident(link: str, helpers: Any) -> None:
    with open_weights(EXAMPLE) as source:
        model = source.model
    for policy in (
        streaming(EXAMPLE, eviction="lru"),
        helpers.resident(model, n_batches=1, batch_size=16),
    ):
        plan = helpers.plan(EXAMPLE, policy, WORKLOAD)
        with Engine.from_plan(plan) as engine:
            expected = tokens_of(engine, model.vocab_size)
        with Engine.from_plan(on_gpu(plan, link)) as engine:
            assert tokens_of(engine, model.vocab_size) == expected


@needs_gpu
def test_a_store_is_checked_on_its_way_back(
    checkpoint_of: Callable[..., Path], helpers: Any, tmp_path: Path
) -> None:
    folder, store = checkpoint_of("olmoe"), tmp_path / "store"
    pack(folder, store)
    plan = helpers.plan(folder, streaming(folder), WORKLOAD, store=store)
    with Engine.from_plan(plan) as engine:
        expected = tokens_of(engine, 211)
    with Engine.from_plan(on_gpu(plan), verify=True) as engine:
        assert tokens_of(engine, 211) == expected


@needs_gpu
def test_memory_of_the_device_stays_within_the_budget(
    checkpoint_of: Callable[..., Path], helpers: Any
) -> None:
    # wide enough for temporaries to count
    folder = checkpoint_of("mixtral", hidden_size=512, intermediate_size=1024, vocab_size=4001)
    workload = Workload(32, 64, 8)
    plan = helpers.plan(folder, streaming(folder, n_batches=4, batch_size=8), workload)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    draw = random.Random(3)
    with Engine.from_plan(on_gpu(plan)) as engine:
        engine.generate([[draw.randrange(3, 4001) for _ in range(64)] for _ in range(32)])
    grown = torch.cuda.max_memory_allocated() - before
    assert grown <= plan.memory["device"].capacity_bytes + LIBRARY_BYTES


@needs_gpu
def test_no_more_memory_is_promised_than_the_gpu_has() -> None:
    whole = torch.cuda.mem_get_info()[1]
    ledger = Ledger(2 * whole)
    ledger.reserve("slots", whole)
    with pytest.raises(BudgetError, match="free: plan for at most"):
        make_backend("cuda").memory(whole, 4096, 4096, ledger)


@needs_gpu
def test_the_trace_is_what_the_device_did(engine: Engine) -> None:
    tokens_of(engine, 211)
    trace = engine.trace()
    rows = list(trace.timeline.events())
    compute = [row for row in rows if row.channel == "compute"]
    copies = [row for row in rows if row.channel == "disk"]
    # without gaps, and copies one after the other
    assert all(a.end_ns == b.start_ns for a, b in pairwise(compute))
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(copies))
    assert {"embed", "attention", "router", "expert", "combine", "head", "sample"} <= {
        row.kind for row in compute
    }
    # nothing is computed before its copy has ended
    arrived: dict[tuple[int, int], int] = {}
    for row in sorted(rows, key=lambda row: row.end_ns):
        key = (row.layer, row.item)
        if row.kind in ("copy_demand", "copy_prefetch"):
            arrived.setdefault(key, row.end_ns)
        elif row.kind == "expert":
            assert arrived[key] <= row.end_ns
    assert compute[-1].end_ns <= trace.totals.wall_ns
    assert trace.totals.duration_by_kind_ns["expert"] > 0


@needs_gpu
def test_a_failed_read_ends_the_run(small: Plan) -> None:
    calls = [0]

    def failing(descriptor: int, target: memoryview, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 200:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(descriptor, [target], offset)

    with (
        Engine.from_plan(on_gpu(small), read_into=failing) as engine,
        pytest.raises(RunError, match="Input/output error"),
    ):
        tokens_of(engine, 211)
