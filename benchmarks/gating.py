"""Static against dynamic gating: throughput and activation memory of one layer.

    python benchmarks/gating.py [--tokens 16,64,256,1024] [--experts 8,32,128] [--factors 1.25,2]

The comparison of "Towards MoE Deployment" (arXiv 2303.06182), section 5, on one CPU: router,
experts and their sum, on the executor's own operations and a synthetic layer whose experts are
unequally popular. *Dynamic* is what every run computes. *Static* gives each expert the same rows:
as a capacity factor says (what exceeds them is dropped), as many as the fullest expert needs
(which nobody knows beforehand), or as many as there are tokens (what never drops one).

Gatings take turns within a cell, so that other work on the machine meets all of them; each turn is
a sample, the median is given with its quartiles, and a ratio is the median of the turns' ratios.
Activation bytes are the peak of what torch's CPU allocator holds during one layer (torch's profiler
records each allocation): without weights, without the group's preallocated hidden states and sums,
which both have, and without what the matrix library packs. A cell whose mask would exceed
``--most-mib`` is not run and says so. Some two minutes on two quiet cores.
Writes benchmarks/results/gating.{json,md}.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.record import Record
from benchmarks.writing import write_result
from executor import open_weights
from executor.adapters import ExpertWeights
from executor.allocator import tune_process, usable_cores
from executor.device import Device
from executor.static_gating import (
    dispatch_bytes,
    expert_capacity,
    static_experts,
    waste_factor,
)
from executor.synth import write_synthetic
from executor.units import Unit
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import account_device, smallest_policy

RESULTS = Path(__file__).parent / "results"
HIDDEN, INNER, TOP_K, VOCAB = 256, 512, 2, 2048
MIB = 1 << 20
FEWEST, MOST = 5, 200
"""Samples of each gating in a cell."""

Layer = Callable[[], int]
"""Computes the layer; returns the choices that were dropped."""


def configuration(experts: int) -> dict[str, Any]:
    """One Mixtral layer."""
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": experts,
        "num_experts_per_tok": TOP_K,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }


def everything_resident(model: ModelSpec, tokens: int) -> Policy:
    """Nothing streams; one batch of ``tokens`` sequences of one token."""
    base = smallest_policy(model, model.dtype_bytes)
    layers = tuple(LayerPolicy(True, tuple(range(one.experts)), ()) for one in model.layers)
    return replace(
        base,
        batch_size=tokens,
        layers=layers,
        resident_head_tiles=base.head_tiles,
        slots=0,
        dense_slots=0,
        reserve=0,
    )


@contextmanager
def layer_of(checkpoint: Path, tokens: int, seed: int) -> Iterator[Device]:
    """A device whose first router has its input: what attention made of random tokens."""
    with open_weights(checkpoint) as source:
        policy, workload = everything_resident(source.model, tokens), Workload(tokens, 1, 1)
        need = account_device(source.model, policy, workload, 4, 0).peak_bytes
        device = Device(source, policy, workload, need)
        draw = torch.Generator().manual_seed(seed)
        device.operations.begin([1] * tokens, [0] * tokens)
        device.operations.embed(torch.randint(3, VOCAB, (tokens,), generator=draw).tolist())
        device.operations.attention(0, 0)
        yield device


def experts_of(device: Device) -> list[ExpertWeights]:
    """All experts of the layer."""
    count = device.source.model.layers[0].experts
    return [device.expert(Unit(0, "expert", expert), None) for expert in range(count)]


def dynamic_layer(device: Device) -> Layer:
    """As ``executor.runtime`` computes it."""
    operations, experts = device.operations, experts_of(device)

    def run() -> int:
        counts = operations.router(0)
        for expert in sorted(range(len(counts)), key=lambda one: -counts[one]):
            if counts[expert]:
                operations.expert(expert, experts[expert])
        operations.combine()
        return 0

    return run


def static_layer(device: Device, capacity: int) -> Layer:
    """The same router and sum, with ``capacity`` rows for each expert between them."""
    operations, experts, state = device.operations, experts_of(device), device.state

    def run() -> int:
        weights = operations.choose(0)
        chosen = operations.chosen
        rows, sums = state.normed, state.sums
        dropped = static_experts(device.adapter, rows, chosen, weights, experts, capacity, sums)
        operations.combine()
        return dropped

    return run


def allocated_bytes(run: Layer) -> int:
    """Peak of what torch's CPU allocator holds during ``run``, beyond what it held before."""
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            run()
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    steps = [one["args"] for one in events if one["name"] == "[memory]"]
    steps.sort(key=lambda one: one["Ev Idx"])
    before = steps[0]["Total Allocated"] - steps[0]["Bytes"]
    return int(max(one["Total Allocated"] for one in steps) - before)


def figures(run: Layer, samples: list[int], tokens: int) -> dict[str, Any]:
    """Tokens a second, with quartiles, and bytes of one gating."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    dropped = run()
    return {
        "tokens_per_second": tokens / middle * 1e9,
        "quartiles": [tokens / high * 1e9, tokens / low * 1e9],
        "samples": len(samples),
        "activation_bytes": allocated_bytes(run),
        "dropped_share": dropped / (tokens * TOP_K),
    }


def same(device: Device, one: Layer, other: Layer) -> None:
    """End the benchmark where two gatings that drop nothing do not agree."""
    sums = []
    for run in (one, other):
        run()
        sums.append(device.state.sums.clone())
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-4, atol=1e-6)


def cell(device: Device, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All gatings of one layer on one batch."""
    tokens, experts = device.state.tokens, device.source.model.layers[0].experts
    counts = device.operations.router(0)
    rows = {
        f"factor {one:g}": expert_capacity(tokens, TOP_K, experts, one) for one in options.factors
    }
    rows |= {"fullest expert": max(counts), "all tokens": tokens}
    facts = {"tokens": tokens, "experts": experts, "top_k": TOP_K}
    found = [{**facts, "gating": "dynamic", "waste_factor": 1.0, "gating_bytes": 0}]
    runs: dict[int, Layer] = {0: dynamic_layer(device)}
    for name, capacity in rows.items():
        need = dispatch_bytes(tokens, experts, capacity, 4)
        found.append(
            {
                **facts,
                "gating": f"static, {name}",
                "capacity": capacity,
                "waste_factor": waste_factor(capacity, tokens, TOP_K, experts),
                "gating_bytes": need,
            }
        )
        if need <= options.most_mib * MIB:
            runs[len(found) - 1] = static_layer(device, capacity)
    for index, run in runs.items():
        if index and found[index]["capacity"] >= max(counts):
            same(device, runs[0], run)
    samples: dict[int, list[int]] = {index: [] for index in runs}
    began = time.perf_counter()
    while len(samples[0]) < FEWEST or (
        len(samples[0]) < MOST and time.perf_counter() - began < options.seconds
    ):
        for index, run in runs.items():
            start = time.perf_counter_ns()
            run()
            samples[index].append(time.perf_counter_ns() - start)
    for index, run in runs.items():
        turns = zip(samples[0], samples[index], strict=True)
        found[index] |= figures(run, samples[index], tokens)
        found[index]["over_dynamic"] = statistics.median(one / other for one, other in turns)
    for one in found:
        one["fullest_over_mean"] = max(counts) * experts / sum(counts)
    return found


def table(cells: list[dict[str, Any]], note: str) -> str:
    """The page."""
    lines = [
        "# Static against dynamic gating",
        "",
        note,
        "",
        "| tokens | experts | gating | waste | dropped | tokens/s (quartiles) | of dynamic's "
        "| activations, MiB | of these mask and weights |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in cells:
        head = (
            f"| {one['tokens']} | {one['experts']} | {one['gating']} | {one['waste_factor']:.2f} |"
        )
        mask = f"{one['gating_bytes'] / MIB:.2f} |"
        if "tokens_per_second" not in one:
            lines.append(f"{head} | not run | | | {mask}")
            continue
        low, high = one["quartiles"]
        lines.append(
            f"{head} {one['dropped_share']:.1%} | {one['tokens_per_second']:,.0f} "
            f"({low:,.0f} to {high:,.0f}) | {one['over_dynamic']:.2f} | "
            f"{one['activation_bytes'] / MIB:.2f} | {mask}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    def several(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [kind(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=several(int), default=[16, 64, 256, 1024])
    parser.add_argument("--experts", type=several(int), default=[8, 32, 128])
    parser.add_argument("--factors", type=several(float), default=[1.25, 2.0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of samples in each cell")
    parser.add_argument("--most-mib", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    record = Record.begin(seeds=(1,), budget=f"{options.seconds:g} s of samples a cell")
    tune_process()
    found: list[dict[str, Any]] = []
    for experts in options.experts:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(configuration(experts)), encoding="utf-8")
            checkpoint = Path(folder) / "checkpoint"
            write_synthetic(config, checkpoint, dtype="float32", seed=1)
            for tokens in options.tokens:
                with layer_of(checkpoint, tokens, seed=1) as device:
                    found += cell(device, options)
                print(f"{experts} experts, {tokens} tokens: done", file=sys.stderr, flush=True)
    facts = {
        "machine": f"{platform.machine()}, {usable_cores()} cores, torch {torch.__version__}",
        "load_average": os.getloadavg()[0],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "dtype": "float32",
    }
    note = (
        f"One layer (router, experts, sum) of {HIDDEN} x {INNER}, top {TOP_K}, float32, on "
        f"{facts['machine']}, load average {facts['load_average']:.1f}; measured by "
        "`python benchmarks/gating.py`, whose first lines say what the columns are."
    )
    page = table(found, note)
    print(page)
    body = {"about": record.about(), **facts, "cells": found}
    write_result(options.out / "gating.json", body, page)


if __name__ == "__main__":
    main()
