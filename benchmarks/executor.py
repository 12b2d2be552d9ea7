"""moeplan against what people use: same checkpoint, memory cap, prompts and disk, cold caches.

    python benchmarks/executor.py --work DIR                       # the whole grid: root only
    python benchmarks/executor.py --work DIR --cells '^mixtral/50/800/'

A cell is ``checkpoint/cap/disk/requests/engine``: the cap a share of the weights in percent, the
disk in MB/s (``free``: not held). The kernel holds both; the cap is of all memory of the process
and its page cache. ``--cells`` takes a regular expression of such names.

Engines: ``moeplan`` (what it plans by itself), likewise from an exactly compressed store, its
strategies one by one, ``accelerate`` (weights offloaded to the disk), ``llama.cpp`` (weights
mapped) and, without a cap, ``transformers`` and ``moeplan in memory``. Peers take as many requests
at once as run under the cap, and are tried with several settings, of which the best counts: all
that were tried stand in ``trials``. Each runs in a process of its own. Rates are of ``generate``
alone, loading apart; "in all" has prefill in it.

``limit_ratio`` is the time of the decode passes over the larger of two: the bytes that a
clairvoyant with the same pool would read, at the bandwidth that the disk has alone beside the run,
and the decode passes with everything in memory. A grid that was stopped goes on where it was.
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
import itertools
import json
import re
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks.capped import EXIT_CODE
from benchmarks.executor_table import markdown
from benchmarks.executor_trials import Bench, Trial
from benchmarks.record import Record
from benchmarks.writing import write_result
from executor.caps import PROCESS_BYTES
from planner.entries import BASELINES
from solvers.errors import MoeplanError

Document = dict[str, Any]

CHECKPOINTS = {
    "mixtral": (ROOT / "examples" / "configs" / "bulk-mixtral.json", 16),
    "olmoe": (ROOT / "benchmarks" / "configs" / "bulk-olmoe.json", 14),
    "qwen3": (ROOT / "benchmarks" / "configs" / "bulk-qwen3.json", 10),
}
"""Configurations, and layers that make about 3 GB."""
CAPS = (50, 25)
DISKS = (800_000_000, None)
REQUESTS = (1, 8, 64, 256)
IN_MEMORY = "moeplan in memory"
COMPRESSED = "moeplan compressed"
FIRST = (IN_MEMORY, "moeplan", COMPRESSED, "accelerate", "llama.cpp", "transformers")


class Cell(NamedTuple):
    """One row; ``cap`` in percent of the weights, ``disk`` in bytes/s (None: not held)."""

    checkpoint: str
    cap: int
    disk: int | None
    requests: int
    engine: str

    @property
    def name(self) -> str:
        """As ``--cells`` knows it."""
        disk = "free" if self.disk is None else f"{self.disk / 1e6:.0f}"
        return f"{self.checkpoint}/{self.cap}/{disk}/{self.requests}/{self.engine}"


def grid() -> Iterator[Cell]:
    """All cells, for each checkpoint, disk and cap the strategies last."""
    for checkpoint, disk, cap in itertools.product(CHECKPOINTS, DISKS, CAPS):
        for engines in (FIRST, BASELINES):
            for requests, engine in itertools.product(REQUESTS, engines):
                yield Cell(checkpoint, cap, disk, requests, engine)


class Results:
    """Cells and trials so far, in a file that is written after each."""

    def __init__(self, out: Path, new_tokens: int, prompt_tokens: int) -> None:
        self._out = out
        known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        # what a limit ended stays so; what failed is tried again
        self.cells: list[Document] = [one for one in known.get("cells", []) if not _failed(one)]
        self.trials: dict[str, Document] = {
            key: one for key, one in known.get("trials", {}).items() if not _failed(one)
        }
        self._facts = {
            "prompt_tokens": prompt_tokens,
            "new_tokens": new_tokens,
        }
        budget = "one run a trial, the best of a cell's trials counts"
        self._record = Record.begin(budget=budget, before=known.get("about"))

    def add(self, cell: Document) -> None:
        """A cell, in place of an older one of its name."""
        same = ("name", "new_tokens")
        self.cells = [one for one in self.cells if any(one[key] != cell[key] for key in same)]
        self.cells.append(cell)
        self.write()

    def has(self, name: str, new_tokens: int) -> bool:
        """Whether a cell is there."""
        return any((one["name"], one["new_tokens"]) == (name, new_tokens) for one in self.cells)

    def write(self) -> None:
        """Both files."""
        body = {
            "about": self._record.about(),
            **self._facts,
            "cells": self.cells,
            "trials": self.trials,
        }
        write_result(self._out, body, markdown(body))


def _failed(one: Document) -> bool:
    return EXIT_CODE in (one["reason"] or "")


def trials_of(bench: Bench, cell: Cell, cap_bytes: int, budget: int) -> Iterable[Trial]:
    """What a cell is made of."""
    if cell.engine == "accelerate":
        return bench.accelerate(cap_bytes, cell.disk, cell.requests)
    if cell.engine == "llama.cpp":
        return bench.llama_cpp(cap_bytes, cell.disk, cell.requests)
    if cell.engine == "transformers":
        return bench.transformers(cell.requests)
    profile = bench.profile(cell.disk, budget, "exact" if cell.engine == COMPRESSED else "none")
    if cell.engine == IN_MEMORY:
        return [bench.own(cell.engine, "on-demand", profile, cell.requests, (None, None))]
    solver = cell.engine if cell.engine in BASELINES else "cpsat"
    return [bench.own(cell.engine, solver, profile, cell.requests, (cap_bytes, cell.disk))]


def measure(bench: Bench, cell: Cell, results: Results, cap_bytes: int, budget: int) -> Document:
    """Run a cell's trials, those that are not known yet, and take the best."""
    tried: list[Document] = []
    keys: list[str] = []
    reason = None
    try:
        for trial in trials_of(bench, cell, cap_bytes, budget):
            if any(one["reason"] is None and one["batch"] > trial.batch for one in tried):
                # smaller batches are for where larger ones do not run
                break
            key = trial.key(bench.name, bench.new_tokens)
            if key not in results.trials:
                results.trials[key] = bench.run(trial)
                results.write()
            keys.append(key)
            tried.append(results.trials[key])
    except MoeplanError as error:
        reason = str(error)
    ran = [one for one in tried if one["reason"] is None]
    best: Document = max(ran, key=lambda one: one["tokens_per_second"], default={})
    if not ran and tried:
        reason = "; ".join(f"{one['setting']}: {one['reason']}" for one in tried)
    return {
        "name": cell.name,
        "checkpoint": cell.checkpoint,
        "cap_fraction": cell.cap / 100,
        "cap_bytes": None if cell.engine in (IN_MEMORY, "transformers") else cap_bytes,
        "requests": cell.requests,
        "throttle_bytes_per_second": cell.disk,
        "engine": cell.engine,
        "prompt_tokens": bench.prompt_tokens,
        "new_tokens": bench.new_tokens,
        "tokens_per_second": best.get("tokens_per_second"),
        "decode_tokens_per_second": best.get("decode_tokens_per_second"),
        "bytes_read": best.get("bytes_read"),
        "limit_ratio": limit_ratio(best, results, cell, bench),
        "bubble_inter_share": best.get("bubble_inter_share"),
        "bubble_intra_share": best.get("bubble_intra_share"),
        "load_seconds": best.get("load_seconds"),
        "agreement": best.get("agreement"),
        "load_average": best.get("load_average"),
        "others_cores": best.get("others_cores"),
        "setting": best.get("setting"),
        "reason": reason,
        "tried": keys,
    }


def limit_ratio(best: Document, results: Results, cell: Cell, bench: Bench) -> float | None:
    """See the module; None where something of it is not known."""
    # a cell's in-memory run does not depend on cap and disk
    same = (cell.checkpoint, cell.requests, bench.new_tokens, IN_MEMORY)
    keys = ("checkpoint", "requests", "new_tokens", "engine")
    alone = [one for one in results.cells if tuple(one[key] for key in keys) == same]
    rate = alone[-1]["decode_tokens_per_second"] if alone else None
    if not (best.get("bandwidth_alone") and best.get("clairvoyant_bytes") is not None and rate):
        return None
    compute = cell.requests * (bench.new_tokens - 1) / rate
    copies = best["clairvoyant_bytes"] / best["bandwidth_alone"]
    return float(best["decode_seconds"] / max(copies, compute))


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    results = ROOT / "benchmarks" / "results" / "executor.json"
    parser.add_argument(
        "--work", type=Path, required=True, help="folder that stays: 15 GB a checkpoint"
    )
    parser.add_argument("--cells", default="", help="regular expression: cells whose name has it")
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument(
        "--minutes", type=float, help="begin no cell after that; go on another time"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of one run")
    parser.add_argument("--peers-python", type=Path, help="has benchmarks/peers/requirements.txt")
    parser.add_argument("--layers", type=int, help="of each checkpoint, for a quick look")
    parser.add_argument("--list", action="store_true", help="name the cells and run nothing")
    parser.add_argument("--out", type=Path, default=results, help="JSON; a table beside it")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the grid, cell by cell."""
    options = _options(argv)
    cells = [cell for cell in grid() if re.search(options.cells, cell.name)]
    if options.list or not cells:
        print("\n".join(cell.name for cell in cells) or f"no cell has {options.cells!r}")
        return 0 if cells else 2
    # what runs under a cap ends with this process, however that ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.work.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.new_tokens, options.prompt_tokens)
    benches: dict[str, Bench] = {}
    started = time.monotonic()
    for cell in cells:
        if results.has(cell.name, options.new_tokens):
            continue
        if options.minutes and time.monotonic() - started > 60 * options.minutes:
            print(f"not begun: {cell.name} and what follows it")
            break
        config, layers = CHECKPOINTS[cell.checkpoint]
        bench = benches.get(cell.checkpoint) or Bench(
            cell.checkpoint,
            config,
            options.layers or layers,
            options.work,
            prompt_tokens=options.prompt_tokens,
            new_tokens=options.new_tokens,
            seconds=options.seconds,
            peers_python=options.peers_python,
        )
        benches[cell.checkpoint] = bench
        begun = time.monotonic()
        cap_bytes = bench.weights_bytes * cell.cap // 100
        # one profile serves all caps
        budget = bench.weights_bytes * max(CAPS) // 100 - PROCESS_BYTES
        found = measure(bench, cell, results, cap_bytes, budget)
        results.add(found)
        rate = found["tokens_per_second"]
        said = found["reason"] if rate is None else f"{rate:.2f} tokens/s"
        print(f"{cell.name}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"executor: {error}")
