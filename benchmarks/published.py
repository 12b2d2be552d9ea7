"""Published policies of MoE-Lightning and FlexGen (Mixtral-8x7B on a T4, an L4) from data sheets.

    python benchmarks/published.py [--data ../shared/data]

Each row's own policy is priced with the catalogue's figures and the roofline that planning uses:
no number is fitted to the rows. moeplan's planner cannot express these policies (keys and values in
host memory, attention on the CPU, copies through unpinned memory), so that the pipeline is written
out here, layer by layer; experts are chosen alike. A second column calibrates one number for each
machine, the share of the best product that MoE-Lightning's kernels reach, on its HELM runs, and is
judged on the others. Writes benchmarks/results/published.*.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import csv
import math
import re
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.record import Record
from benchmarks.writing import write_result
from planner.catalogue import named_machine
from planner.model_spec import read_model
from planner.offline import choose_dtype
from planner.roofline import OperationCosts, Roofline

RESULTS = Path(__file__).parent / "results"
SYSTEMS = ("FlexGen", "FlexGen(c)", "MoE-Lightning(p)", "MoE-Lightning")
GIB = float(1 << 30)
CPU_ATTENTION = 48.17e9
"""Bytes of keys and values that a CPU attends to in a second: MoE-Lightning's timing of one layer,
micro-batch 256, context 2048 (shared hardware.csv, derived_cpu_attention_bandwidth)."""
UNPINNED = {"T4": 5.4299 * GIB, "L4": 5.4443 * GIB}
"""Bytes/s from unpinned memory to the GPU: FlexGen's cost model refitted on Mixtral on these
machines by MoE-Lightning's authors (fitted_cpu_to_gpu). The one input that knows FlexGen's runs."""
UNPINNED_KV = {"T4": 0.97 * GIB, "L4": UNPINNED["L4"]}
"""Bytes/s of keys and values in unpinned memory: fitted by FlexGen's authors to OPT on a T4
(fitted_gpu_to_cpu_kv_cache); no such figure of an L4, where all that is unpinned is alike."""
PADDED = 418
MICRO_TOKENS = {"T4": 164 * 77, "L4": 324 * 77}
"""Prompt tokens of the largest micro-batch that MoE-Lightning publishes. Where rows have a batch
but no micro-batch, it is the largest common divisor of their batches that holds no more."""


@dataclass(frozen=True)
class Run:
    """One published row."""

    system: str
    gpu: str
    prompt: int
    new_tokens: int
    micro_batch: int
    micro_batches: int
    on_gpu: float
    published: float
    kind: str
    note: str = ""

    @property
    def batch(self) -> int:
        """Sequences at once."""
        return self.micro_batch * self.micro_batches


@dataclass(frozen=True)
class Figures:
    """A machine as its rows have it."""

    costs: OperationCosts
    link: float
    unpinned: float
    unpinned_kv: float


def figures(gpu: str, config: Path) -> Figures:
    """The catalogue's machine."""
    machine, model = named_machine(f"{gpu.lower()}-gcp"), read_model(config)
    dtype = choose_dtype(model, machine, "float16" if gpu == "T4" else "bfloat16")
    link = machine.link_bytes_per_second
    if link is None:
        raise AssertionError(machine.name)
    costs = OperationCosts(Roofline.of(machine, dtype), model, 2, link.value)
    return Figures(costs, link.value, UNPINNED[gpu], UNPINNED_KV[gpu])


def read_rows(path: Path) -> list[Run]:
    """The rows of both systems, in the file's order; logs of rows that are there already left out,
    repeated runs kept."""
    with path.open(newline="", encoding="utf-8") as file:
        table = [
            row
            for row in csv.DictReader(file)
            if row["model"] == "Mixtral-8x7B"
            and row["system"] in SYSTEMS
            and re.search(r"1x (T4|L4)", row["hardware"])
            and row["metric"] == "e2e_generation_throughput"
        ]
    logs = [row for row in table if row["kind"] == "raw_log"]
    runs = []
    for row in table:
        gpu = "T4" if "1x T4" in row["hardware"] else "L4"
        new, value = int(row["gen_len"]), float(row["value"])
        prompt = int(re.match(r"\D*(\d+)", row["prompt_len"])[1])
        prompt = PADDED if prompt == 417 else prompt
        same = [
            other
            for other in table
            if other["kind"] != "raw_log"
            and (other["system"], other["gen_len"]) == (row["system"], row["gen_len"])
            and gpu in other["hardware"]
            and "HELM" not in row["prompt_len"]
        ]
        if row["kind"] == "raw_log" and same and abs(float(same[0]["value"]) / value - 1) < 6e-3:
            continue
        policy = row["gpu_experts_or_policy"] or (same[0]["gpu_experts_or_policy"] if same else "")
        numbers = re.search(r"(?:gbs|ubs)=(\d+) (?:num_gb|n_ub)=(\d+)", policy)
        note = "a repeated run" if row["kind"] == "raw_log" and same else ""
        if numbers:
            micro, count = int(numbers[1]), int(numbers[2])
        else:
            batch, alike = _logged(row, logs, gpu)
            most = max(MICRO_TOKENS[gpu] // prompt, 1)
            micro = max(size for size in range(1, most + 1) if alike % size == 0)
            count, note = batch // micro, "batch from the log, micro-batch assumed"
        share = re.search(r"percent (\d+) gpu", policy)
        on_gpu = int(share[1]) / 100 if share else (0.0559 if gpu == "L4" else 0.0)
        if "HELM" in row["prompt_len"]:
            note = "HELM: calibrates the second column; " + note
        runs.append(
            Run(row["system"], gpu, prompt, new, micro, count, on_gpu, value, row["kind"], note)
        )
    return runs


def _logged(row: dict[str, str], logs: list[dict[str, str]], gpu: str) -> tuple[int, int]:
    """The batch of a row by its log, and the common divisor of all logs of that prompt length."""
    alike = [
        log
        for log in logs
        if log["system"] == row["system"]
        and gpu in log["hardware"]
        and ("HELM" in log["prompt_len"]) == ("HELM" in row["prompt_len"])
        and ("HELM" not in row["prompt_len"] or log["prompt_len"] == row["prompt_len"])
    ]
    sizes = {log["gen_len"]: int(log["batch_or_requests"].split()[0]) for log in alike}
    return sizes[row["gen_len"]], math.gcd(*sizes.values())


def predicted_seconds(run: Run, known: Figures) -> tuple[float, float]:
    """Prefill and decode.

    In a layer, each micro-batch computes its attention's products, its router and all experts,
    whose weights it reads anew. MoE-Lightning copies the next layer's weights and attends on the
    CPU meanwhile (its CGOPipe), so that the slowest of the three counts. FlexGen relays what lies
    in unpinned memory through the thread that starts computation, so that both add up.
    """
    costs, model = known.costs, known.costs.model
    layers, spec = len(model.layers), model.layers[0]
    kv = spec.kv_bytes_per_token
    weights = spec.total_bytes * (1 - run.on_gpu)
    flexgen = run.system.startswith("FlexGen")

    def compute(tokens: int, attention_ns: float) -> float:
        rows = math.ceil(tokens * spec.top_k / spec.experts)
        hit = min(spec.experts, tokens * spec.top_k)
        one = costs.row_ns("router", tokens) + hit * costs.row_ns("expert", rows)
        return run.micro_batches * (attention_ns + one + costs.row_ns("combine", tokens)) / 1e9

    work = compute(
        run.micro_batch * run.prompt, costs.attention_ns(run.micro_batch, run.prompt, "prefill")
    )
    written = run.batch * run.prompt * kv
    if flexgen:
        prefill = work + weights / known.unpinned + written / known.unpinned_kv
    else:
        prefill = max(work, weights / known.link, written / known.link)
    step = 0.0
    for position in (run.prompt + 1, run.prompt + run.new_tokens):
        read = run.batch * position * kv
        on_gpu = flexgen and run.system != "FlexGen(c)"
        seen = position if on_gpu else 1
        work = compute(run.micro_batch, costs.attention_ns(run.micro_batch, seen, "decode"))
        if on_gpu:
            step += work + weights / known.unpinned + read / known.unpinned_kv
        elif flexgen:
            # keys and values are converted to float32 first: read, written twice as wide, read
            step += work + weights / known.unpinned + 5 * read / CPU_ATTENTION
        else:
            step += max(work, weights / known.link, read / CPU_ATTENTION)
    return prefill * layers, step / 2 * layers * (run.new_tokens - 1)


def tokens_per_second(run: Run, known: Figures) -> float:
    """New tokens over prefill and decode."""
    return run.batch * run.new_tokens / sum(predicted_seconds(run, known))


def calibrated(known: Figures, runs: list[Run]) -> tuple[Figures, float]:
    """One factor on the speed of products, such that HELM runs are off least (in logarithms)."""

    def scaled(factor: float) -> Figures:
        line = known.costs.roofline
        line = replace(line, flops_per_second=line.flops_per_second * factor)
        return replace(known, costs=replace(known.costs, roofline=line))

    def error(factor: float) -> float:
        there = scaled(factor)
        return sum(abs(math.log(tokens_per_second(run, there) / run.published)) for run in runs)

    best = min((number / 100 for number in range(4, 201)), key=error)
    return scaled(best), best


WHY = {
    "FlexGen": "the copy speeds were fitted to other micro-batches, and weigh most here",
    "FlexGen(c)": "attends on the CPU in float32, far slower than the memory it reads from; no "
    "figure of that is in any data sheet",
    "T4": "MoE-Lightning's kernels (Triton) reach a fraction of the tensor cores on a T4, which "
    "no data sheet says: see the calibrated column",
    "L4": "weights pass through a staging copy in host memory that shares it with the CPU's "
    "attention; the slowest part alone is priced",
}


def main() -> None:
    """Predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default)
    asked = parser.parse_args()
    record = Record.begin(seeds=(), budget="none", timed=False)
    config = asked.data / "configs" / "Mixtral-8x7B-v0.1.json"
    runs = read_rows(asked.data / "published_throughput.csv")
    machines = {gpu: figures(gpu, config) for gpu in ("T4", "L4")}
    helm = {gpu: [r for r in runs if r.gpu == gpu and "HELM" in r.note] for gpu in machines}
    fits = {gpu: calibrated(known, helm[gpu]) for gpu, known in machines.items()}
    table = []
    for run in runs:
        prefill, decode = predicted_seconds(run, machines[run.gpu])
        value = tokens_per_second(run, machines[run.gpu])
        second = None
        if run.system.startswith("MoE-Lightning") and "HELM" not in run.note:
            second = tokens_per_second(run, fits[run.gpu][0]) / run.published
        ratio = value / run.published
        factor = max(ratio, 1 / ratio)
        why = ""
        if factor > 1.3:
            why = WHY[run.system if run.system in WHY else run.gpu]
        table.append(
            {
                **asdict(run), "batch": run.batch, "predicted": value, "ratio": ratio,
                "factor": factor, "calibrated_ratio": second,
                "prefill_seconds": prefill, "decode_seconds": decode, "why": why,
            }
        )  # fmt: skip
    summary = summarize(table, {gpu: factor for gpu, (_, factor) in fits.items()})
    lines = markdown(table, summary)
    print("\n".join(lines))
    body = {"about": record.about(), **summary, "rows": table}
    write_result(RESULTS / "published.json", body, "\n".join(lines) + "\n")


def summarize(table: list[dict[str, Any]], factors: dict[str, float]) -> dict[str, Any]:
    """Medians of factors, and how many rows are within 1.3."""

    def median(values: list[float]) -> float:
        return statistics.median(max(one, 1 / one) for one in values)

    ratios = [row["ratio"] for row in table]
    best = [
        row["ratio"] if row["calibrated_ratio"] is None else row["calibrated_ratio"]
        for row in table
        if "HELM" not in row["note"]
    ]
    by_system = {
        f"{system}, {gpu}": median(
            [r["ratio"] for r in table if (r["system"], r["gpu"]) == (system, gpu)]
        )
        for system in SYSTEMS
        for gpu in ("T4", "L4")
    }
    return {
        "median_factor": median(ratios),
        "rows_within_1.3": sum(max(one, 1 / one) <= 1.3 for one in ratios),
        "row_count": len(ratios),
        "median_factor_calibrated": median(best),
        "calibrated_within_1.3": sum(max(one, 1 / one) <= 1.3 for one in best),
        "calibrated_row_count": len(best),
        "calibration": factors,
        "median_factor_by_system": by_system,
    }


def markdown(table: list[dict[str, Any]], summary: dict[str, Any]) -> list[str]:
    """The results page."""
    lines = [
        "# Published policies, predicted from data sheets",
        "",
        f"Median factor {summary['median_factor']:.2f} over {summary['row_count']} rows, "
        f"{summary['rows_within_1.3']} of them within 1.3. With products calibrated on "
        f"MoE-Lightning's HELM runs (T4 x {summary['calibration']['T4']:.2f}, "
        f"L4 x {summary['calibration']['L4']:.2f}): {summary['median_factor_calibrated']:.2f} over "
        f"the {summary['calibrated_row_count']} others, {summary['calibrated_within_1.3']} within "
        "1.3. FlexGen's rows use a copy speed that others fitted to such runs.",
        "",
        "| system | GPU | tokens | batch | published | predicted | ratio | calibrated | note |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        second = "" if row["calibrated_ratio"] is None else f"{row['calibrated_ratio']:.2f}"
        note = "; ".join(filter(None, (row["note"], "missed" if row["why"] else "")))
        lines.append(
            f"| {row['system']} | {row['gpu']} | {row['prompt']} + {row['new_tokens']} | "
            f"{row['micro_batches']} x {row['micro_batch']} | {row['published']:.1f} | "
            f"{row['predicted']:.1f} | {row['ratio']:.2f} | {second} | {note} |"
        )
    lines += ["", "Why rows miss:", ""]
    lines += sorted(
        {f"- {row['system']} on {row['gpu']}: {row['why']}" for row in table if row["why"]}
    )
    return lines


if __name__ == "__main__":
    main()
