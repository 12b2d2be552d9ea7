"""Fit the roofline's efficiencies, and say how far off they are on what was held out.

    python benchmarks/roofline.py [--write]

Limits of data sheets are held against measurements of the same parts in the catalogue, each part
predicted from all others; operations against those that ``benchmarks/roofline_gpu.py`` timed on an
H200, every other one held out. How far whole runs lie from all this, ``benchmarks/published.py``
says. With ``--write`` the numbers that planning uses (``planner/data/efficiencies.json``) are
replaced. Writes benchmarks/results/roofline.json.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import dataclasses
import json
import statistics
from collections import defaultdict
from typing import Any

from benchmarks.record import Record
from benchmarks.writing import write_result
from planner.catalogue import Row, figure, named_machine, rows
from planner.roofline import Efficiency, Roofline

ROOT = Path(__file__).resolve().parents[1]
TIMED = ROOT / "benchmarks" / "results" / "roofline_h200.json"
PUBLISHED = ROOT / "benchmarks" / "results" / "published.json"
RESULT = ROOT / "benchmarks" / "results" / "roofline.json"
TARGET = ROOT / "planner" / "data" / "efficiencies.json"
HIDDEN, INNER, KV, VOCAB = 4096, 14336, 1024, 32000
FLEXGEN_T4_PREFILL = 21.24e12
"""FLOP/s of FlexGen's authors, fitted to their whole runs of OPT on a T4 (experimental/
cost_model.py of FMInference/FlexLLMGen, commit 004ffef8): ``mm_flops_p``."""


def ninth(values: list[float]) -> float:
    """The 90th percentile."""
    return statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else 0.0


def shares(quantities: tuple[str, ...]) -> dict[str, list[float]]:
    """Part -> measured / data sheet of the same quantity, one for each measurement."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows():
        if row.quantity in quantities:
            found[row.name, row.quantity].append(row)
    result: dict[str, list[float]] = defaultdict(list)
    for (name, _), several in found.items():
        limits = [row.value for row in several if row.kind == "spec"]
        values = [row.value / limits[0] for row in several if limits and row.kind == "measured"]
        if values:
            result[name] += values
    return result


def fitted_share(quantities: tuple[str, ...], what: str) -> Efficiency:
    """The median over parts of what is reached; each part is predicted from the others."""
    by_part = shares(quantities)
    middle = {name: statistics.median(values) for name, values in by_part.items()}
    errors = []
    for name, values in by_part.items():
        others = [value for other, value in middle.items() if other != name]
        guess = statistics.median(others) if others else middle[name]
        errors += [abs(guess / value - 1) for value in values]
    return Efficiency(
        statistics.median(middle.values()),
        ninth(errors),
        statistics.median(errors),
        sum(map(len, by_part.values())),
        f"{what}: measured / data sheet of {', '.join(sorted(by_part))}",
    )


def work_of(row: dict[str, Any]) -> tuple[str, float, float] | None:
    """Kind, flops and bytes of one timed operation."""
    kind, count = row["operation"], row.get("rows", 0)
    if kind == "expert":
        values = 3 * HIDDEN * INNER
        return kind, 2 * values * count, 2 * values + count * 8 * (HIDDEN + INNER)
    if kind.startswith("attention"):
        second = row["second"]
        prefill = kind.endswith("prefill")
        tokens = count * (second if prefill else 1)
        pairs = count * (second * second / 2 if prefill else second)
        values = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV
        moved = 2 * values + count * second * KV * 4 + tokens * 20 * HIDDEN
        return "attention", 2 * values * tokens + 4 * pairs * HIDDEN, moved
    if kind in ("router", "head"):
        values = HIDDEN * (8 if kind == "router" else VOCAB)
        return kind, 2 * values * count, 2 * values + count * (values / HIDDEN + 2 * HIDDEN) * 2
    return None


def fit_operations(timed: list[dict[str, Any]]) -> tuple[Efficiency, Efficiency, list[str]]:
    """The share of the best product, and the time of a call, by a search over both."""
    h200 = named_machine("h200")
    peak = h200.compute_flops_per_second["bfloat16"].value
    memory = h200.device_bandwidth_bytes_per_second.value
    known = [(row, work) for row in timed if (work := work_of(row)) is not None]

    def error(
        entry: tuple[dict[str, Any], tuple[str, float, float]], op: float, call: float
    ) -> float:
        row, (kind, flops, moved) = entry
        guess = Roofline(peak * op, memory, call, 0.0, "fitted").ns(kind, flops, moved)
        return float(guess / row["median_ns"] - 1)

    fit, held = known[::2], known[1::2]
    grid = [(op / 100, call * 250.0) for op in range(50, 101) for call in range(81)]
    op, call = min(grid, key=lambda one: sum(abs(error(entry, *one)) for entry in fit))
    errors = [abs(error(entry, op, call)) for entry in held]
    said = f"{len(fit)} operations of a Mixtral layer on an H200, {len(held)} others held out"
    lines = [f"{entry[0]['operation']} {error(entry, op, call):+.0%}" for entry in held]
    both = (ninth(errors), statistics.median(errors), len(fit), said)
    return Efficiency(op, *both), Efficiency(call, *both), lines


def main() -> None:
    """Fit, print, and with ``--write`` store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    record = Record.begin(seeds=(), budget="none", timed=False)
    timed = json.loads(TIMED.read_text())["rows"]
    operation, launch, lines = fit_operations(timed)
    best = figure("gpu", "t4", "compute_float16")
    assert best is not None  # noqa: S101
    share = FLEXGEN_T4_PREFILL / best.value
    found = {
        "matmul": fitted_share(("compute_bfloat16", "compute_float16"), "best product"),
        "memory": fitted_share(("device_bandwidth",), "memory"),
        "link": fitted_share(("link",), "host to device"),
        "disk": fitted_share(("disk",), "large reads"),
        "operation": operation,
        "launch": launch,
        "whole_run": Efficiency(
            min(share / operation.value, 1.0),
            1 - min(share / operation.value, 1.0),
            None,
            1,
            "FlexGen's prefill on a T4, fitted by its authors to whole runs of OPT, over the best "
            "product there; one machine, so that the spread is the distance from 1",
        ),
    }
    factors = [row["factor"] - 1 for row in json.loads(PUBLISHED.read_text())["rows"]]
    found["system"] = Efficiency(
        1.0,
        ninth(factors),
        statistics.median(factors),
        len(factors),
        "published runs of MoE-Lightning and FlexGen against benchmarks/published.py",
    )
    for name, one in found.items():
        error = "none held out" if one.held_out_error is None else f"{one.held_out_error:.1%}"
        print(
            f"{name:10} {one.value:9.3f}  held out: median error {error}, 90% within "
            f"{one.spread:.1%}; {one.fitted_on}"
        )
    print("operations held out: " + ", ".join(lines))
    fits = {name: dataclasses.asdict(one) for name, one in found.items()}
    write_result(RESULT, {"about": record.about(), "efficiencies": fits, "held_out": lines})
    if asked.write:
        body = {name: dataclasses.asdict(one) for name, one in found.items()}
        for one in body.values():
            for key in ("value", "spread", "held_out_error"):
                one[key] = one[key] if one[key] is None else round(one[key], 4)
        TARGET.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
