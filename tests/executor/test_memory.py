"""Memory that is really used: the process stays within its budget and 384 MiB, under a real cap."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine, open_weights, pack
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload, write_document
from planner.memory import account_device, aligned, smallest_budget, smallest_policy
from solvers.errors import BudgetError

MIB = 1 << 20
OVERHEAD_BYTES = 384 * MIB

RUN = """
import ctypes, gc, json, os, sys
from pathlib import Path
from executor.allocator import peak_resident_bytes, tune_process
from executor.adapters import mixtral
from executor.engine import Engine
from planner.documents import Plan, load_document

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024

plan = load_document(Plan, Path(sys.argv[1]))
mixtral.MixtralAdapter.classes()
tune_process()
import torch
# first use of the thread pool and of both libraries' smallest product
for dtype in (torch.float32, torch.bfloat16):
    torch.mm(torch.zeros(64, 64, dtype=dtype), torch.zeros(64, 64, dtype=dtype))
before, files_before = status("VmRSS"), status("RssFile")
with Engine.from_plan(plan) as engine:
    # touch every page of the arena, so that nothing hides behind memory that was never used
    buffer = engine._device._arena._buffer
    for offset in range(0, len(buffer), 4096):
        buffer[offset] = buffer[offset]
    prompts = json.loads(sys.argv[2])
    limits = json.loads(sys.argv[3])
    tokens = [list(output.token_ids) for output in engine.generate(prompts, limits)]
    totals = engine.trace().totals
print(json.dumps({
    "tokens": tokens,
    "grown": peak_resident_bytes() - before - (status("RssFile") - files_before),
    "process_peak": totals.process_peak_bytes,
    "device_peak": totals.device_peak_bytes,
}))
"""


@pytest.fixture(scope="module")
def bulk(helpers: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``bulk(dtype)``: a checkpoint of some 500 MiB and its store."""
    made: dict[torch.dtype, tuple[Path, Path]] = {}

    def make(dtype: torch.dtype) -> tuple[Path, Path]:
        if dtype not in made:
            folder = tmp_path_factory.mktemp("bulk")
            helpers.write_checkpoint(
                "mixtral",
                folder / "checkpoint",
                dtype,
                hidden_size=512,
                intermediate_size=2048,
                num_hidden_layers=20 // dtype.itemsize,
                num_attention_heads=8,
                num_key_value_heads=4,
                vocab_size=3000,
                max_position_embeddings=1024,
                initializer_range=0.02,
            )
            # compressed in float32: reading buffers and decoders count, too
            exact = dtype == torch.float32
            pack(folder / "checkpoint", folder / "store", compress="exact" if exact else "none")
            made[dtype] = folder / "checkpoint", folder / "store"
        return made[dtype]

    return make


def filled(model: ModelSpec, base: Policy, workload: Workload, budget: int) -> Policy:
    """``base`` with as many residents as the budget holds."""
    policy = base
    for count in range(1, model.layers[0].experts + 1):
        more = replace(
            base,
            layers=tuple(LayerPolicy(False, tuple(range(count)), ()) for _ in model.layers),
        )
        need = account_device(model, more, workload, model.dtype_bytes, 0).peak_bytes
        if need > budget:
            break
        policy = more
    return policy


@pytest.mark.parametrize(
    ("dtype", "prompt_tokens"),
    [(torch.bfloat16, 48), (torch.float32, 48), (torch.bfloat16, 700)],
    ids=["bfloat16", "float32", "long prompts"],
)
def test_process_stays_within_its_budget(
    dtype: torch.dtype, prompt_tokens: int, bulk: Any, helpers: Any, capped: Any, tmp_path: Path
) -> None:
    """A checkpoint of more than three times the budget, prompts of unequal length, everything that
    the account counts touched; the cap is the budget and 384 MiB."""
    budget = (150 if prompt_tokens < 100 else 160) * MIB
    checkpoint, store = bulk(dtype)
    with open_weights(checkpoint, store) as source:
        model = source.model
    assert model.total_bytes > 3 * budget
    # twice as many as there are places: new ones begin while others go on
    requests, places = (24, 12) if prompt_tokens < 100 else (4, 2)
    limits = [1 + 3 * i % 5 for i in range(requests)]
    workload = Workload(requests, prompt_tokens, 5)
    base = replace(
        smallest_policy(model, model.dtype_bytes),
        n_batches=2,
        batch_size=places // 2,
        slots=3,
        dense_slots=2,
        chunk_bytes=4 * MIB,
    )
    policy = filled(model, base, workload, budget)
    plan = helpers.plan(checkpoint, policy, workload, store=store, budget_bytes=budget)
    assert plan.memory["device"].peak_bytes <= budget
    write_document(plan, tmp_path / "plan.json")
    prompts = [
        [3 + (7 * i + 11 * j) % 2900 for j in range(max(prompt_tokens - 3 * i, 1))]
        for i in range(requests)
    ]
    given = [json.dumps(prompts), json.dumps(limits)]
    command = [sys.executable, "-c", RUN, str(tmp_path / "plan.json"), *given]
    done, group_peak = capped(budget + OVERHEAD_BYTES, command)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    print({key: value / MIB for key, value in result.items() if key != "tokens"}, group_peak / MIB)
    assert [len(tokens) for tokens in result["tokens"]] == limits
    assert result["device_peak"] <= budget
    assert result["process_peak"] <= budget + OVERHEAD_BYTES
    assert group_peak <= budget + OVERHEAD_BYTES
    # the account is an upper bound of what the run takes; 6 MiB for Python's own objects
    assert result["grown"] <= plan.memory["device"].peak_bytes + 6 * MIB


def test_smallest_budget_is_the_smallest(checkpoint_of: Any, helpers: Any) -> None:
    checkpoint = checkpoint_of("olmoe")
    workload = Workload(3, 7, 4)
    with open_weights(checkpoint) as source:
        model = source.model
    least = smallest_budget(model, workload, 4)
    policy = smallest_policy(model, 4)
    with Engine.from_plan(helpers.plan(checkpoint, policy, workload, budget_bytes=least)) as engine:
        assert len(engine.generate([[5, 6, 7]] * 3)) == 3
    with pytest.raises(BudgetError) as caught:
        Engine.from_plan(helpers.plan(checkpoint, policy, workload, budget_bytes=least - 1))
    # with keys and values below the device it runs in less
    below = smallest_budget(model, workload, 4, "below")
    assert below < least
    assert caught.value.smallest_bytes == below
    policy = replace(policy, kv="below")
    with Engine.from_plan(helpers.plan(checkpoint, policy, workload, budget_bytes=below)) as engine:
        assert len(engine.generate([[5, 6, 7]] * 3)) == 3
    assert aligned(least) == least
