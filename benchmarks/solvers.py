"""How far schedules are from the bound, and what the decomposition loses on small instances.

    python benchmarks/solvers.py [--cells none|few|all] [--solver cpsat] [--work 0.5] [--small 30]

Cells are synthetic: layers x experts, sequences in a group, skew of a Zipf popularity, and the
share of the experts' bytes that fits on top of the dense parts. Tokens are independent, so there is
no persistence to gain from. The gap is (replayed - bound) / replayed on the fitted scenarios; the
bound is the clairvoyant one (``solvers.relaxation``), so where few sequences share a pass the gap
holds the price of not knowing the routing, too. Small instances are compared with the best of all
schedules, by brute force on the replay.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import combinations, permutations, product

import numpy as np

from solvers.checker import check_schedule
from solvers.outcome import Schedule, StageChoice
from solvers.problem import Problem, Scenarios, Stage, Unit
from solvers.registry import Limits, load
from solvers.replay import measure, replay

MIB = 1 << 20


def cell(
    layers: int, experts: int, top_k: int, group: int, skew: float, share: float, passes: int
) -> Problem:
    """One problem of a size that occurs: experts of 4 MiB that take 4 ms to copy."""
    rng = np.random.default_rng([layers, experts, group, int(10 * skew)])
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    demand = np.zeros((passes, layers, experts), dtype=np.int32)
    for layer in range(layers):
        logits = np.log(rng.permutation(weights))
        noise = rng.gumbel(size=(passes, group, experts))
        chosen = np.argsort(-(logits + noise), axis=2)[:, :, :top_k]
        for index in range(passes):
            demand[index, layer] = np.bincount(chosen[index].ravel(), minlength=experts)
    work = np.where(demand > 0, 200_000 + 20_000 * demand.astype(np.int64), 0)
    shape = (passes, layers)
    zero = np.zeros(shape, dtype=np.int64)
    lead = zero + 300_000 + 30_000 * group
    expert = Unit(4 * MIB, 4 * MIB, 4, 1_000_000, 1_000_000, MIB)
    dense = Unit(2 * MIB, 2 * MIB, 2, 500_000, 500_000, MIB)
    scenarios = Scenarios(zero, lead, demand, work, zero + 50_000, np.ones(passes, dtype=np.int64))
    capacity = layers * 2 * MIB + int(share * layers * experts * 4 * MIB) + 4 * MIB
    return Problem((Stage(dense, (expert,) * experts),) * layers, scenarios, capacity, 4 * MIB)


def cells(which: str) -> Iterator[tuple[str, Problem]]:
    """Names and problems."""
    models = [(32, 8, 2, 16)] if which == "few" else [(32, 8, 2, 16), (48, 128, 8, 6)]
    groups = (1, 8, 64) if which == "few" else (1, 8, 64, 256)
    shares = (0.1, 0.5, 0.9)
    for layers, experts, top_k, passes in models:
        for group, skew, share in product(groups, (0.0, 1.2), shares):
            name = f"{layers}x{experts} g={group} skew={skew} budget={share:.0%}"
            yield name, cell(layers, experts, top_k, group, skew, share, passes)


def every_schedule(problem: Problem) -> Iterator[Schedule]:
    """All schedules without caching that the checker accepts, with up to two slots of each kind."""
    per_stage = []
    for stage in problem.stages:
        items = range(len(stage.items))
        options = []
        for kept in (c for size in range(len(items) + 1) for c in combinations(items, size)):
            rest = [item for item in items if item not in kept]
            for size in range(len(rest) + 1):
                for ahead in permutations(rest, size):
                    options += [StageChoice(first, kept, ahead) for first in (False, True)]
        per_stage.append(options)
    for stages in product(*per_stage):
        for slots, start_slots in product(range(3), range(3)):
            for reserve in range(slots + 1):
                schedule = Schedule(stages, slots, start_slots, reserve)
                if not any(check_schedule(problem, schedule)):
                    yield schedule


def small(seed: int) -> Problem:
    """Two stages of two items."""
    rng = np.random.default_rng(seed)

    def unit(held: int) -> Unit:
        return Unit(2, held, 2, *(int(x) for x in rng.integers(2_000, 20_000, 2)), 1)

    stages = tuple(Stage(unit(3), (unit(4), unit(4))) for _ in range(2))
    demand = ((rng.random((4, 2, 2)) < 0.7) * rng.integers(1, 4, (4, 2, 2))).astype(np.int32)
    zero = np.zeros((4, 2), dtype=np.int64)
    scenarios = Scenarios(
        zero,
        zero + int(rng.integers(0, 40_000)),
        demand,
        demand.astype(np.int64) * int(rng.integers(1_000, 10_000)),
        zero,
        np.ones(4, dtype=np.int64),
    )
    return Problem(stages, scenarios, int(rng.integers(8, 20)), 4)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", choices=("none", "few", "all"), default="few")
    parser.add_argument("--solver", default="cpsat")
    parser.add_argument("--work", type=float, default=0.5)
    parser.add_argument("--small", type=int, default=30)
    options = parser.parse_args()
    limits = Limits(work=options.work, seconds=60.0)
    solver = load(options.solver)
    print(f"{options.solver}, work limit {options.work}")
    print(f"{'cell':44} {'gap':>7} {'seconds':>8} {'stop':>11}")
    gaps = []
    for name, problem in () if options.cells == "none" else cells(options.cells):
        started = time.monotonic()
        outcome = solver.solve(problem, limits)
        seconds = time.monotonic() - started
        if outcome.schedule is None or outcome.bound is None:
            print(f"{name:44} {'-':>7} {seconds:8.1f} {outcome.stop.value:>11}")
            continue
        value = measure(problem, replay(problem, outcome.schedule))
        gaps.append((value - outcome.bound.value_ns) / value)
        print(f"{name:44} {gaps[-1]:7.2%} {seconds:8.1f} {outcome.stop.value:>11}", flush=True)
    if gaps:
        print(f"median {statistics.median(gaps):.2%}, worst {max(gaps):.2%}")
    losses = []
    for seed in range(options.small):
        problem = small(seed)
        outcome = solver.solve(problem, limits)
        if outcome.schedule is None:
            continue
        value = measure(problem, replay(problem, outcome.schedule))
        best = min(measure(problem, replay(problem, one)) for one in every_schedule(problem))
        losses.append(value / best - 1 if best else 0.0)
    if losses:
        print(
            f"{len(losses)} small instances against brute force: loss median "
            f"{statistics.median(losses):.2%}, worst {max(losses):.2%}, "
            f"{sum(loss == 0 for loss in losses)} optimal"
        )


if __name__ == "__main__":
    main()
