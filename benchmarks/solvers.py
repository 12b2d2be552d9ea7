"""How far schedules are from the bound, on held-out routing too, and what the decomposition loses.

    python benchmarks/solvers.py [--cells none|shapes|few|default|all] [--solver cpsat] [--work 0.5]
        [--small 30] [--routing FOLDER] [--out FOLDER]

What the cells are, ``benchmarks.solver_cells`` says. Columns:

- gap: (objective - bound) / objective on the fitted passes, against the bound of the class
  ``plan``, recomputed in integers from its multipliers. The objective is the replay's time with the
  correction of ``solvers.variate``, so that neither side gains from what these passes demand by
  chance, whether it is copied on demand or ahead. A schedule that caches is none of that class:
  its gap and its price are no proof, and the summary names it.
- price: of information, likewise against the bound for those that know the routing, who are not
  charged for what they copy ahead: the most that a predictor could earn.
- held out: the same schedule on other sequences, time a pass, against the fitted objective.
- won: whose schedule is the best on the choosing passes; beats: the time that it saves on the
  judging passes against the best of the strategies there, with the paired 95% interval.
- seconds of processor time of the search and of both bounds, and the peak memory of the process.

Finished cells in ``--out`` are kept, so that a run can be resumed. Small instances are compared
with the joint model of everything (``solvers.joint``), and with the best of all policies
(``solvers.policies``); a schedule that caches may be better than those.
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
import math
import os
import platform
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.record import Record
from benchmarks.solver_cells import Cell, build, grid, several, small
from benchmarks.writing import write_result
from solvers.checker import check_proofs, check_schedule
from solvers.joint import solve_joint
from solvers.outcome import Stop
from solvers.policies import best_policy
from solvers.problem import Problem
from solvers.registry import BACK_ENDS, Feature, Limits, load
from solvers.relaxation import plan_bound
from solvers.replay import measure, objective, replay
from solvers.variate import corrected

_COLUMNS = (
    "cell",
    "passes",
    "gap",
    "price",
    "held out",
    "beats",
    "best baseline",
    "won",
    "cpu s",
    "bound s",
    "MiB",
)
_BLOCK = 8
"""Passes that share their sequences: the unit of the paired interval."""


def solve_cell(cell: Cell, solver: str, work: float, routing: Path | None) -> dict[str, Any]:
    """One row."""
    plain, judge, choose = build(cell, routing)
    fitted = corrected(plain)
    started, cpu = time.monotonic(), time.process_time()
    outcome = load(solver).solve(fitted, Limits(work=work, seconds=600.0))
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    proving = time.process_time()
    bound, wide = plan_bound(fitted)
    proving = time.process_time() - proving
    if outcome.schedule is None or bound is None or wide is None:
        raise SystemExit(f"{cell.name}: {solver} found no schedule, or there is no bound")
    # who knows the demand does not pay for it
    free = fitted.replace(price=None)
    proofs = (*check_proofs(fitted, bound), *check_proofs(free, wide))
    faults = [*check_schedule(fitted, outcome.schedule), *proofs]
    if faults:
        raise SystemExit(f"{cell.name}: {faults[0]}")
    value, known = objective(fitted, outcome.schedule), objective(free, outcome.schedule)
    entries = {solver: outcome.schedule}
    for name in BACK_ENDS:
        backend = load(name)
        if Feature.RUNNABLE not in backend.features or Feature.BOUND in backend.features:
            continue
        found = backend.solve(fitted, Limits()).schedule
        if found is not None:
            entries[name] = found
    chosen = {name: measure(choose, replay(choose, one)) for name, one in entries.items()}
    # the first of equals, and that is the solver
    won = min(chosen, key=lambda name: chosen[name])
    judged = {name: replay(judge, one).pass_ns for name, one in entries.items()}
    best = min((name for name in judged if name != solver), key=lambda name: judged[name].sum())
    own, other = (float(judged[name].mean()) for name in (won, best))
    each = value / fitted.scenarios.passes
    return {
        **asdict(cell),
        "solver": solver,
        "name": cell.name,
        "label": cell.label,
        "fitted_passes": fitted.scenarios.passes,
        "judging_passes": judge.scenarios.passes,
        "gap": (value - bound.value_ns) / value,
        "price_of_information": (known - wide.value_ns) / known,
        "bound_class": bound.policies,
        "eviction": outcome.schedule.eviction,
        "corrected_by": value / measure(plain, replay(plain, outcome.schedule)) - 1,
        "held_out": float(judged[solver].mean()) / each - 1,
        "won": won,
        "beats": 1 - own / other,
        "paired_interval": _interval(judged[won] - judged[best]) / other,
        "best_baseline": best,
        "cpu_seconds": cpu,
        "wall_seconds": seconds,
        "bound_cpu_seconds": proving,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stop": outcome.stop.value,
        "load_average": os.getloadavg()[0],
    }


def _interval(differences: npt.NDArray[np.int64]) -> float:
    """Half of the 95% interval of the mean of paired differences, by blocks of passes."""
    blocks = [
        float(differences[at : at + _BLOCK].mean()) for at in range(0, len(differences), _BLOCK)
    ]
    return 1.96 * statistics.stdev(blocks) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.0


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as text."""
    return (
        row["name"],
        str(row["fitted_passes"]),
        f"{row['gap']:.2%}",
        f"{row['price_of_information']:.2%}",
        f"{row['held_out']:+.2%}",
        f"{row['beats']:.1%} ± {row['paired_interval']:.1%}",
        row["best_baseline"],
        row["won"],
        f"{row['cpu_seconds']:.1f}",
        f"{row['bound_cpu_seconds']:.1f}",
        f"{row['peak_mib']:.0f}",
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Median and worst by size of the group, and by shape."""
    text = []
    kinds = [("group", "sequences"), ("layers", "layers")]
    for key, word in kinds:
        for one in sorted({row[key] for row in rows}):
            own = [row for row in rows if row[key] == one]
            text.append(f"{one} {word}, {len(own)} cells: {_spread(own)}")
    worse = [row["name"] for row in rows if row["beats"] < -max(row["paired_interval"], 0.005)]
    text.append(
        f"worse than the best baseline by more than the interval and 0.5%: {', '.join(worse) or 0}"
    )
    caching = [f"{row['name']} ({row['eviction']})" for row in rows if row["eviction"] != "none"]
    text.append(
        "the schedule caches, which the bound is not for, so that its gap and price are no proof: "
        f"{', '.join(caching) or 0}"
    )
    won = [f"{row['name']} ({row['won']})" for row in rows if row["won"] != row["solver"]]
    text.append(f"a baseline won on the choosing set: {', '.join(won) or 0}")
    return text


def _spread(rows: list[dict[str, Any]]) -> str:
    parts = []
    for name, word in (
        ("gap", "gap"),
        ("price_of_information", "price of information"),
        ("held_out", "held out"),
    ):
        values = [row[name] for row in rows]
        parts.append(f"{word} median {statistics.median(values):.2%}, worst {max(values):.2%}")
    return "; ".join(parts)


def losses(count: int, solver: str) -> list[str]:
    """The decomposition against the joint model, the search against the best of all policies."""
    joint, policies = [], []
    for seed in range(count):
        problem = small(seed)
        solved = solve_joint(problem, Limits(work=5.0, seconds=60.0))
        if solved.stop is Stop.OPTIMAL and solved.value_ns:
            joint.append(_loss(problem, solver, solved.value_ns))
        problem = several(seed)
        best = best_policy(problem)
        if best is not None:
            policies.append(_loss(problem, solver, best[1]))
    return [
        _lost("small instances against the joint model, which knows the demand", joint),
        _lost("against the best of all policies without caching, held back or not", policies),
    ]


def _loss(problem: Problem, solver: str, best: int) -> float:
    outcome = load(solver).solve(problem, Limits(work=0.1, seconds=60.0))
    if outcome.schedule is None:
        raise SystemExit(f"{solver} found no schedule for a small instance")
    return measure(problem, replay(problem, outcome.schedule)) / best - 1


def _lost(what: str, found: list[float]) -> str:
    if not found:
        return f"{what}: none was solved"
    return (
        f"{len(found)} {what}: loss median {statistics.median(found):.2%}, worst {max(found):.2%}, "
        f"{sum(loss == 0 for loss in found)} equal, {sum(loss < 0 for loss in found)} better"
    )


def write(
    folder: Path, rows: list[dict[str, Any]], text: list[str], settings: str, record: Record
) -> None:
    """Results for people and for machines."""
    body = {"about": record.about(), "settings": settings, "summary": text, "rows": rows}
    table = [_COLUMNS, ("---",) * len(_COLUMNS), *(line(row) for row in rows)]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    notes = "\n".join(f"- {entry}" for entry in text)
    load = [row["load_average"] for row in rows]
    notes += f"\n- load average of the machine meanwhile: {min(load):.1f} to {max(load):.1f}"
    kinds = "\n".join(
        f"- {label}" for label in sorted({f"{r['source']}: {r['label']}" for r in rows})
    )
    page = f"# Solvers against bounds\n\n{settings}\n\n{notes}\n\n{kinds}\n\n{lines}\n"
    write_result(folder / "solvers.json", body, page)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cells", choices=("none", "shapes", "few", "default", "all"), default="few"
    )
    parser.add_argument("--solver", default="cpsat")
    parser.add_argument("--work", type=float, default=0.5)
    parser.add_argument("--small", type=int, default=30)
    parser.add_argument("--routing", type=Path, default=os.environ.get("MOEPLAN_ROUTING"))
    parser.add_argument("--out", type=Path, help="folder for solvers.json and solvers.md")
    options = parser.parse_args()
    routing = Path(options.routing) if options.routing else None
    settings = (
        f"{options.solver}, work limit {options.work}, seed 0, {platform.machine()}, "
        f"{os.cpu_count()} CPUs, objective corrected for what few passes demand by chance"
    )
    rows: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    kept = options.out / "solvers.json" if options.out else None
    if kept is not None and kept.exists():
        old = json.loads(kept.read_text())
        if old["settings"] == settings:
            # older rows do not say whether their schedules cache
            rows = [row for row in old["rows"] if "eviction" in row]
            before = old.get("about", {})
    record = Record.begin(budget=f"work limit {options.work:g} a search", before=before)
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
            write(options.out, rows, summary(rows), settings, record)
    text = summary(rows)
    if options.small:
        text += losses(options.small, options.solver)
    print("\n".join(text))
    if options.out and rows:
        write(options.out, rows, text, settings, record)


if __name__ == "__main__":
    main()
