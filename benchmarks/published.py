"""Published policies of MoE-Lightning and FlexGen (Mixtral-8x7B on a T4, an L4) from data sheets.

    python benchmarks/published.py [--data ../shared/data]

Each row's own policy is priced with the catalogue's figures and the roofline that planning uses.
No number is fitted to the rows, which would be circular: what a system does was read in its code
(caoshiyi/artifacts, and lynnliu030/FlexGen, the port of FlexGen to Mixtral that it runs), what that
costs comes from data sheets and from measurements of parts. Which row misses did say where to read.
moeplan's planner cannot express these policies (keys and values in host memory, attention on the
CPU, copies through unpinned memory), so that the pipeline is written out here, layer by layer;
experts are chosen alike. Writes benchmarks/results/published.*.
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
CPU = 48.17e9
"""Bytes that a CPU moves in a second: MoE-Lightning's timing of one layer's attention, micro-batch
256, context 2048 (shared hardware.csv, derived_cpu_attention_bandwidth)."""
UNPINNED = {"T4": 5.4299 * GIB, "L4": 5.4443 * GIB}
"""Bytes/s from unpinned memory to the GPU: FlexGen's cost model refitted on Mixtral on these
machines by MoE-Lightning's authors (fitted_cpu_to_gpu). The one input that knows FlexGen's runs."""
STORED = {"T4": 0.97 * GIB, "L4": UNPINNED["L4"]}
"""Bytes/s of keys and values from the GPU to unpinned memory: fitted by FlexGen's authors to OPT
on a T4 (fitted_gpu_to_cpu_kv_cache); no such figure of an L4, whose ways are taken to be alike."""
BLOCKS = (64, 16)
"""Rows of a block of the Triton kernel in which both systems compute all experts of a layer; the
second where there are no more pairs of token and expert than experts."""
TRITON = {"T4": 0.537, "L4": 1.0}
"""Share of the best product that Triton's reach. Its compiler (2.2) multiplies on a T4 by
instructions made for the generation before: on an RTX 2080, of the T4's generation, it reached
this, the median over sizes from 2048 (triton-lang/triton, issue 189). On an L4 nothing says less
than all."""
ALLOWED = 1.3
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
    """A machine as its rows have it; ``fused`` is what its experts' kernel reaches."""

    costs: OperationCosts
    fused: Roofline
    blocks: tuple[int, int]
    link: float
    unpinned: float
    stored: float


def figures(gpu: str, config: Path) -> Figures:
    """The catalogue's machine."""
    machine, model = named_machine(f"{gpu.lower()}-gcp"), read_model(config)
    dtype = choose_dtype(model, machine, "float16" if gpu == "T4" else "bfloat16")
    link = machine.link_bytes_per_second
    if link is None:
        raise AssertionError(machine.name)
    line = Roofline.of(machine, dtype)
    fused = replace(line, flops_per_second=line.flops_per_second * TRITON[gpu])
    costs = OperationCosts(line, model, 2, link.value)
    return Figures(costs, fused, BLOCKS, link.value, UNPINNED[gpu], STORED[gpu])


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
        prompt = int(re.findall(r"\d+", row["prompt_len"])[0])
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
        # MoE-Lightning keeps whole experts: its policy's 0.0559 of 8 are none
        on_gpu = int(share[1]) / 100 if share else 0.0
        if "HELM" in row["prompt_len"]:
            note = "HELM; " + note
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


def experts_ns(known: Figures, tokens: int) -> float:
    """All experts of a layer in one kernel: each reads its weights, and computes whole blocks of
    rows, whether filled or not."""
    model, spec = known.costs.model, known.costs.model.layers[0]
    pairs = tokens * spec.top_k
    block = known.blocks[pairs <= spec.experts]
    hit = min(spec.experts, pairs)
    rows = block * math.ceil(pairs / hit / block)
    flops = 2 * known.costs.expert_values() * rows * hit
    width = 4 * (model.hidden_size + spec.expert_intermediate) * known.costs.dtype_bytes
    return known.fused.ns("expert", flops, hit * spec.expert_bytes + pairs * width)


def float32_attention_moves(queries_per_key: int) -> int:
    """Bytes through the CPU for each byte of float16 keys and values, in FlexGen's attention there.

    They are copied into a float32 workspace, repeated for each query's head, and read by the
    products. A store moves its cache line twice: the line is read before it is written.
    """
    into_workspace = 1 + 2 * 2
    repeated = 2 + 2 * 2 * queries_per_key
    return into_workspace + repeated + 2 * queries_per_key


def predicted_seconds(run: Run, known: Figures) -> tuple[float, float]:
    """Prefill and decode.

    In a layer, each micro-batch computes its attention's products, its router and all experts.
    MoE-Lightning keeps dense parts on the GPU, copies the next layer's experts through a pinned
    buffer, and attends on the CPU meanwhile (its CGOPipe): the slowest of GPU, link and CPU counts.
    FlexGen pins what it copies in the thread that starts computation, so that all add up.
    """
    costs, model = known.costs, known.costs.model
    layers, spec = len(model.layers), model.layers[0]
    kv = spec.kv_bytes_per_token
    flexgen = run.system.startswith("FlexGen")
    heads = 2 * model.attention_heads * model.head_dim * costs.dtype_bytes // kv

    def compute(tokens: int, attention_ns: float) -> float:
        one = costs.row_ns("router", tokens) + experts_ns(known, tokens)
        return run.micro_batches * (attention_ns + one + costs.row_ns("combine", tokens)) / 1e9

    copied = spec.total_bytes if flexgen else spec.experts * spec.expert_bytes
    weights = copied * (1 - run.on_gpu)
    work = compute(
        run.micro_batch * run.prompt, costs.attention_ns(run.micro_batch, run.prompt, "prefill")
    )
    written = run.batch * run.prompt * kv
    if flexgen:
        prefill = work + weights / known.unpinned + written / known.stored
    else:
        prefill = max(work, weights / known.link, written / known.link)
    step = 0.0
    for position in (run.prompt + 1, run.prompt + run.new_tokens):
        read = run.batch * position * kv
        on_gpu = flexgen and run.system != "FlexGen(c)"
        seen = position if on_gpu else 1
        work = compute(run.micro_batch, costs.attention_ns(run.micro_batch, seen, "decode"))
        if on_gpu:
            # repeated there for each query's head: read, written and read
            work += 2 * heads * read / costs.roofline.bytes_per_second
            step += work + (weights + read) / known.unpinned
        elif flexgen:
            step += work + weights / known.unpinned + float32_attention_moves(heads) * read / CPU
        else:
            # the pinned buffer is written by the CPU: read, and a store
            step += max(work, weights / known.link, (3 * weights + read) / CPU)
    return prefill * layers, step / 2 * layers * (run.new_tokens - 1)


def tokens_per_second(run: Run, known: Figures) -> float:
    """New tokens over prefill and decode."""
    return run.batch * run.new_tokens / sum(predicted_seconds(run, known))


SHARE = (
    "the kernel's share of the best product is an RTX 2080's with an older Triton and blocks of "
    "its choice; with blocks fixed at 64 x 64 a T4's may be less"
)
UNEQUAL = (
    "what rows of 32 new tokens leave for prompts of unequal length is twice what is predicted or "
    "more, which nothing here explains"
)
WHY = {
    ("MoE-Lightning(p)", "T4"): SHARE,
    ("MoE-Lightning", "T4"): f"{SHARE}; {UNEQUAL}",
    ("MoE-Lightning", "L4"): f"{UNEQUAL}; one policy's runs are published 1.31 apart (217.5 and "
    "286.0 tokens/s), more than a row may be off; the micro-batch of HELM's is assumed",
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
    table = []
    for run in runs:
        prefill, decode = predicted_seconds(run, machines[run.gpu])
        value = tokens_per_second(run, machines[run.gpu])
        ratio = value / run.published
        factor = max(ratio, 1 / ratio)
        table.append(
            {
                **asdict(run), "batch": run.batch, "predicted": value, "ratio": ratio,
                "factor": factor, "prefill_seconds": prefill, "decode_seconds": decode,
                "why": WHY.get((run.system, run.gpu), "not known") if factor > ALLOWED else "",
            }
        )  # fmt: skip
    summary = {**summarize(table), "without": without(runs, machines)}
    lines = markdown(table, summary)
    print("\n".join(lines))
    body = {"about": record.about(), **summary, "rows": table}
    write_result(RESULTS / "published.json", body, "\n".join(lines) + "\n")


def summarize(table: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of factors, and how many rows are within 1.3."""
    by_system = {
        f"{system}, {gpu}": statistics.median(
            [row["factor"] for row in table if (row["system"], row["gpu"]) == (system, gpu)]
        )
        for system in SYSTEMS
        for gpu in ("T4", "L4")
    }
    return {
        "median_factor": statistics.median([row["factor"] for row in table]),
        "rows_within_1.3": sum(row["factor"] <= ALLOWED for row in table),
        "row_count": len(table),
        "median_factor_by_system": by_system,
    }


def without(runs: list[Run], machines: dict[str, Figures]) -> dict[str, float]:
    """The median factor if what was read in the systems' code were not reckoned with."""

    def middle(there: dict[str, Figures]) -> float:
        ratios = [tokens_per_second(run, there[run.gpu]) / run.published for run in runs]
        return statistics.median(max(one, 1 / one) for one in ratios)

    return {
        "share": middle(
            {gpu: replace(one, fused=one.costs.roofline) for gpu, one in machines.items()}
        ),
        "blocks": middle({gpu: replace(one, blocks=(1, 1)) for gpu, one in machines.items()}),
    }


def markdown(table: list[dict[str, Any]], summary: dict[str, Any]) -> list[str]:
    """The results page."""
    lines = [
        "# Published policies, predicted from data sheets",
        "",
        f"Median factor {summary['median_factor']:.2f} over {summary['row_count']} rows, "
        f"{summary['rows_within_1.3']} of them within 1.3. No number is fitted to these rows, "
        "which would be circular; but FlexGen's use a copy speed that others fitted to such runs, "
        "and which mechanisms count was looked up in both systems' code where rows missed. "
        f"Without Triton's share on a T4, {summary['without']['share']:.2f}; without whole blocks "
        f"of rows, {summary['without']['blocks']:.2f}.",
        "",
        "| system | GPU | tokens | batch | published | predicted | ratio | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        note = "; ".join(filter(None, (row["note"], "missed" if row["why"] else "")))
        lines.append(
            f"| {row['system']} | {row['gpu']} | {row['prompt']} + {row['new_tokens']} | "
            f"{row['micro_batches']} x {row['micro_batch']} | {row['published']:.1f} | "
            f"{row['predicted']:.1f} | {row['ratio']:.2f} | {note} |"
        )
    lines += ["", "Why rows miss:", ""]
    lines += sorted(
        {f"- {row['system']} on {row['gpu']}: {row['why']}" for row in table if row["why"]}
    )
    return lines


if __name__ == "__main__":
    main()
