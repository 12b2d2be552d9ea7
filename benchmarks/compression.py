"""A store as it is against one that is exactly compressed: the same weights, memory and disk.

    python benchmarks/compression.py                            # throttled to 800 MB/s: root only
    python benchmarks/compression.py --throttle 0 --layers 2 --quick --requests 1 4

One synthetic checkpoint is packed both ways. Each store is profiled on the throttled disk, planned
for with every number of requests, and run; runs of the two take turns, so that a machine that grows
faster or slower weighs on both alike. Rates are new tokens/s, prefill included and decode alone;
the median of the runs counts. Which store is planned to be faster is held against which one was.
What is made and measured stays in ``--work``: stopped, the same command goes on where it was.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

import argparse
import json
import statistics
import time
from typing import Any, Literal

from benchmarks.prediction import QUICK
from benchmarks.prediction_jobs import run_prompts
from benchmarks.record import Record
from benchmarks.throttle import throttled
from benchmarks.writing import write_result
from executor import Engine, pack
from executor.compressing import worth_compressing
from executor.layout import unit_layouts
from executor.synth import write_synthetic
from planner.checkpoint import read_checkpoint
from planner.documents import Plan, Trace, Workload, write_atomic
from planner.profiles import Profile, load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint
from solvers.errors import MoeplanError, OptionError

STORES: tuple[Literal["none", "exact"], ...] = ("none", "exact")

Document = dict[str, Any]


def profiles_of(
    checkpoint: Path, work: Path, options: argparse.Namespace
) -> tuple[dict[str, Profile], Document]:
    """Both stores' profiles, and what the stores are."""
    found: dict[str, Profile] = {}
    facts: Document = {}
    memory_bytes = 0
    for compress in STORES:
        store, out = work / f"store-{compress}", work / f"profile-{compress}"
        packed = pack(checkpoint, store, compress=compress)
        memory_bytes = memory_bytes or int(packed.weights_bytes * options.memory)
        if not (out / "profile.json").exists():
            profile_checkpoint(
                checkpoint,
                out,
                memory_bytes=memory_bytes,
                store=store,
                effort=QUICK if options.quick else None,
            )
        profile = found[compress] = load_profile(out)
        link = profile.hardware.channels[0]
        facts[compress] = {
            "size_bytes": packed.size_bytes,
            "share": packed.size_bytes / packed.weights_bytes,
            "read_bytes_per_second": link.bandwidth_bytes_per_second.value,
            "latency_ns": link.latency_ns.value,
            "copy_slowdown": profile.costs.copy_slowdown.value,
            "compute_slowdown": profile.costs.compute_slowdown.value,
        }
    return found, {"stores": facts, "memory_bytes": memory_bytes}


def settle(options: argparse.Namespace) -> None:
    """What is in the work folder is of one setting.

    Raises
    ------
    OptionError
        If it was begun with another.
    """
    names = ("layers", "throttle", "memory", "prompt_tokens", "new_tokens", "runs", "quick")
    setting = {"config": options.config.stem} | {name: getattr(options, name) for name in names}
    file = options.work / "setting.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else setting
    for name, value in setting.items():
        if before[name] != value:
            raise OptionError(
                f"{options.work}: begun with {name} {before[name]}, not {value}: name a new --work"
            )
    write_atomic(file, json.dumps(setting).encode())


def cells_of(
    profiles: dict[str, Profile], workload: Workload, memory_bytes: int, runs: int
) -> list[Document]:
    """Both stores with one workload, runs in turn."""
    plans = {
        compress: make_plan(profile, workload, memory_bytes=memory_bytes, time_limit_seconds=5)
        for compress, profile in profiles.items()
    }
    prompts = run_prompts(profiles["none"], workload)
    traces: dict[str, list[Trace]] = {compress: [] for compress in plans}
    for _ in range(runs):
        for compress, plan in plans.items():
            with Engine.from_plan(plan) as engine:
                engine.generate(prompts, workload.new_tokens)
                traces[compress].append(engine.trace())
    return [
        _cell(compress, plan, traces[compress], workload.requests)
        for compress, plan in plans.items()
    ]


def _cell(compress: str, plan: Plan, traces: list[Trace], requests: int) -> Document:
    totals = [trace.totals for trace in traces]
    rates = [one.new_tokens * 1e9 / one.wall_ns for one in totals]
    decoded = [(one.new_tokens - requests) * 1e9 / max(one.decode_ns, 1) for one in totals]
    promised = plan.predicted.tokens_per_second
    return {
        "store": compress,
        "requests": requests,
        "n_batches": plan.policy.n_batches,
        "batch_size": plan.policy.batch_size,
        "predicted_tokens_per_second": promised.value,
        "predicted_low": promised.low,
        "predicted_high": promised.high,
        "predicted_decode_tokens_per_second": plan.predicted.decode_tokens_per_second.value,
        "predicted_bytes_read": plan.predicted.totals.bytes_read,
        "tokens_per_second": statistics.median(rates),
        "decode_tokens_per_second": statistics.median(decoded),
        "runs": [round(rate, 3) for rate in rates],
        "bytes_read": statistics.median(one.bytes_read for one in totals),
        "device_peak_bytes": max(one.device_peak_bytes for one in totals),
        "load": os.getloadavg()[0],
    }


def _row(cell: Document) -> str:
    return (
        f"{cell['requests']:>9} {cell['store']:>6} {cell['n_batches']:>3} x {cell['batch_size']:<4}"
        f" {cell['predicted_tokens_per_second']:>10.2f} {cell['tokens_per_second']:>9.2f}"
        f" {cell['decode_tokens_per_second']:>8.2f} {cell['bytes_read'] / 1e9:>8.2f}"
    )


def _gain(plain: Document, exact: Document) -> Document:
    """How much faster the compressed store is, as planned and as run."""
    predicted, measured, decode = (
        exact[name] / max(plain[name], 1e-9)
        for name in ("predicted_tokens_per_second", "tokens_per_second", "decode_tokens_per_second")
    )
    return {
        "requests": plain["requests"],
        "predicted": predicted,
        "measured": measured,
        "decode": decode,
        "bytes": exact["bytes_read"] / max(plain["bytes_read"], 1),
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--config", type=Path, default=ROOT / "examples" / "configs" / "bulk-mixtral.json"
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--throttle", type=int, default=800_000_000, help="bytes/s; 0: none")
    parser.add_argument("--memory", type=float, default=0.5, help="share of the weights")
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="profile in a moment, for a test")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "compression")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "compression.json"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the cells, print a table and write the document."""
    options = _options(argv)
    record = Record.begin(budget=f"{options.runs} runs a cell, searches of 5 s")
    checkpoint = options.work / "checkpoint"
    options.work.mkdir(parents=True, exist_ok=True)
    settle(options)
    cells_file = options.work / "cells.json"
    known: dict[str, list[Document]] = (
        json.loads(cells_file.read_text(encoding="utf-8")) if cells_file.exists() else {}
    )
    if not (checkpoint / "config.json").exists():
        write_synthetic(options.config, checkpoint, layers=options.layers)
    with throttled(options.throttle or None, options.work):
        source = read_checkpoint(checkpoint)
        _, verdict = worth_compressing(source, unit_layouts(source))
        print(f"# pack --compress auto: {verdict}", flush=True)
        profiles, facts = profiles_of(checkpoint, options.work, options)
        cells: list[Document] = []
        gains = []
        print(" requests  store   n x b     predicted  measured   decode  GB read")
        for requests in options.requests:
            workload = Workload(requests, options.prompt_tokens, options.new_tokens)
            if str(requests) not in known:
                begun = time.monotonic()
                pair = cells_of(profiles, workload, facts["memory_bytes"], options.runs)
                known[str(requests)] = pair
                write_atomic(cells_file, json.dumps(known).encode())
                print(f"# {requests} requests: {time.monotonic() - begun:.0f} s", flush=True)
            pair = known[str(requests)]
            cells += pair
            gains.append(_gain(*pair))
            for cell in pair:
                print(_row(cell), flush=True)
            last = gains[-1]
            print(
                f"#   compressed is {last['measured']:.2f} times as fast (decode "
                f"{last['decode']:.2f}), planned {last['predicted']:.2f}; "
                f"{last['bytes']:.0%} of the bytes",
                flush=True,
            )
    document = {
        "about": record.about(),
        "checkpoint": f"{options.config.stem}, {options.layers} layers",
        "throttle_bytes_per_second": options.throttle or None,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "auto": verdict,
        **facts,
        "gains": gains,
        "cells": cells,
    }
    write_result(options.out, document)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"compression: {error}")
