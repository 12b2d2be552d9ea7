"""The experiments of the two papers that moeplan begins with, in kind, on this machine.

    python benchmarks/seeds.py                     # all of it, with a throttled disk: root only
    python benchmarks/seeds.py --only ablation --throttle 400000000

After Klotski (arXiv 2502.06888): ``throughput`` against n and b; ``ablation``, bubbles with its
parts one after another; ``choice``, the n and b that are planned against the best measured;
``prefetch``, how right each layer's predictors are. After "Towards MoE Deployment" (arXiv
2303.06182): ``buffers``, misses by size and eviction, from the trace and in runs; ``balance`` of
the placements of experts on devices.

Weights of ``mixtral`` and ``olmoe`` are random, in those models' shapes, and few layers of them;
routing is looked at on the trained example alone. The kernel holds the disk to a bandwidth, so that
runs can be repeated; without root, ``--disk-bandwidth`` paces reads instead. Checkpoints and
profiles stay in ``--work``. What another run of ``--only`` measured stays in the results.
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
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import placement, seeds_runs, seeds_traces
from benchmarks.prediction import QUICK
from benchmarks.record import Record
from benchmarks.seeds_table import markdown
from benchmarks.throttle import throttled
from benchmarks.writing import write_result
from executor import pack
from executor.synth import write_synthetic
from planner.documents import Workload
from planner.placement import scenes_of
from planner.profiles import Profile, load_profile
from planner.routing_sources import trace_source
from profiler import profile_checkpoint
from solvers.errors import BudgetError, MoeplanError

Row = dict[str, Any]

EXAMPLE = "pycode-moe"
BULK = {
    "mixtral": (ROOT / "examples" / "configs" / "bulk-mixtral.json", 3),
    "olmoe": (ROOT / "benchmarks" / "configs" / "bulk-olmoe.json", 3),
}
"""Configurations, and layers that make about half a gigabyte."""
PROFILED = {EXAMPLE: 2.0, "mixtral": 0.7, "olmoe": 0.7}
"""Memory of each profile, as a share of the store; the example's lets routers look ahead."""
CHOICES = {
    "mixtral": ((0.35, 0.7), (8, 64)),
    "olmoe": ((0.4, 0.7), (64,)),
    EXAMPLE: ((0.5, 1.0), (4, 16)),
}
"""Budgets (shares of the store) and requests of ``choice``."""
BATCHES, SIZES = (1, 2, 4, 8), (2, 8)
"""n and b of ``throughput``."""
ABLATION = (4, 8)
"""n and b."""
GROUPS = (1, 8)
"""Sequences that are decoded together, where only the trace is looked at."""
DEVICES = (2, 4, 8)
THROTTLE = 800_000_000


@dataclass
class Bench:
    """Checkpoints and profiles, made where they are missing, and how cells are run."""

    options: argparse.Namespace

    def profile(self, name: str) -> Profile:
        """Of a checkpoint, measured on the disk as it is held."""
        out = self.options.work / f"{name}-profile-{self.options.held}"
        if not (out / "profile.json").exists():
            begun = time.monotonic()
            profile_checkpoint(
                self._checkpoint(name),
                out,
                memory_bytes=int(self.size_bytes(name) * PROFILED[name]),
                store=self._store(name),
                paced_bytes_per_second=self.options.disk_bandwidth,
                seed=self.options.seed,
                effort=QUICK if self.options.quick else None,
            )
            print(f"# {name}: profiled in {time.monotonic() - begun:.0f} s", flush=True)
        return load_profile(out)

    def size_bytes(self, name: str) -> int:
        """Of a checkpoint's store."""
        return pack(self._checkpoint(name), self._store(name)).size_bytes

    def case(self, name: str, share: float, workload: Workload) -> seeds_runs.Case:
        """One cell."""
        options = self.options
        memory_bytes = int(self.size_bytes(name) * share)
        paced = options.disk_bandwidth
        return seeds_runs.Case(
            self.profile(name), workload, memory_bytes, options.runs, paced, options.seed
        )

    @property
    def bulk(self) -> tuple[str, ...]:
        """Checkpoints whose copies take time."""
        return (EXAMPLE,) if self.options.quick else tuple(BULK)

    def _store(self, name: str) -> Path:
        store: Path = self.options.work / f"{name}-store"
        return store

    def _checkpoint(self, name: str) -> Path:
        if name == EXAMPLE:
            return ROOT / "examples" / EXAMPLE
        folder: Path = self.options.work / name
        if not (folder / "config.json").exists():
            config, layers = BULK[name]
            write_synthetic(config, folder, layers=layers, seed=0)
        return folder


# --- experiments: rows of one table each --------------------------------------------------------


def throughput(bench: Bench) -> list[Row]:
    """tokens/s against n and b, of one checkpoint within one budget."""
    name = bench.bulk[0]
    case = bench.case(name, 0.4 if name in BULK else 1.0, Workload(1, 32, 8))
    return [{"checkpoint": name, **row} for row in seeds_runs.throughput(case, BATCHES, SIZES)]


def ablation(bench: Bench) -> list[Row]:
    """Klotski's parts, one after another."""
    (n, b), name = ABLATION, bench.bulk[0]
    case = bench.case(name, 0.7 if name in BULK else 2.0, Workload(n * b, 64, 8))
    return [{"checkpoint": name, **row} for row in seeds_runs.ablation(case, n, b)]


def choice(bench: Bench) -> list[Row]:
    """The planned n and b against those beside it, on every checkpoint, budget and workload."""
    rows = []
    for name in dict.fromkeys((*bench.bulk, EXAMPLE)):
        for share, requests in itertools.product(*CHOICES[name]):
            # the example is quick: more tokens, so that its runs last some seconds, too
            workload = Workload(requests, *((64, 8) if name in BULK else (32, 64)))
            try:
                found = seeds_runs.chosen(bench.case(name, share, workload))
            except BudgetError as error:
                print(f"# {name} {share:.0%}, {requests} requests: {error}")
                continue
            said = seeds_runs.verdict(found)
            cell = {"checkpoint": name, "memory": share, "requests": requests}
            rows.append({**cell, **said, "measured": found})
            print(
                f"# {name} {share:.0%}, {requests} requests: {said['chosen']} chosen, "
                f"{said['best']} best, {said['short']:.1%} short",
                flush=True,
            )
    return rows


def prefetch(bench: Bench) -> list[Row]:
    """How right predictors are, layer by layer."""
    profile = bench.profile(EXAMPLE)
    layers, seed = profile.routing.moe_layers, bench.options.seed
    experts = profile.routing.experts
    return seeds_traces.accuracies(profile.arrays, experts, layers, GROUPS, seed)


def buffers(bench: Bench) -> list[Row]:
    """Misses by size of the buffer and by what it gives up: from the trace, then in runs."""
    profile = bench.profile(EXAMPLE)
    experts = profile.routing.experts
    rows: list[Row] = [
        {"from": "trace", **row} for row in seeds_traces.buffers(profile.arrays, experts, GROUPS)
    ]
    for group in GROUPS:
        # memory is what the buffer takes, not what a budget leaves
        case = bench.case(EXAMPLE, 20.0, Workload(group, 32, 32))
        sizes = [experts * part // 8 for part in (2, 4, 6)]
        found = seeds_runs.buffered(case, sizes, seeds_traces.EVICTIONS[:-1])
        rows += [{"from": "runs", **row} for row in found]
    return rows


def balance(bench: Bench) -> list[Row]:
    """The fullest device's load, as a multiple of an even share, on sequences not fitted on."""
    profile = bench.profile(EXAMPLE)
    source = trace_source(profile.routing, profile.arrays, EXAMPLE)
    rows: list[Row] = []
    for batch in GROUPS:
        scenes = scenes_of(source, scenarios=256, judged=1024, batch=batch, seed=bench.options.seed)
        for devices in DEVICES:
            cell = placement.Cell(EXAMPLE, scenes, devices, 0)
            found = placement.run(cell, 1.0 if bench.options.quick else 5.0)
            loads = {
                method: found[method]["held_out"] / found["even"]
                for method in placement.METHODS
                if method in found
            }
            rows.append({"sequences": batch, "devices": devices, **loads})
    return rows


EXPERIMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "prefetch": prefetch,
    "buffers": buffers,
    "balance": balance,
    "throughput": throughput,
    "ablation": ablation,
    "choice": choice,
}


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    results = ROOT / "benchmarks" / "results" / "seeds.json"
    parser.add_argument("--only", nargs="+", choices=tuple(EXPERIMENTS), default=[])
    parser.add_argument("--runs", type=int, help="of each plan (3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the trained example, one run each")
    parser.add_argument("--throttle", type=int, help=f"bytes/s, by the kernel ({THROTTLE:,})")
    parser.add_argument("--disk-bandwidth", type=int, help="bytes/s, by waiting: no root is needed")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "seeds")
    parser.add_argument(
        "--out", type=Path, help="JSON; a page beside it (--quick: in --work, which nobody quotes)"
    )
    options = parser.parse_args(argv)
    if options.out is None:
        options.out = options.work / "quick.json" if options.quick else results
    if options.runs is None:
        options.runs = 1 if options.quick else 3
    if options.runs < 1:
        parser.error("--runs: give 1 or more")
    if options.disk_bandwidth is None and options.throttle is None:
        options.throttle = THROTTLE
    paced = options.disk_bandwidth
    options.held = f"{options.throttle or 'free'}{f'-paced-{paced}' if paced else ''}"
    options.held += "-quick" if options.quick else ""
    return options


def main(argv: list[str] | None = None) -> int:
    """Run experiments, and write what they found after each."""
    options = _options(argv)
    # the disk is let go, however this ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.work.mkdir(parents=True, exist_ok=True)
    known: Row = {}
    if options.only and options.out.exists():
        known = json.loads(options.out.read_text(encoding="utf-8"))
    budget = f"{options.runs} runs of each plan, the median counts"
    record = Record.begin(seeds=(options.seed,), budget=budget, before=known.get("about"))
    body: Row = {"about": {}, "experiments": known.get("experiments", {})}
    bench = Bench(options)
    for name in options.only or EXPERIMENTS:
        begun = time.monotonic()
        with throttled(options.throttle, options.work):
            rows = EXPERIMENTS[name](bench)
        minutes = (time.monotonic() - begun) / 60
        body["experiments"][name] = {
            "minutes": round(minutes, 2),
            "load_average": round(os.getloadavg()[0], 2),
            "runs": options.runs,
            "seed": options.seed,
            "quick": options.quick,
            "throttle_bytes_per_second": options.throttle,
            "paced_bytes_per_second": options.disk_bandwidth,
            "rows": rows,
        }
        body["about"] = record.about()
        write_result(options.out, body, markdown(body))
        print(f"# {name}: {len(rows)} rows in {minutes:.1f} minutes", flush=True)
    print(markdown(body))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"seeds: {error}")
