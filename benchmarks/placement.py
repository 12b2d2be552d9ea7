"""Placement methods against each other on held-out batches of real routing statistics.

    python benchmarks/placement.py [--data ../shared/data] [--time-limit 30] [--only TEXT]

Each cell draws scenarios to fit and, from other sequences (or domains), scenarios to judge by;
every method sees the fitted ones only. ``minus best`` is the paired mean difference of the fullest
device's load on the judging scenarios between cpsat and the best other method, with its 95%
interval: below 0 is better. Statistics without sequences (heat, counts) are drawn as independent
tokens, which leaves nothing but their means to learn. Writes benchmarks/results/placement.*.

Where each text domain is left out in turn, what varies is the domain: another draw of tokens from
the same counts says nothing new about a placement. So such a cell's pairs are the domains, and its
interval is Student's over them. The single domains are shown below it, each against the method that
turned out best on that domain; their intervals hold for more tokens of that domain only.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.record import Record
from benchmarks.writing import write_result
from planner.placement import METHODS, SINGLE, Cluster, Scenes, expert_room, scenes_of
from planner.routing_sources import load_source
from solvers.placement.exact import ENGINES, place_items
from solvers.placement.problem import PlacementProblem, check_placement, fullest
from solvers.registry import Limits

RESULTS = Path(__file__).parent / "results"
SCENARIOS, JUDGED = 512, 2048
STUDENT_975 = {5: 2.571}
"""By degrees of freedom: of six domains, five."""


@dataclass(frozen=True)
class Cell:
    """Statistics, how batches are drawn, and the devices."""

    name: str
    scenes: Scenes
    devices: int
    replicas: int
    across: str = ""
    """What it is one domain of."""


def cells(data: Path) -> list[Cell]:
    """All of them."""
    routing = data / "routing"
    found: list[Cell] = []
    mixtral = load_source(routing / "mixtral_mmlu_fractions.npz")
    several = ((2, 0), (4, 0), (8, 2), (16, 8))
    for name, by_domain, batch in (("prompts", False, 1), ("subjects", True, 8)):
        scenes = scenes_of(
            mixtral, scenarios=SCENARIOS, judged=JUDGED, batch=batch, by_domain=by_domain
        )
        found += [Cell(f"Mixtral by {name}", scenes, d, r) for d, r in several]
    qwen = load_source(routing / "mbolt_coactivation_qwen3-30b-a3b.json")
    scenes = scenes_of(qwen, scenarios=SCENARIOS, judged=JUDGED, batch=64)
    label = "Qwen3-30B-A3B heat (independent tokens)"
    found += [Cell(label, scenes, d, r) for d, r in ((2, 0), (4, 0), (8, 0), (16, 0), (8, 16))]
    olmoe = load_source(routing / "olmoe_mixtral_expert_counts.json", "olmoe.expert_counts")
    for judge in olmoe.domains:
        others = tuple(one for one in olmoe.domains if one != judge)
        scenes = scenes_of(
            olmoe,
            scenarios=SCENARIOS,
            judged=JUDGED,
            batch=64,
            fit_domains=others,
            judge_domains=(judge,),
            by_domain=True,
        )
        whole = "OLMoE across text domains (independent tokens)"
        found += [Cell(f"OLMoE, judged on {judge}", scenes, d, 0, whole) for d in (2, 4, 8)]
    return found


def run(cell: Cell, seconds: float) -> dict[str, Any]:
    """One row: held-out figures of each method, and cpsat against the best other."""
    layers, experts = cell.scenes.fit.shape[1:]
    held: dict[str, np.ndarray] = {}
    row: dict[str, Any] = {
        "cell": cell.name,
        "devices": cell.devices,
        "replicas": cell.replicas,
        "even": 1 / cell.devices,
    }
    for method in METHODS:
        replicas = 0 if method in SINGLE else cell.replicas
        if cell.devices > experts + replicas:
            continue
        room = expert_room(Cluster(cell.devices), layers=layers, experts=experts, replicas=replicas)
        fit = PlacementProblem(cell.scenes.fit, room, replicas)
        judge = PlacementProblem(cell.scenes.judge, room, replicas)
        start = time.perf_counter()
        placed = place_items(fit, method, Limits(seconds, seconds), cell.scenes.origins)
        took = time.perf_counter() - start
        placement = placed.placement
        if check_placement(fit, placement):
            raise SystemExit(f"{method} made an invalid placement of {cell.name}")
        held[method] = fullest(judge, placement).mean(axis=1)
        fitted = float(fullest(fit, placement).mean())
        row[method] = {
            "held_out": float(held[method].mean()),
            "fitted": fitted,
            "bound": placed.bound,
            "gap": 1 - placed.bound / fitted,
            "seconds": took,
        }
    against_best(row, held, 1.96)
    return row


def against_best(row: dict[str, Any], held: dict[str, np.ndarray], deviations: float) -> None:
    """Add cpsat's paired difference to the best other, ``held`` [pairs] of each method."""
    others = [name for name in held if name not in ENGINES]
    best = min(others, key=lambda name: held[name].mean())
    difference = held["cpsat"] - held[best]
    row["best_other"] = best
    row["difference"] = float(difference.mean())
    row["half_width"] = deviations * float(difference.std(ddof=1)) / math.sqrt(len(difference))


def over_domains(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One cell of rows that each judge on another domain."""
    row = {key: rows[0][key] for key in ("devices", "replicas", "even")} | {"cell": name}
    held = {
        method: np.array([one[method]["held_out"] for one in rows])
        for method in METHODS
        if method in rows[0]
    }
    for method, values in held.items():
        row[method] = {
            key: float(np.mean([one[method][key] for one in rows])) for key in rows[0][method]
        }
        row[method]["held_out"] = float(values.mean())
    against_best(row, held, STUDENT_975[len(rows) - 1])
    return row


def line_of(row: dict[str, Any]) -> str:
    """A row of the table."""
    best, ours = row[row["best_other"]], row["cpsat"]
    return (
        f"| {row['cell']} | {row['devices']} | {row['replicas']} | {row['even']:.4f} | "
        f"{row['best_other']} | {best['held_out']:.5f} | {ours['held_out']:.5f} | "
        f"{row['difference']:+.5f} ± {row['half_width']:.5f} | {100 * ours['gap']:.1f}% | "
        f"{ours['seconds']:.1f} |"
    )


def counts_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    """In how many cpsat is better or worse beyond the interval."""
    return {
        "better": sum(row["difference"] < -row["half_width"] for row in rows),
        "worse": sum(row["difference"] > row["half_width"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--data", type=Path, default=here.parent / "shared" / "data")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--only", default="", help="cells whose name holds this")
    arguments = parser.parse_args()
    if not (arguments.data / "routing").is_dir():
        raise SystemExit(f"{arguments.data} has no folder 'routing': give --data")
    record = Record.begin(budget=f"{arguments.time_limit:g} s a search")
    rows: list[dict[str, Any]] = []
    single: list[dict[str, Any]] = []
    heading = "| cell | D | R | even | best other | | cpsat | minus best | gap | s |"
    lines = [heading, "|---|---|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    across: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in cells(arguments.data):
        if arguments.only not in f"{cell.across} {cell.name}":
            continue
        row = run(cell, arguments.time_limit)
        (single if cell.across else rows).append(row)
        if cell.across:
            across.setdefault((cell.across, cell.devices), []).append(row)
        print(line_of(row), flush=True)
    # a part of the domains is no sample of them
    over = [
        over_domains(name, group)
        for (name, _), group in across.items()
        if len(group) - 1 in STUDENT_975
    ]
    rows += over
    lines += map(line_of, [*rows, *single])
    facts = {
        "time_limit_seconds": arguments.time_limit,
        "scenarios": SCENARIOS,
        "judged": JUDGED,
    }
    count, alone = counts_of(rows), counts_of(single)
    said = (
        f"{len(rows)} cells: cpsat better in {count['better']}, worse in {count['worse']}, the "
        f"others within 95%. Of {len(single)} single domains, against the best of the others on "
        f"that domain: better in {alone['better']}, worse in {alone['worse']}."
    )
    for row in over:
        print(line_of(row))
    print(said)
    if not arguments.only:
        body = {
            "about": record.about(),
            **facts,
            **count,
            "cells": rows,
            "single_domains": {**alone, "cells": single},
        }
        words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
        text = "\n".join(["# Placement", "", words, "", *lines, "", said])
        write_result(RESULTS / "placement.json", body, text + "\n")


if __name__ == "__main__":
    main()
