"""How far schedules are from the bound, on held-out routing too, and what the decomposition loses.

    python benchmarks/solvers.py [--cells none|few|default|all] [--solver cpsat] [--work 0.5]
        [--small 30] [--routing FOLDER] [--out FOLDER]

What the cells are, ``benchmarks.solver_cells`` says. Columns:

- gap: (replayed - bound) / replayed on the fitted passes. The bound is the clairvoyant one,
  recomputed in integers from its multipliers; so the gap holds the price of not knowing the
  routing, too, and is the most that any predictor could earn.
- held out: the same schedule on other sequences, time a pass, against fitted.
- beats: time saved on the held-out passes against the best of the strategies.
- seconds of processor time and of wall clock, and the peak memory of the process.

Finished cells in ``--out`` are kept, so that a run can be resumed. Small instances are compared
with the joint model of everything (``solvers.joint``).
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import json
import os
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

from benchmarks.solver_cells import Cell, build, grid, small
from solvers.checker import check_proofs, check_schedule
from solvers.joint import solve_joint
from solvers.outcome import Stop
from solvers.registry import BACK_ENDS, Feature, Limits, load
from solvers.replay import measure, replay

_COLUMNS = ("cell", "gap", "held out", "beats", "best baseline", "cpu s", "wall s", "MiB")


def solve_cell(cell: Cell, solver: str, work: float, routing: Path | None) -> dict[str, Any]:
    """One row."""
    fitted, held_out = build(cell, routing)
    started, cpu = time.monotonic(), time.process_time()
    outcome = load(solver).solve(fitted, Limits(work=work, seconds=600.0))
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    if outcome.schedule is None or outcome.bound is None:
        raise SystemExit(f"{cell.name}: {solver} found no schedule or no bound")
    faults = [*check_schedule(fitted, outcome.schedule), *check_proofs(fitted, outcome.bound)]
    if faults:
        raise SystemExit(f"{cell.name}: {faults[0]}")
    value = measure(fitted, replay(fitted, outcome.schedule))
    other = measure(held_out, replay(held_out, outcome.schedule)) / held_out.scenarios.passes
    baselines = {}
    for name in BACK_ENDS:
        backend = load(name)
        if Feature.RUNNABLE not in backend.features or Feature.BOUND in backend.features:
            continue
        found = backend.solve(fitted, Limits()).schedule
        if found is not None:
            baselines[name] = measure(held_out, replay(held_out, found))
    best = min(baselines, key=lambda name: baselines[name])
    each = value / fitted.scenarios.passes
    return {
        **asdict(cell),
        "name": cell.name,
        "label": cell.label,
        "gap": (value - outcome.bound.value_ns) / value,
        "bound_class": outcome.bound.policies,
        "held_out": other / each - 1,
        "beats": 1 - other * held_out.scenarios.passes / baselines[best],
        "best_baseline": best,
        "cpu_seconds": cpu,
        "wall_seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stop": outcome.stop.value,
    }


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as text."""
    return (
        row["name"],
        f"{row['gap']:.2%}",
        f"{row['held_out']:+.2%}",
        f"{row['beats']:.1%}",
        row["best_baseline"],
        f"{row['cpu_seconds']:.1f}",
        f"{row['wall_seconds']:.1f}",
        f"{row['peak_mib']:.0f}",
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Median and worst by size of the group."""
    text = []
    for group in sorted({row["group"] for row in rows}):
        own = [row for row in rows if row["group"] == group]
        gaps = [row["gap"] for row in own]
        drift = [row["held_out"] for row in own]
        text.append(
            f"{group} sequences, {len(own)} cells: gap median {statistics.median(gaps):.2%}, worst "
            f"{max(gaps):.2%}; held out against fitted median {statistics.median(drift):+.2%}, "
            f"worst {max(drift):+.2%}"
        )
    return text


def losses(count: int, solver: str) -> str:
    """The decomposition against the joint model."""
    found = []
    for seed in range(count):
        problem = small(seed)
        joint = solve_joint(problem, Limits(work=5.0, seconds=60.0))
        if joint.stop is not Stop.OPTIMAL or joint.value_ns is None:
            continue
        outcome = load(solver).solve(problem, Limits(work=0.1, seconds=60.0))
        if outcome.schedule is not None and joint.value_ns:
            value = measure(problem, replay(problem, outcome.schedule))
            found.append(value / joint.value_ns - 1)
    if not found:
        return "no small instance was solved"
    return (
        f"{len(found)} small instances against the joint model: loss median "
        f"{statistics.median(found):.2%}, worst {max(found):.2%}, "
        f"{sum(loss == 0 for loss in found)} equal"
    )


def write(folder: Path, rows: list[dict[str, Any]], text: list[str], settings: str) -> None:
    """Results for people and for machines."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "solvers.json").write_text(json.dumps({"settings": settings, "rows": rows}, indent=1))
    table = [_COLUMNS, ("---",) * len(_COLUMNS), *(line(row) for row in rows)]
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    notes = "\n".join(f"- {entry}" for entry in text)
    kinds = "\n".join(
        f"- {label}" for label in sorted({f"{r['source']}: {r['label']}" for r in rows})
    )
    (folder / "solvers.md").write_text(
        f"# Solvers against bounds\n\n{settings}\n\n{notes}\n\n{kinds}\n\n{body}\n"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", choices=("none", "few", "default", "all"), default="few")
    parser.add_argument("--solver", default="cpsat")
    parser.add_argument("--work", type=float, default=0.5)
    parser.add_argument("--small", type=int, default=30)
    parser.add_argument("--routing", type=Path, default=os.environ.get("MOEPLAN_ROUTING"))
    parser.add_argument("--out", type=Path, help="folder for solvers.json and solvers.md")
    options = parser.parse_args()
    routing = Path(options.routing) if options.routing else None
    settings = f"{options.solver}, work limit {options.work}"
    rows: list[dict[str, Any]] = []
    kept = options.out / "solvers.json" if options.out else None
    if kept is not None and kept.exists():
        old = json.loads(kept.read_text())
        rows = old["rows"] if old["settings"] == settings else []
    print(settings)
    done = {row["name"] for row in rows}
    for cell in grid(options.cells, routing):
        if cell.name in done:
            continue
        # a process of its own for each cell, so that its peak memory is its own
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            row = pool.submit(solve_cell, cell, options.solver, options.work, routing).result()
        rows.append(row)
        print("  ".join(f"{part:>9}" for part in line(row)), flush=True)
        if options.out:
            write(options.out, rows, summary(rows), settings)
    text = summary(rows)
    if options.small:
        text.append(losses(options.small, options.solver))
    print("\n".join(text))
    if options.out and rows:
        write(options.out, rows, text, settings)


if __name__ == "__main__":
    main()
