"""The executor on a GPU: everything resident against weights streamed from the disk and from host
memory, planned and predicted from profiles made there. Needs a GPU:

    python -m benchmarks.executor_gpu CONFIG FOLDER OUT.json

CONFIG is a ``config.json``; the checkpoint of random weights, its store, profiles and plans go to
FOLDER. Each cell says what was planned, what ran, and what the GPU held.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import Record
from executor import Engine, open_weights, pack
from executor.cuda import LIBRARY_BYTES
from executor.synth import write_synthetic
from planner.documents import Plan, Workload
from planner.profiles import load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint

SHARES = (1.4, 0.5, 0.25)
"""Device budgets, as shares of the weights."""
REQUESTS = (1, 8, 64)
PROMPT_TOKENS, NEW_TOKENS = 64, 16
SOLVER = "frequency"


def measure(plan: Plan, prompts: list[list[int]]) -> dict[str, Any]:
    """Two runs of one plan; the second counts."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with Engine.from_plan(plan) as engine:
        engine.generate(prompts)
        engine.generate(prompts)
        totals, timeline = engine.trace().totals, engine.trace().timeline
    peak = torch.cuda.max_memory_allocated() - before
    copies = [row for row in timeline.events() if row.channel != "compute"]
    busy = sum(row.end_ns - row.start_ns for row in copies)
    moved = sum(row.size_bytes for row in copies)
    decoded = totals.new_tokens - totals.requests
    return {
        "tokens_per_second": totals.new_tokens * 1e9 / totals.wall_ns,
        "decode_tokens_per_second": decoded * 1e9 / totals.decode_ns if totals.decode_ns else None,
        "bytes_read": totals.bytes_read,
        "copy_bytes_per_second": moved * 1e9 / busy if busy else None,
        "bubble_share": (totals.bubble_inter_layer_ns + totals.bubble_intra_layer_ns)
        / totals.wall_ns,
        "gpu_peak_bytes": peak,
        "over_budget_bytes": peak - totals.device_budget_bytes,
        "allowed_over_bytes": LIBRARY_BYTES,
    }


def main(config: Path, folder: Path, out: Path) -> None:
    """Measure every cell."""
    record = Record.begin(budget="two runs a cell, the second counts; searches of 4 s")
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, store = folder / "checkpoint", folder / "store"
    if not checkpoint.exists():
        write_synthetic(config, checkpoint)
    if not store.exists():
        pack(checkpoint, store)
    with open_weights(checkpoint, store) as source:
        model = source.model
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "weights_bytes": model.total_bytes,
        "solver": SOLVER,
        "profiles": {},
        "cells": [],
    }
    for link, host in (("h2d", 2 * model.total_bytes), ("disk", None)):
        profile = folder / f"profile-{link}"
        begun = time.monotonic()
        profile_checkpoint(
            checkpoint,
            profile,
            memory_bytes=2 * model.total_bytes,
            device="cuda",
            host_memory_bytes=host,
            store=store,
        )
        loaded = load_profile(profile)
        (channel,) = loaded.hardware.channels
        report["profiles"][link] = {
            "seconds": time.monotonic() - begun,
            "bandwidth_bytes_per_second": channel.bandwidth_bytes_per_second.value,
            "latency_ns": channel.latency_ns.value,
        }
        for share in SHARES:
            for requests in REQUESTS:
                if link == "disk" and (share > 1 or requests == 8):
                    continue
                plan = make_plan(
                    loaded,
                    Workload(requests, PROMPT_TOKENS, NEW_TOKENS),
                    memory_bytes=int(share * model.total_bytes),
                    solver=SOLVER,
                    time_limit_seconds=4.0,
                )
                prompts = [
                    [(7 * row + 13 * column) % model.vocab_size for column in range(PROMPT_TOKENS)]
                    for row in range(requests)
                ]
                predicted = plan.predicted.tokens_per_second.value
                cell = {"link": link, "share": share, "requests": requests, "predicted": predicted}
                report["cells"].append({**cell, **measure(plan, prompts)})
                report["about"] = record.about()
                out.write_text(json.dumps(report, indent=1) + "\n")
                print(report["cells"][-1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
