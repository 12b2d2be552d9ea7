"""Does the planner's order of strategies by predicted rate equal the measured order?

    python benchmarks/ranking.py                    # the checkpoints of prediction.py: root only
    python benchmarks/ranking.py CHECKPOINT ... --disk-bandwidth 400000000 --requests 8

Each strategy that makes schedules to run, and searches for none, is planned in one cell of each
checkpoint of ``benchmarks/prediction.py``: its smaller budget and its fewest requests, on a disk so
slow that what is copied decides (where computing does, strategies are as fast as each other): the
small example at 50 MB/s, the bulk ones at 400. Reads are paced: they wait themselves. A kernel that
holds the disk lets one that rested read freely for up to a tenth of a second: strategies that pause
between copies come out up to 5% faster there than predicted and those that never do as much slower,
which is as far as strategies differ (``--throttle`` measures that). Profiles under
``--work`` are used where they are there. Runs take turns, one of each strategy a round, so that a
machine that grows slower weighs on all alike; the median counts. Equal policies are one plan and
are run once.
Kendall's tau (b) is over those pairs of different plans whose runs do not overlap (of two equal
rates, four runs each lie apart in 1 of 35 cases), and once more over all pairs, whether anyone can
tell them apart or not. Writes benchmarks/results/ranking.json; cells that are in it, of the same
profile and strategies, are not run again.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from benchmarks.prediction import Bench, bench_of
from benchmarks.prediction_jobs import Job, grid, run_prompts
from benchmarks.record import Record
from benchmarks.throttle import throttled
from benchmarks.writing import write_result
from planner.documents import Plan, Workload, document_hash
from planner.solve import make_plan
from solvers.errors import MoeplanError
from solvers.registry import BACK_ENDS, Feature, load

Document = dict[str, Any]

EXAMPLE_PACE, BULK_PACE = 50_000_000, 400_000_000
"""Bytes/s that reads are held to: a pass copies for longer than it computes."""


def cells_of(work: Path) -> list[tuple[Job, int]]:
    """One cell of each checkpoint, with bytes/s that its reads are paced to."""
    example, *bulk = grid(work)
    small = example._replace(requests=example.requests[:1], new_tokens=32)
    return [
        (small, EXAMPLE_PACE),
        *((job._replace(requests=job.requests[:1]), BULK_PACE) for job in bulk),
    ]


def strategies() -> list[str]:
    """Names of those that make schedules to run without a search."""
    found = []
    for name in BACK_ENDS:
        features = load(name).features
        if Feature.RUNNABLE in features and Feature.BOUND not in features:
            found.append(name)
    return found


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's tau-b of (x, y) pairs; None where one of both does not differ at all."""
    return tau_of([(a[0] - b[0], a[1] - b[1]) for a, b in combinations(pairs, 2)])


def tau_of(differences: Sequence[tuple[float, float]]) -> float | None:
    """Of the differences of pairs in x and in y: agreeing minus disagreeing, ties apart."""
    agreeing = sum(math.copysign(1, x * y) if x * y else 0.0 for x, y in differences)
    different = [sum(one[axis] != 0 for one in differences) for axis in (0, 1)]
    return agreeing / math.sqrt(math.prod(different)) if all(different) else None


def ranked(bench: Bench, memory_bytes: int, workload: Workload, names: list[str]) -> Document:
    """One cell: every strategy planned and run."""
    plans = {
        name: make_plan(
            bench.profile,
            workload,
            memory_bytes=memory_bytes,
            solver=name,
            time_limit_seconds=5,
            kv="device",
        )
        for name in names
    }
    first: dict[str, str] = {}
    for name, plan in plans.items():
        first.setdefault(repr(plan.policy), name)
    different = {name: plans[name] for name in first.values()}
    prompts = run_prompts(bench.profile, workload)
    rates: dict[str, list[float]] = {name: [] for name in different}
    for turn in range(bench.runs):
        for name, plan in different.items():
            rates[name].append(_rate(bench, plan, prompts))
        print(f"#   round {turn + 1} of {bench.runs}", flush=True)
    rows = [_row(name, plan, rates[name]) for name, plan in different.items()]
    clear = [
        (a["predicted"] - b["predicted"], a["median"] - b["median"])
        for a, b in combinations(rows, 2)
        if _apart(a, b)
    ]
    same = [
        {"solver": name, "same_plan_as": first[repr(plan.policy)]}
        for name, plan in plans.items()
        if name not in different
    ]
    return {
        **asked_of(bench, memory_bytes, workload, names),
        "pairs": math.comb(len(rows), 2),
        "tau": kendall_tau([(row["predicted"], row["median"]) for row in rows]),
        "pairs_told_apart": len(clear),
        "tau_told_apart": tau_of(clear),
        "rows": sorted(rows, key=lambda row: -row["predicted"]) + same,
    }


def asked_of(bench: Bench, memory_bytes: int, workload: Workload, names: list[str]) -> Document:
    """What tells one cell from another."""
    return {
        "checkpoint": bench.profile.model.name,
        "profile_hash": document_hash(bench.profile.index),
        "throttle_bytes_per_second": bench.throttle or bench.paced_bytes_per_second,
        **({"paced": True} if bench.paced_bytes_per_second else {}),
        "memory_bytes": memory_bytes,
        "requests": workload.requests,
        "prompt_tokens": workload.prompt_tokens,
        "new_tokens": workload.new_tokens,
        "runs": bench.runs,
        "solvers": sorted(names),
    }


def _known(out: Path) -> Document:
    """What a run before this one wrote."""
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def _rate(bench: Bench, plan: Plan, prompts: list[list[int]]) -> float:
    totals = bench.trace_of(plan, prompts).totals
    return totals.new_tokens * 1e9 / totals.wall_ns


def _row(name: str, plan: Plan, rates: list[float]) -> Document:
    promised = plan.predicted.tokens_per_second
    return {
        "solver": name,
        "n_batches": plan.policy.n_batches,
        "batch_size": plan.policy.batch_size,
        "predicted": promised.value,
        "low": promised.low,
        "high": promised.high,
        "median": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "measured": [round(rate, 3) for rate in rates],
    }


def _apart(one: Document, other: Document) -> bool:
    return bool(one["least"] > other["most"] or other["least"] > one["most"])


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoints", nargs="*", type=Path)
    parser.add_argument("--memory", type=float, default=0.45, help="share of the weights")
    parser.add_argument("--requests", nargs="+", type=int, help="(8; of the grid, its fewest)")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--solvers", nargs="+", choices=strategies(), default=strategies())
    parser.add_argument(
        "--disk-bandwidth", type=int, help="bytes/s to hold the disk to, by waiting"
    )
    parser.add_argument("--throttle", type=int, help="bytes/s, by the kernel (root)")
    parser.add_argument("--quick", action="store_true", help="profile in a moment, for a test")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "prediction")
    results = ROOT / "benchmarks" / "results" / "ranking.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args(argv)
    if options.runs < 1:
        parser.error("--runs: give 1 or more")
    if len(set(options.solvers)) < 2:
        parser.error("--solvers: an order takes two or more")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the cells, print their taus and write them."""
    options = _options(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    known = _known(options.out)
    budget = f"{options.runs} runs a strategy, searches of 5 s"
    record = Record.begin(budget=budget)
    shape = (options.prompt_tokens, options.new_tokens)
    jobs: list[tuple[Job, int | None]] = [
        (Job(one, (options.memory,), (8,), *shape), None) for one in options.checkpoints
    ]
    cells: list[Document] = []
    throttle = options.throttle
    as_typed = throttle or options.disk_bandwidth
    for job, pace in jobs or cells_of(options.work):
        paced = argparse.Namespace(**{**vars(options), "disk_bandwidth": pace})
        held = options if as_typed else paced
        folder = options.work / f"{job.checkpoint.name}-run"
        folder.mkdir(exist_ok=True)
        with throttled(throttle, folder):
            bench, size = bench_of(job, folder, held, throttle)
            for requests in options.requests or job.requests:
                workload = Workload(requests, job.prompt_tokens, job.new_tokens)
                memory_bytes = int(size * min(job.memory))
                asked = asked_of(bench, memory_bytes, workload, options.solvers)
                alike = (one for one in known.get("cells", []) if asked.items() <= one.items())
                cell = next(alike, {})
                if cell:
                    record = replace(record, before=known["about"])
                else:
                    cell = ranked(bench, memory_bytes, workload, options.solvers)
                cells.append(cell)
                tau = cell["tau_told_apart"]
                said = "no two can be told apart" if tau is None else f"tau {tau:.2f}"
                said += f" over {cell['pairs_told_apart']} of {cell['pairs']} pairs"
                print(f"{cell['checkpoint']}, {requests} requests: {said}", flush=True)
                write_result(options.out, {"about": record.about(), "cells": cells})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"ranking: {error}")
