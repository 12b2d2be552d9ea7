"""The sections of the report: a benchmark each, how it is run, and how its result is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.report_parts import charts, headlines, tables
from benchmarks.report_parts.blocks import Bars, Block, Chart, plain

__all__ = ["SECTIONS", "Section"]

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """One benchmark.

    Attributes
    ----------
    name
        Of ``results/NAME.json``, and on the command line.
    title, words
        What it is about.
    commands
        How it is run, in the repository's root, after ``python``; WORK stands for a folder that
        stays, DATA for the folder of published and recorded statistics.
    minutes
        How long that takes on two quiet cores, about.
    needs
        ``root``, ``gpu`` or ``data``.
    shown
        Its blocks, where no page ``results/NAME.md`` holds them.
    drawn
        Its charts.
    headline
        The one sentence of it.
    """

    name: str
    title: str
    words: str
    commands: tuple[str, ...]
    minutes: float
    needs: tuple[str, ...] = ()
    shown: Callable[[Document], list[Block]] = plain
    drawn: Callable[[Document], list[Chart | Bars]] = lambda _: []
    headline: Callable[[Document], str] = lambda _: ""


SECTIONS: tuple[Section, ...] = (
    Section(
        "demo",
        "The demo",
        "`make demo`: a small trained checkpoint and a bulk one of random weights, each measured, "
        "planned and run within a budget. Rates are of new tokens, prefill included.",
        ("benchmarks/demo.py",),
        4,
        shown=tables.demo,
        drawn=charts.demo,
        headline=headlines.demo,
    ),
    Section(
        "prediction",
        "Predicted against measured throughput",
        "Checkpoints, budgets and requests on throttled disks, profiled once, planned, and run "
        "three times each.",
        ("benchmarks/prediction.py",),
        35,
        ("root",),
        drawn=charts.prediction,
        headline=headlines.prediction,
    ),
    Section(
        "prediction_raw",
        "Predicted against measured throughput, the disk as it is",
        "The same cells with nothing held back: the disk's speed changes from hour to hour, and "
        "each run is held against the prediction for the drift seen just before and after it.",
        ("benchmarks/prediction.py --raw",),
        20,
        drawn=charts.prediction,
        headline=headlines.prediction,
    ),
    Section(
        "ranking",
        "Does the planner rank strategies as they turn out?",
        "Every runnable strategy is planned and run in the same cell; Kendall's tau compares the "
        "order of predicted rates with the order of measured ones.",
        ("benchmarks/ranking.py",),
        25,
        ("root",),
        shown=tables.ranking,
        drawn=charts.ranking,
        headline=headlines.ranking,
    ),
    Section(
        "executor",
        "moeplan against what people use",
        "The same checkpoint, memory cap, prompts and disk, cold caches, one process a run: "
        "moeplan, its strategies, accelerate and llama.cpp. The whole grid takes a day: it goes on "
        "where it was.",
        ("benchmarks/executor.py --work WORK/executor --minutes 90",),
        95,
        ("root",),
        drawn=charts.executor,
        headline=headlines.executor,
    ),
    Section(
        "seeds",
        "The seeds' experiments",
        "What Klotski and *Towards MoE Deployment* measured, in kind: throughput against n and b, "
        "bubbles part by part, the planned n against the best, what predictors name, misses of "
        "buffers, balance of placements.",
        ("benchmarks/seeds.py",),
        60,
        ("root",),
        drawn=charts.seeds,
        headline=headlines.seeds,
    ),
    Section(
        "gating",
        "Dynamic against static gating",
        "One layer, tokens and experts varied: gating by counts against fixed capacity.",
        ("benchmarks/gating.py",),
        5,
        drawn=charts.gating,
        headline=headlines.gating,
    ),
    Section(
        "quantized",
        "Quantized experts",
        "Experts of eight and four bits: what they cost in nats, and what they bring in tokens/s.",
        ("benchmarks/quantized.py --work WORK/executor",),
        15,
        ("root",),
        drawn=charts.quantized,
        headline=headlines.quantized,
    ),
    Section(
        "compression",
        "Exactly compressed stores",
        "The same weights, memory and disk; runs of both stores take turns.",
        ("benchmarks/compression.py",),
        15,
        ("root",),
        shown=tables.compression,
        drawn=charts.compression,
        headline=headlines.compression,
    ),
    Section(
        "solvers",
        "Solvers against bounds",
        "How far schedules are from the proven bound, on held-out routing too, and what the "
        "decomposition loses against the joint model.",
        ("benchmarks/solvers.py --cells shapes --out benchmarks/results",),
        40,
        drawn=charts.solvers,
        headline=headlines.solvers,
    ),
    Section(
        "placement",
        "Placement on many devices",
        "The fullest device's share of the load on held-out batches of recorded routing, for each "
        "method.",
        ("benchmarks/placement.py --time-limit 8 --data DATA",),
        15,
        ("data",),
        drawn=charts.placement,
        headline=headlines.placement,
    ),
    Section(
        "parallel",
        "Expert-parallel runs against the simulator",
        "Processes of this machine as devices, and the simulator alone for more of them.",
        ("benchmarks/parallel.py",),
        3,
        shown=tables.parallel,
        drawn=charts.parallel,
        headline=headlines.parallel,
    ),
    Section(
        "service",
        "The service under load and under kill -9",
        "Readers while two searches run; servers and workers killed at random moments.",
        ("benchmarks/service.py --kills 100",),
        8,
        shown=tables.service,
        headline=headlines.service,
    ),
    Section(
        "sweep",
        "Sweeps: here, and on Ray with its driver killed",
        "The same 200 pairs both ways must end in the same documents, byte for byte.",
        ("benchmarks/sweep.py",),
        10,
        headline=headlines.sweep,
    ),
    Section(
        "long_run",
        "Half an hour under a memory cap",
        "Mixed requests, cancelled ones among them: is memory flat, does the speed drift, does "
        "anything hang?",
        ("benchmarks/long_run.py --work WORK/long_run",),
        34,
        ("root",),
        drawn=charts.long_run,
        headline=headlines.long_run,
    ),
    Section(
        "faults",
        "Faults in the read path",
        "Seeded short reads, errors, delays and flipped bits: right tokens or one clear error.",
        ("benchmarks/faults.py",),
        12,
        shown=tables.faults,
        headline=headlines.faults,
    ),
    Section(
        "executor_gpu",
        "The executor on a GPU",
        "Everything resident against weights streamed from host memory and from the disk.",
        (
            "-m benchmarks.executor_gpu examples/configs/bulk-mixtral.json WORK/executor_gpu "
            "benchmarks/results/executor_gpu.json",
        ),
        10,
        ("gpu",),
        shown=tables.executor_gpu,
        drawn=charts.executor_gpu,
        headline=headlines.executor_gpu,
    ),
    Section(
        "roofline_h200",
        "Operations timed on a GPU",
        "Raw medians of a Mixtral-shaped layer, which the roofline's efficiencies are fitted to.",
        ("benchmarks/roofline_gpu.py benchmarks/results/roofline_h200.json",),
        1,
        ("gpu",),
        drawn=charts.roofline_h200,
    ),
    Section(
        "roofline",
        "The roofline's efficiencies",
        "Data sheets against measurements of the same parts, each predicted from the others; what "
        "offline plans are priced with. Their intervals come from the held-out errors.",
        ("benchmarks/roofline.py",),
        1,
        drawn=charts.roofline,
    ),
    Section(
        "published",
        "Published policies, predicted from data sheets",
        "MoE-Lightning's and FlexGen's rows on a T4 and an L4; nothing is fitted to them in the "
        "first column.",
        ("benchmarks/published.py --data DATA",),
        1,
        ("data",),
        drawn=charts.published,
        headline=headlines.published,
    ),
    Section(
        "imports",
        "How long imports and the first word take",
        "Fresh interpreters; `python` alone is what the others hold besides.",
        ("benchmarks/imports.py",),
        2,
        shown=tables.imports,
        drawn=charts.imports,
    ),
)
"""In the report's order."""
