"""A placement on real processes against the simulator, and the simulator on more devices.

    python benchmarks/parallel.py [--checkpoint examples/pycode-moe] [--prompts 16] [--length 32]
                                  [--new-tokens 16] [--devices 2,4] [--simulated 8,16,32,64]

Each number of devices is that many processes of this machine: they share its cores, so more of them
are not faster. The simulator is given an expert's time against its rows, an exchange's latency and
bandwidth, and the rows that each device met in the run. Times are measured on the same processes
before and after the run, those of exchanges in passes of one sequence on each device: where
processes share cores, they wait for each other's dense parts and experts as well. Nothing is fitted
to the run's times. A measured layer lasts from its last device's start to its end (the least of the
devices' durations, since all end together). Other work on the machine holds single layers up: all
times are first deciles, the measured median is beside.
Writes benchmarks/results/parallel.json.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import os
import random
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.record import Record
from benchmarks.writing import write_result
from executor import open_weights
from executor.allocator import usable_cores
from executor.parallel import ParallelEngine, ParallelRun
from planner.balance_simulator import Links, dealt, simulate
from planner.documents import Curve, ExpertPlacement, ModelSpec
from planner.placement import Cluster, Scenes, expert_room, place
from planner.routing_sources import RoutingSource

RESULTS = Path(__file__).parent / "results"


def placed(model: ModelSpec, load: np.ndarray, devices: int, replicas: int) -> ExpertPlacement:
    """Placed by ``replicate`` on [passes, layers, experts] rows."""
    source = RoutingSource("trace", model.moe_layers, {"passes of a run": load})
    cluster = Cluster(devices)
    room = expert_room(cluster, layers=load.shape[1], experts=load.shape[2], replicas=replicas)
    return place(
        source,
        Scenes(load[0::2], load[1::2], "passes of a run, every other one"),
        cluster,
        room,
        method="replicate",
        replicas=replicas,
        source_hash="0" * 64,
    )


def loads(run: ParallelRun, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """[passes, layers, devices, experts] rows, and [passes, layers] measured ns."""
    counts = np.array([one["counts"] for one in run.layers[0]])
    took = np.array([[one["duration_ns"] for one in rank] for rank in run.layers]).min(axis=0)
    return counts.reshape(-1, layers, *counts.shape[1:]), took.reshape(-1, layers)


def mean_of(one: tuple[Curve, Links], other: tuple[Curve, Links]) -> tuple[Curve, Links]:
    """Of what was measured before and after a run."""
    (first, left), (second, right) = one, other
    pairs = zip(first.duration_ns, second.duration_ns, strict=True)
    speed = 2 / (1 / left.intra_bytes_per_second + 1 / right.intra_bytes_per_second)
    return (
        replace(first, duration_ns=tuple((a + b) // 2 for a, b in pairs)),
        Links((left.latency_ns + right.latency_ns) // 2, speed, speed),
    )


def cell(
    checkpoint: Path, placement: ExpertPlacement, prompts: list[list[int]], tokens: int, row: int
) -> dict[str, Any]:
    """One measured run and its prediction, prefill and decode apart."""
    with ParallelEngine(checkpoint, placement) as engine:
        before = engine.measure()
        engine.generate(prompts, 2)
        run = engine.generate(prompts, tokens, record=True)
        # other work on the machine comes and goes
        curve, links = mean_of(before, engine.measure())
    load, took = loads(run, len(placement.layers))
    told = simulate(
        load, placement, expert=curve, links=links, row_bytes=row, at_once=usable_cores()
    )
    found: dict[str, Any] = {
        "devices": placement.devices,
        "replicas": placement.replicas,
        "latency_us": links.latency_ns / 1e3,
        "bytes_per_second": links.intra_bytes_per_second,
        "tokens_per_second": sum(map(len, run.token_ids)) / run.wall_ns * 1e9,
    }
    for phase, passes in (("prefill", slice(0, 1)), ("decode", slice(1, None))):
        measured, predicted = took[passes], told.total_ns[passes]
        found[phase] = {
            "measured_us": float(np.quantile(measured, 0.1)) / 1e3,
            "measured_median_us": float(np.median(measured)) / 1e3,
            "predicted_us": float(np.quantile(predicted, 0.1)) / 1e3,
            "predicted_over_measured": float(
                np.quantile(predicted, 0.1) / np.quantile(measured, 0.1)
            ),
            "exchange_share": float(told.exchange_ns[passes].sum() / predicted.sum()),
        }
    return found


def larger(load: np.ndarray, placement: ExpertPlacement, curve: Curve, row: int) -> dict[str, Any]:
    """The simulator alone, for links of 25 GB/s with 20 us."""
    links = Links(20_000, 25e9, 25e9)
    times = simulate(
        dealt(load, placement.devices), placement, expert=curve, links=links, row_bytes=row
    )
    return {
        "devices": placement.devices,
        "replicas": placement.replicas,
        "layer_us": float(times.total_ns.mean()) / 1e3,
        "compute_us": float(times.compute_ns.mean()) / 1e3,
        "idle_us": float(times.idle_ns.mean()) / 1e3,
        "exchange_us": float(times.exchange_ns.mean()) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).resolve().parents[1] / "examples" / "pycode-moe"
    parser.add_argument("--checkpoint", type=Path, default=example)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--devices", default="2,4")
    parser.add_argument("--simulated", default="8,16,32,64")
    arguments = parser.parse_args()
    record = Record.begin(seeds=(1,), budget=f"one run of {arguments.new_tokens} tokens a cell")
    with open_weights(arguments.checkpoint) as source:
        model = source.model
    row = model.hidden_size * model.dtype_bytes
    draw = random.Random(1)
    prompts = [
        [draw.randrange(3, model.vocab_size) for _ in range(arguments.length)]
        for _ in range(arguments.prompts)
    ]
    moe = [spec for spec in model.layers if spec.experts]
    # the first run tells the routing that placements are made from
    even = np.ones((2, len(moe), moe[0].experts), dtype=np.int64)
    with ParallelEngine(arguments.checkpoint, placed(model, even, 1, 0)) as engine:
        curve, _ = engine.measure()
        run = engine.generate(prompts, arguments.new_tokens, record=True)
    load = loads(run, len(moe))[0].sum(axis=2)
    print("| devices | replicas | phase | measured, us a layer | (median) | predicted | ratio |")
    print("|---|---|---|---|---|---|---|")
    cells, simulated = [], []
    for devices in map(int, arguments.devices.split(",")):
        for replicas in (0, 4):
            placement = placed(model, load, devices, replicas)
            found = cell(arguments.checkpoint, placement, prompts, arguments.new_tokens, row)
            cells.append(found)
            for phase in ("prefill", "decode"):
                told = found[phase]
                print(
                    f"| {devices} | {replicas} | {phase} | {told['measured_us']:.0f} | "
                    f"{told['measured_median_us']:.0f} | {told['predicted_us']:.0f} | "
                    f"{told['predicted_over_measured']:.2f} |",
                    flush=True,
                )
    print("\nSimulated, links of 25 GB/s and 20 us, an expert as fast as here:")
    print("| devices | replicas | layer, us | compute | idle | exchange |")
    print("|---|---|---|---|---|---|")
    for devices in map(int, filter(None, arguments.simulated.split(","))):
        # a device at least holds one copy
        replicas = max(devices - moe[0].experts, 0) + moe[0].experts // 2
        told = larger(load, placed(model, load, devices, replicas), curve, row)
        simulated.append(told)
        print(
            f"| {devices} | {replicas} | {told['layer_us']:.0f} | {told['compute_us']:.0f} | "
            f"{told['idle_us']:.0f} | {told['exchange_us']:.0f} |"
        )
    facts = {
        "load_average": os.getloadavg()[0],
        "model": model.name,
        "prompts": arguments.prompts,
        "prompt_tokens": arguments.length,
        "new_tokens": arguments.new_tokens,
    }
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
    body = {"about": record.about(), **facts, "measured": cells, "simulated": simulated}
    write_result(RESULTS / "parallel.json", body)


if __name__ == "__main__":
    main()
