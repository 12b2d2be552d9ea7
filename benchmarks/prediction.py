"""Predicted against measured throughput over a grid of checkpoints, budgets and requests.

    python benchmarks/prediction.py CHECKPOINT ... --memory 0.45 1.1 --requests 1 8 64

Each checkpoint is packed and profiled once, before all of its runs. Each cell is planned and then
run several times, each time with a fresh engine; the median counts, no cell is left out. Budgets
are fractions of the checkpoint's weights. The machine's drift (a fixed operation's time now over
its time while profiling) is printed beside each cell and corrects nothing. Errors are measured
against predicted: (measured - predicted) / predicted.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import dataclasses
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass

from executor import Engine, pack
from executor.tokenizer import load_tokenizer
from planner.documents import Workload
from planner.profiles import Profile, load_profile
from planner.solve import make_plan
from profiler import bundled_prompts, profile_checkpoint, verify
from profiler.machine import Reference
from profiler.measure import Effort
from solvers.errors import BudgetError


@dataclass(frozen=True)
class Cell:
    """One plan and its runs; rates in new tokens/s over the whole run, prefill included."""

    checkpoint: str
    memory_bytes: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    solver: str
    n_batches: int
    batch_size: int
    predicted: float
    low: float
    high: float
    measured: tuple[float, ...]
    error: float
    inside: bool
    drift: float
    kinds: dict[str, tuple[int, int]]


def run_prompts(profile: Profile, workload: Workload) -> list[list[int]]:
    """Token ids of unequal length, the longest as planned.

    Bundled texts that the profile has not recorded, or a synthetic checkpoint's own prompts; random
    tokens where there is no tokenizer.
    """
    folder, count = Path(profile.index.checkpoint), workload.requests
    longest = workload.prompt_tokens
    own = folder / "prompts.jsonl"
    if not (folder / "tokenizer.json").exists():
        generator = random.Random(0)
        vocabulary = profile.model.vocab_size
        ids = [[generator.randrange(vocabulary) for _ in range(longest)] for _ in range(count)]
    else:
        tokenizer = load_tokenizer(folder)
        if own.exists():
            lines = own.read_text(encoding="utf-8").splitlines()
            texts = [json.loads(line)["prompt"] for line in reversed(lines)]
        else:
            texts = bundled_prompts(64 + count)[64:]
        ids = [tokenizer.encode(text) for text in texts]
    return [ids[index % len(ids)][: max(longest - index % 4, 1)] for index in range(count)]


def run_cell(
    profile: Profile,
    reference: Reference,
    memory_bytes: int,
    workload: Workload,
    runs: int,
    paced_bytes_per_second: int | None,
) -> Cell:
    """Plan, run, compare."""
    plan = make_plan(profile, workload, memory_bytes=memory_bytes, time_limit_seconds=5)
    prompts = run_prompts(profile, workload)
    found = []
    reference.samples.clear()
    for _ in range(runs):
        reference.take()
        with Engine.from_plan(plan, paced_bytes_per_second=paced_bytes_per_second) as engine:
            engine.generate(prompts, workload.new_tokens)
            found.append(verify(plan, engine.trace()))
        reference.take()
    middle = sorted(found, key=lambda one: one.tokens_per_second.measured)[runs // 2]
    rate = middle.tokens_per_second
    return Cell(
        checkpoint=profile.model.name,
        memory_bytes=memory_bytes,
        requests=workload.requests,
        prompt_tokens=workload.prompt_tokens,
        new_tokens=workload.new_tokens,
        solver=plan.solver,
        n_batches=plan.policy.n_batches,
        batch_size=plan.policy.batch_size,
        predicted=rate.predicted.value,
        low=rate.predicted.low,
        high=rate.predicted.high,
        measured=tuple(round(one.tokens_per_second.measured, 2) for one in found),
        error=rate.measured / rate.predicted.value - 1,
        inside=rate.inside,
        drift=statistics.median(reference.samples) / profile.costs.reference_ns.value,
        kinds={kind.name: (kind.predicted, kind.measured) for kind in middle.kinds},
    )


def main(argv: list[str] | None = None) -> int:
    """Run the grid and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--memory", nargs="+", type=float, default=[0.45, 1.2])
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--disk-bandwidth", type=int, help="bytes/s to hold the disk to")
    parser.add_argument("--quick", action="store_true", help="profile in a moment, for a test")
    parser.add_argument("--out", type=Path, help="JSON with all cells")
    options = parser.parse_args(argv)
    cells: list[Cell] = []
    effort = Effort(cell_ns=1, rounds=1, fills=1, turns=1, passes=1) if options.quick else None
    print(
        "checkpoint | memory MiB | requests | n x b | predicted [low, high] | measured | error "
        "| drift"
    )
    for checkpoint in options.checkpoints:
        with tempfile.TemporaryDirectory(dir=checkpoint.parent) as folder:
            store, out = Path(folder) / "store", Path(folder) / "profile"
            size = pack(checkpoint, store).size_bytes
            begun = time.monotonic()
            profile_checkpoint(
                checkpoint,
                out,
                memory_bytes=int(size * max(options.memory)),
                store=store,
                paced_bytes_per_second=options.disk_bandwidth,
                effort=effort,
            )
            print(f"# {checkpoint.name}: profiled in {time.monotonic() - begun:.0f} s")
            profile, reference = load_profile(out), Reference()
            for fraction in options.memory:
                for requests in options.requests:
                    workload = Workload(requests, options.prompt_tokens, options.new_tokens)
                    try:
                        cell = run_cell(
                            profile,
                            reference,
                            int(size * fraction),
                            workload,
                            options.runs,
                            options.disk_bandwidth,
                        )
                    except BudgetError as error:
                        print(f"# {checkpoint.name}, {requests} requests: {error}")
                        continue
                    cells.append(cell)
                    print(
                        f"{cell.checkpoint} | {cell.memory_bytes / 2**20:.0f} | {requests} | "
                        f"{cell.n_batches} x {cell.batch_size} | {cell.predicted:.1f} "
                        f"[{cell.low:.1f}, {cell.high:.1f}] | "
                        f"{', '.join(f'{rate:.1f}' for rate in cell.measured)} | "
                        f"{cell.error:+.1%} | {cell.drift:.2f}",
                        flush=True,
                    )
    errors = [abs(cell.error) for cell in cells]
    if not errors:
        print("no cell fits its budget")
        return 1
    inside = sum(cell.inside for cell in cells)
    print(
        f"# {len(cells)} cells: median error {statistics.median(errors):.1%}, worst "
        f"{max(errors):.1%}, {inside} inside their interval"
    )
    if options.out is not None:
        result = {
            "cells": [dataclasses.asdict(cell) for cell in cells],
            "median_abs_error": statistics.median(errors),
            "worst_abs_error": max(errors),
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
