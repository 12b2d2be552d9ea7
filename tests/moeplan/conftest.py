"""Hand-made documents: a plan of two layers with four experts each, and the trace of its run."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeplan import cli, output
from planner.checkpoint import read_checkpoint
from planner.documents import (
    Event,
    Inputs,
    LayerPolicy,
    Locations,
    MemoryAccount,
    Plan,
    Policy,
    Predicted,
    PredictedTotals,
    Range,
    Timeline,
    Trace,
    TraceTotals,
    Workload,
    document_hash,
)
from planner.memory import smallest_budget

MS = 1_000_000


@pytest.fixture(scope="session", autouse=True)
def silent() -> Iterator[None]:
    """However slow a command is here, no line of how far it is comes before what it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "time", SimpleNamespace(monotonic=lambda: 0.0))
        yield


def one_pass(index: int, at: int, slow: int = 1) -> list[Event]:
    """A pass of 20 ms (times ``slow``): per layer attention 2, router 1, experts 2 x 2, and in
    layer 1 a wait of 3 for a copy on demand of 4; then the head."""
    rows = [
        Event("embed", "compute", index, -1, -1, 0, 1, 4, 0),
        Event("attention", "compute", index, 0, 0, 1, 3, 4, 0),
        Event("router", "compute", index, 0, -1, 3, 4, 4, 0),
        Event("expert", "compute", index, 0, 1, 4, 6, 3, 0),
        Event("expert", "compute", index, 0, 2, 6, 8, 1, 0),
        Event("attention", "compute", index, 1, 0, 8, 10, 4, 0),
        Event("router", "compute", index, 1, -1, 10, 11, 4, 0),
        Event("wait_expert", "compute", index, 1, 3, 11, 14, 0, 0),
        Event("expert", "compute", index, 1, 3, 14, 16, 4, 0),
        Event("head", "compute", index, 2, 0, 16, 19, 4, 0),
        Event("sample", "compute", index, 2, -1, 19, 20, 4, 0),
        Event("copy_prefetch", "disk", index, 0, 2, 0, 5, 0, 4096),
        Event("copy_demand", "disk", index, 1, 3, 11, 14, 0, 4096),
    ]
    return [
        row._replace(start_ns=at + row.start_ns * slow * MS, end_ns=at + row.end_ns * slow * MS)
        for row in rows
    ]


def sums(events: list[Event]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for event in events:
        totals[event.kind] = totals.get(event.kind, 0) + event.end_ns - event.start_ns
    return totals


@pytest.fixture
def plan() -> Plan:
    """Four requests in one group of 2 x 2, two new tokens each: two passes of 20 ms."""
    events = one_pass(0, 0) + one_pass(1, 20 * MS)
    return Plan(
        solver="cpsat",
        stop="time_limit",
        objective_name="throughput",
        objective=5_000_000.0,
        bound=4_800_000.0,
        bound_class="plan",
        gap=0.04,
        inputs=Inputs("a" * 64, "b" * 64, "c" * 64, "d" * 64, "e" * 64, None),
        locations=Locations("/nowhere/profile", "/nowhere/tiny-moe", None),
        workload=Workload(requests=4, prompt_tokens=8, new_tokens=2),
        device="cpu",
        dtype="float32",
        policy=Policy(
            n_batches=2,
            batch_size=2,
            layers=(LayerPolicy(True, (1,), (2,)), LayerPolicy(True, (), (0,))),
            head_tile_rows=64,
            head_tiles=1,
            resident_head_tiles=1,
            slots=3,
            dense_slots=0,
            reserve=1,
            eviction="none",
            chunk_bytes=4096,
        ),
        memory={
            "device": MemoryAccount(
                1_000_000, {"dense": 300_000, "experts": 100_000, "slots": 300_000, "kv": 90_000}
            )
        },
        predicted=Predicted(
            tokens_per_second=Range(200.0, 180.0, 210.0),  # 8 tokens in 40 ms
            decode_tokens_per_second=Range(200.0, 180.0, 210.0),
            time_to_first_token_ns=20 * MS,
            totals=PredictedTotals(
                wall_ns=40 * MS,
                prefill_ns=20 * MS,
                decode_ns=20 * MS,
                bytes_read=16_384,
                bubble_inter_layer_ns=0,
                bubble_intra_layer_ns=6 * MS,
                duration_by_kind_ns=sums(events),
            ),
            timeline=Timeline.of(events),
        ),
        chosen_over={"all-experts": 10_000_000.0, "klotski": 6_000_000.0},
        notes=("n = 2 because the copy of one expert takes as long as two batches.",),
    )


@pytest.fixture
def trace(plan: Plan) -> Trace:
    """The run of that plan at half its speed: two passes of 40 ms, so 100 tokens/s."""
    events = one_pass(0, 0, slow=2) + one_pass(1, 40 * MS, slow=2)
    counts: dict[str, int] = {}
    for event in events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    return Trace(
        plan_hash=document_hash(plan),
        device="cpu",
        paced_bytes_per_second=None,
        kept_passes=2,
        totals=TraceTotals(
            wall_ns=80 * MS,
            prefill_ns=40 * MS,
            decode_ns=40 * MS,
            prompt_tokens=32,
            new_tokens=8,
            passes=2,
            bytes_read=16_384,
            wasted_prefetch_bytes=4096,
            bubble_inter_layer_ns=0,
            bubble_intra_layer_ns=12 * MS,
            duration_by_kind_ns=sums(events),  # type: ignore[arg-type]
            count_by_kind=counts,  # type: ignore[arg-type]
            pass_ns=(40 * MS, 40 * MS),
            device_peak_bytes=790_000,
            device_budget_bytes=1_000_000,
            process_peak_bytes=300_000_000,
            requests=4,
        ),
        timeline=Timeline.of(events),
    )


# --- a real checkpoint, tiny: made once for all processes of a session ---------------------------


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first of pytest's processes makes, and all of them read."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        make(folder)
        return folder
    folder = factory.getbasetemp().parent / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    return folder


def write_tiny_checkpoint(folder: Path, seed: int = 7) -> None:
    """1.2 MB: a random Qwen3-MoE of three layers with eight experts, and a tokenizer of bytes."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        hidden_size=64,
        vocab_size=256,
        max_position_embeddings=256,
        num_hidden_layers=3,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        initializer_range=0.2,
    )
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny checkpoint; read only."""
    made = shared(
        tmp_path_factory, "checkpoint", lambda folder: write_tiny_checkpoint(folder / "tiny-moe")
    )
    return made / "tiny-moe"


def run_json(*argv: Any) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main([*map(str, argv), "--json"])
    assert code == 0, f"{argv}: exit code {code}: {out.getvalue()}"
    return json.loads(out.getvalue())


@pytest.fixture(scope="session")
def command_json() -> Callable[..., Any]:
    """Run one command in process; it must succeed and print one JSON document."""
    return run_json


@pytest.fixture(scope="session")
def another_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like ``tiny``, with other weights; read only."""
    made = shared(
        tmp_path_factory,
        "another",
        lambda folder: write_tiny_checkpoint(folder / "other-moe", seed=8),
    )
    return made / "other-moe"


@pytest.fixture(scope="session")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Packed, profiled and planned by the commands themselves; read only."""
    # between the least that works and what holds everything
    model = read_checkpoint(tiny).model
    least = smallest_budget(model, Workload(4, 14, 4), model.dtype_bytes)
    memory = str(least + model.expert_bytes // 3)

    def make(folder: Path) -> None:
        store, profile, texts = folder / "store", folder / "profile", folder / "texts.txt"
        # a byte is a token: 13, 14, 14 and 12 of the planned 14
        prompts = "def f(x, yy):\nimport os, sys\nclass A(Base):\nreturn 1 + 2\n"
        (folder / "prompts.txt").write_text(prompts)
        texts.write_text("".join(f"for i in {i:02}:\n" for i in range(24)))
        said = {"packed_json": run_json("pack", tiny, store)}
        said["profile_json"] = run_json(
            *("profile", tiny, "--memory", memory, "--out", profile),
            *("--store", store, "--prompts", texts),
        )
        said["plan_json"] = run_json(
            *("plan", profile, "--memory", memory, "--requests", 4, "--prompt-tokens", 14),
            *("--new-tokens", 4, "--time-limit", 2, "--out", folder / "plan.json"),
        )
        (folder / "said.json").write_text(json.dumps(said))

    folder = shared(tmp_path_factory, "made", make)
    return SimpleNamespace(
        checkpoint=tiny,
        store=folder / "store",
        profile=folder / "profile",
        plan=folder / "plan.json",
        prompts=folder / "prompts.txt",
        memory=memory,
        **json.loads((folder / "said.json").read_text()),
    )
