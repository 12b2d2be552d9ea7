"""Quantized experts: what they cost in nats, and what they bring in tokens/s.

    python benchmarks/quantized.py --work DIR                  # root only: cap and disk are held
    python benchmarks/quantized.py --work DIR --requests       # accuracy alone: a minute

Accuracy: held-out texts of the example checkpoint (those of its training log), scored by
transformers with the weights that each store stands for. Speed: the bulk checkpoint as it is,
in int8 and in int4, each planned from its own profile and run in a process of its own under the
same memory cap, on a throttled disk, with cold caches, in turns; the median counts. ``--work`` may
be that of ``benchmarks/executor.py``, whose checkpoint, store and profile are then used.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "pycode-moe"
# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path[:0] = [str(ROOT), str(EXAMPLE)]

import argparse
import json
import math
import shutil
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.executor_trials import QUANTIZED, Bench
from benchmarks.record import Record
from benchmarks.writing import write_result
from executor import open_weights, pack
from executor.adapters import ExpertWeights
from executor.caps import PROCESS_BYTES
from executor.direct import Pacer, ReadBuffer
from executor.matrices import STORED, quantized_expert
from executor.units import Unit
from planner.documents import QuantizedExperts
from planner.memory import aligned
from planner.quantized import group_of, tile_spans
from solvers.errors import MoeplanError, OptionError

Document = dict[str, Any]

GOAL = 3.5
"""int4 over the same weights in bfloat16."""


# --- accuracy ------------------------------------------------------------------------------------


def experts_of(checkpoint: Path, store: Path) -> Iterator[tuple[Unit, ExpertWeights]]:
    """A quantized store's experts."""
    with open_weights(checkpoint, store) as source:
        model, how = source.model, source.model.quantized
        if how is None:
            raise TypeError("the store is not quantized")
        for layer in model.layers:
            for number in range(layer.experts):
                unit = Unit(layer.index, "expert", number)
                size = source.size_bytes(unit)
                memory = ReadBuffer(aligned(size)).memory
                reader = source.reader(ReadBuffer(aligned(size) + 8192), Pacer(None))
                reader.read(source.pieces(unit), memory, 0, size)
                tensors = {
                    place.role: torch.frombuffer(
                        memory, dtype=STORED[place.dtype], count=math.prod(place.shape),
                        offset=place.offset_bytes,
                    ).view(place.shape)
                    for place in source.places(unit)
                }  # fmt: skip
                yield unit, quantized_expert(model, layer, how, tensors)


def replace_experts(model: Any, checkpoint: Path, store: Path) -> None:
    """Let transformers' model compute with a store's experts."""
    for unit, weights in experts_of(checkpoint, store):
        own = model.model.layers[unit.stage].mlp.experts
        for matrix, whole in (
            (weights.gate_up, own.gate_up_proj),
            (weights.down, own.down_proj),
        ):
            if isinstance(matrix, torch.Tensor):
                raise TypeError("the store is not quantized")
            width = whole.element_size()
            for first, stop in tile_spans(matrix.rows, matrix.columns, width):
                whole.data[unit.item, first:stop] = matrix.numbers(first, stop).t()


def score(model: Any) -> tuple[float, int]:
    """Nats a token over the texts that the example's training log names, and their tokens."""
    from corpus import find_document  # type: ignore[import-not-found]
    from scoring import score_document  # type: ignore[import-not-found]

    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLE)
    log = json.loads((EXAMPLE / "training_log.json").read_text(encoding="utf-8"))
    nats, count = 0.0, 0
    for row in log["sample"]:
        document = find_document(row["domain"], row["key"])
        if document is None:
            continue
        end = tokenizer.eos_token_id
        ids = [end, *tokenizer(document.text, verbose=False)["input_ids"], end]
        found = score_document(model, document, np.array(ids, dtype=np.int64), 1024)
        nats, count = nats + found.model_nats, count + found.predicted_tokens
    return nats / count, count


def accuracy(work: Path) -> list[Document]:
    """The example as it is and in each format."""
    rows: list[Document] = []
    for name in ("float32", *QUANTIZED):
        model = transformers.AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype="auto").eval()
        row: Document = {"experts": name, "relative_error": 0.0}
        store = work / f"example-{name}"
        shutil.rmtree(store, ignore_errors=True)
        how = None
        if name in QUANTIZED:
            how = QuantizedExperts("int8-1" if name == "int8" else "int4-1")
        packed = pack(EXAMPLE, store, quantize=how)
        with open_weights(EXAMPLE, store) as source:
            spec = source.model
        if how is not None:
            replace_experts(model, EXAMPLE, store)
            row["relative_error"] = packed.relative_error
            layer = spec.layers[0]
            row["groups"] = [
                group_of(how, columns) for columns in (spec.hidden_size, layer.expert_intermediate)
            ]
        weights = sum(
            3 * layer.experts * layer.expert_intermediate * spec.hidden_size
            for layer in spec.layers
        )
        row["expert_bytes"] = spec.expert_bytes
        row["bits_per_weight"] = 8 * spec.expert_bytes / weights
        row["nats_per_token"], row["tokens"] = score(model)
        row["perplexity"] = math.exp(row["nats_per_token"])
        rows.append(row)
        print(
            f"{name}: {row['bits_per_weight']:.2f} bits a weight, "
            f"{row['nats_per_token']:.4f} nats a token",
            flush=True,
        )
    return rows


# --- speed ---------------------------------------------------------------------------------------


def speed(options: argparse.Namespace) -> list[Document]:
    """Cells of the bulk checkpoint: each number of requests, each format."""
    bench = Bench(
        "mixtral",
        ROOT / "examples" / "configs" / "bulk-mixtral.json",
        options.layers,
        options.work,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        seconds=options.seconds,
        peers_python=None,
    )
    cap = bench.weights_bytes * options.cap // 100
    # with the executor's benchmark's budget, whose profile it may be
    budget = max(bench.weights_bytes // 2, cap) - PROCESS_BYTES
    if budget <= 0:
        raise OptionError(
            f"--cap {options.cap}: {cap} bytes, and half of the weights, are less than the "
            f"{PROCESS_BYTES} that a process takes beside its plan: give more --layers, or --cap"
        )
    cells: list[Document] = []
    for requests in options.requests:
        trials = {
            store: bench.own(
                f"moeplan {store}",
                "cpsat",
                bench.profile(options.throttle, budget, store),
                requests,
                (cap, options.throttle),
            )
            for store in ("none", *QUANTIZED)
        }
        found: dict[str, list[Document]] = {store: [] for store in trials}
        for _ in range(options.runs):
            for store, trial in trials.items():
                found[store].append(bench.run(trial))
        for store, runs in found.items():
            cells.append(_cell(store, requests, runs))
            plan = trials[store].plan
            if plan is not None:
                cells[-1]["predicted"] = plan.predicted.tokens_per_second.value
            print(_row(cells[-1], cells), flush=True)
    return cells


def _cell(store: str, requests: int, runs: list[Document]) -> Document:
    ran = [one for one in runs if one["reason"] is None]
    figures = ("tokens_per_second", "decode_tokens_per_second", "bytes_read", "agreement")
    cell: Document = {
        name: statistics.median(values) if (values := _known(ran, name)) else None
        for name in figures
    }
    reason = "; ".join({one["reason"] for one in runs if one["reason"] is not None})
    return {
        "experts": "bfloat16" if store == "none" else store,
        "requests": requests,
        **cell,
        "runs": _known(ran, "tokens_per_second"),
        "setting": runs[0]["setting"],
        "reason": reason or None,
    }


def _known(runs: list[Document], name: str) -> list[float]:
    return [run[name] for run in runs if run.get(name) is not None]


def _gain(cell: Document, cells: list[Document], name: str) -> float | None:
    base = next(one for one in cells if one["requests"] == cell["requests"])
    return cell[name] / base[name] if cell[name] and base[name] else None


def _row(cell: Document, cells: list[Document]) -> str:
    if cell["tokens_per_second"] is None:
        return f"| {cell['requests']} | {cell['experts']} | {cell['reason']} | | | | |"
    gains = " | ".join(
        f"{cell[name]:.2f} ({_gain(cell, cells, name) or 0:.2f}x)"
        for name in ("tokens_per_second", "decode_tokens_per_second")
    )
    return (
        f"| {cell['requests']} | {cell['experts']} | {cell['predicted']:.2f} | {gains} | "
        f"{cell['bytes_read'] / 1e9:.2f} | {cell['setting']} |"
    )


def markdown(document: Document) -> str:
    """Both tables."""
    lines = [
        "# Quantized experts",
        "",
        "Written by `benchmarks/quantized.py`. Held-out texts of the example checkpoint:",
        "",
        "| experts | groups | bits a weight | bytes | weights off | nats a token | perplexity |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in document["accuracy"]:
        groups = " and ".join(map(str, row.get("groups", []))) or "-"
        lines.append(
            f"| {row['experts']} | {groups} | {row['bits_per_weight']:.2f} | "
            f"{row['expert_bytes']:,} | {row['relative_error']:.2%} | "
            f"{row['nats_per_token']:.4f} | {row['perplexity']:.3f} |"
        )
    if document["cells"]:
        lines += [
            "",
            f"Bulk checkpoint ({document['checkpoint']}), memory capped at {document['cap']}% of "
            f"its weights, disk {_disk(document)}, {document['prompt_tokens']} prompt and "
            f"{document['new_tokens']} new tokens; medians of {document['runs']} runs, over its "
            f"own bfloat16 (goal for int4: {GOAL}).",
            "",
            "| requests | experts | predicted | tokens/s in all | decode | GB read | plan |",
            "|---|---|---|---|---|---|---|",
            *(_row(cell, document["cells"]) for cell in document["cells"]),
        ]
    if not document["about"]["quiet"]:
        lines += ["", "Others were at work on the machine meanwhile: speeds are worth little."]
    return "\n".join(lines) + "\n"


def _disk(document: Document) -> str:
    held = document["throttle_bytes_per_second"]
    return "as it is" if held is None else f"held to {held / 1e6:.0f} MB/s"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder that stays: 10 GB")
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--cap", type=int, default=25, help="percent of the weights")
    parser.add_argument("--throttle", type=int, default=800_000_000, help="bytes/s; 0: none")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of one run")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "quantized.json"
    )
    options = parser.parse_args(argv)
    options.throttle = options.throttle or None
    return options


def main(argv: list[str] | None = None) -> int:
    """Score, run, and write both files."""
    options = _options(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    record = Record.begin(budget=f"{options.runs} runs a cell, the median counts")
    scored = accuracy(options.work)
    cells = speed(options) if options.requests else []
    document = {
        "about": record.about(),
        "accuracy": scored,
        "checkpoint": f"mixtral, {options.layers} layers",
        "cap": options.cap,
        "throttle_bytes_per_second": options.throttle,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "runs": options.runs,
        "cells": cells,
    }
    write_result(options.out, document, markdown(document))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"quantized: {error}")
