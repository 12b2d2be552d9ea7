"""Mixed requests for a long time under a cap: is memory flat, does speed drift, does it hang?

    python benchmarks/long_run.py --work DIR [--minutes 30]       # root only: it makes a cgroup

A checkpoint of random weights is packed, profiled and planned for; its KV is large, so that not
all requests fit at once and those that wait take places that become free. One process, whose
control group may have the budget and what a process takes beside it (page cache included), then
runs a cycle of rounds again and again with one engine. The rounds are drawn once, from the seed:
one to all of the plan's requests, of unequal lengths and limits; greedy, drawn, stopped by a text,
streamed, streamed and closed, cancelled from another thread. As all cycles are alike, their speeds
can be compared, and each has to bring the first one's tokens again. A run that is not done some
minutes after its time is a hang.

Slopes are of least squares over cycles, the first apart (it warms up), with 95% intervals. Writes
benchmarks/results/long_run.json and .md (``--out``).
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")
ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

import argparse
import json
import random
import signal
import statistics
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.capped import Limits, run_capped
from benchmarks.record import Record, machine_words
from benchmarks.writing import write_result
from executor.caps import PROCESS_BYTES
from planner.documents import Plan, Workload, load_document, write_document
from planner.documents.writing import write_atomic
from planner.profiles import load_profile
from planner.solve import make_plan
from solvers.errors import CancelledError, MoeplanError, RunError

if TYPE_CHECKING:
    from executor import Engine, Sampling

MIB = 1 << 20
CONFIG = ROOT / "examples" / "configs" / "bulk-mixtral.json"
CHANGED = {"num_key_value_heads": 16, "intermediate_size": 1024}
LAYERS = 6
BUDGET_BYTES = 115 * MIB
WORKLOAD = Workload(requests=32, prompt_tokens=48, new_tokens=16)
KINDS = ("greedy", "drawn", "stopped", "streamed", "closed", "cancelled")
ROUNDS = 2 * len(KINDS)
_SLACK_SECONDS = 300.0
"""For loading, and for the round that is going on when time is up."""

Document = dict[str, Any]


class Round(NamedTuple):
    """One call of the engine; ``after`` is how many new tokens are waited for before its end."""

    kind: str
    prompts: list[list[int]]
    limits: list[int]
    sampling: Sampling | None
    after: int


# --- the process under the cap --------------------------------------------------------------------


def draw_rounds(plan: Plan, walks: list[list[int]], seed: int) -> list[Round]:
    """One cycle: each kind twice, in an order of the seed."""
    from executor import Sampling

    draw, load = random.Random(seed), plan.workload
    kinds = [kind for kind in KINDS for _ in range(ROUNDS // len(KINDS))]
    draw.shuffle(kinds)
    rounds = []
    for number, kind in enumerate(kinds):
        # the largest group there is once at least, and otherwise what comes
        count = load.requests if number == 0 else draw.randint(1, load.requests)
        prompts = [
            walk[: draw.randint(1, load.prompt_tokens)] for walk in draw.sample(walks, count)
        ]
        limits = [draw.randint(1, load.new_tokens) for _ in prompts]
        drawn = kind == "drawn" or draw.random() < 0.3
        sampling = Sampling(0.9, top_k=50, top_p=0.95, seed=number) if drawn else None
        rounds.append(Round(kind, prompts, limits, sampling, draw.randint(1, sum(limits))))
    return rounds


def carry_out(engine: Engine, one: Round) -> list[list[int]]:
    """Tokens of one round, as far as it got."""
    if one.kind in ("streamed", "closed"):
        pieces = engine.stream(one.prompts, one.limits, sampling=one.sampling)
        for count, _ in enumerate(pieces, 1):
            if one.kind == "closed" and count == one.after:
                break
        pieces.close()  # type: ignore[attr-defined]
    elif one.kind == "cancelled":
        due = threading.Event()
        other = threading.Thread(target=lambda: (due.wait(), engine.cancel()))
        other.start()
        try:
            engine.generate(
                one.prompts,
                one.limits,
                lambda done, _: due.set() if done >= one.after else None,
                sampling=one.sampling,
            )
        except CancelledError:
            pass
        finally:
            due.set()
            other.join()
    else:
        # a digit that some words of the synthetic tokenizer have
        stop = ["7"] if one.kind == "stopped" else []
        engine.generate(one.prompts, one.limits, sampling=one.sampling, stop=stop)
    return [list(output.token_ids) for output in engine.outputs]


def agrees(kind: str, found: list[list[int]], first: list[list[int]]) -> bool:
    """Whether a round brought what it brought in the first cycle.

    Where another thread ended it, one may have got further than the other.
    """
    if kind != "cancelled":
        return found == first
    return all(
        a[: min(len(a), len(b))] == b[: min(len(a), len(b))]
        for a, b in zip(found, first, strict=True)
    )


def own_state() -> Document:
    """Memory, threads and open files of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    words = dict(line.split(":", 1) for line in lines)
    return {
        # without pages of programs and libraries, which the kernel takes and gives
        "own_bytes": int(words["VmRSS"].split()[0]) - int(words["RssFile"].split()[0]) << 10,
        "threads": int(words["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
    }


def run_cycles(plan: Plan, walks: list[list[int]], seconds: float, seed: int) -> Document:
    """Cycle after cycle until time is up; the last one is whole."""
    from executor import Engine

    rounds = draw_rounds(plan, walks, seed)
    first: list[list[list[int]]] = []
    cycles: list[Document] = []
    passes = 0
    with Engine.from_plan(plan) as engine:
        begun = time.monotonic()
        while not cycles or time.monotonic() - begun < seconds:
            start, whole, tokens, longest, wrong, most = time.monotonic(), 0.0, 0, 0.0, 0, 0
            for number, one in enumerate(rounds):
                before = time.monotonic()
                found = carry_out(engine, one)
                took = time.monotonic() - before
                if not cycles:
                    first.append(found)
                wrong += not agrees(one.kind, found, first[number])
                longest, passes = max(longest, took), passes + engine.trace().totals.passes
                if one.kind != "cancelled":
                    whole, tokens = whole + took, tokens + sum(map(len, found))
                most = max(most, own_state()["own_bytes"])
            cycles.append(
                {
                    "at_seconds": round(start - begun, 2),
                    "seconds": round(time.monotonic() - start, 2),
                    "tokens_per_second": round(tokens / whole, 3),
                    "longest_round_seconds": round(longest, 2),
                    "wrong_rounds": wrong,
                    "most_own_bytes": most,
                    **own_state(),
                }
            )
        peak = engine.trace().totals.process_peak_bytes
    return {
        "cycles": cycles,
        "passes": passes,
        "tokens_in_a_cycle": sum(len(ids) for found in first for ids in found),
        "requests_in_a_cycle": sum(len(one.prompts) for one in rounds),
        "process_peak_bytes": peak,
    }


# --- what starts it, and what it says -------------------------------------------------------------


def slope(at: list[float], values: list[float]) -> Document:
    """Least squares: change per hour with its 95% interval, and the values' median.

    ``at`` in seconds. Fewer than four points have no slope.
    """
    found: Document = {"median": statistics.median(values), "per_hour": None, "low": None}
    found["high"] = None
    if len(at) < 4:
        return found
    middle, mean = statistics.fmean(at), statistics.fmean(values)
    spread = sum((one - middle) ** 2 for one in at)
    rate = sum((x - middle) * (y - mean) for x, y in zip(at, values, strict=True)) / spread
    left = sum((y - mean - rate * (x - middle)) ** 2 for x, y in zip(at, values, strict=True))
    half = 1.96 * (left / (len(at) - 2) / spread) ** 0.5
    return found | {
        "per_hour": 3600 * rate,
        "low": 3600 * (rate - half),
        "high": 3600 * (rate + half),
    }


def judged(document: Document) -> Document:
    """Slopes, and the first quarter of the time against the last."""
    cycles = document["cycles"][1:] or document["cycles"]
    at = [one["at_seconds"] + one["seconds"] / 2 for one in cycles]
    quarter = max(len(cycles) // 4, 1)
    speeds = [one["tokens_per_second"] for one in cycles]
    own = [one["own_bytes"] / MIB for one in cycles]
    return {
        "seconds": round(sum(one["seconds"] for one in document["cycles"]), 1),
        "cycles": len(document["cycles"]),
        "wrong_rounds": sum(one["wrong_rounds"] for one in document["cycles"]),
        "longest_round_seconds": max(one["longest_round_seconds"] for one in document["cycles"]),
        "tokens_per_second": slope(at, speeds)
        | {
            "first_quarter": statistics.median(speeds[:quarter]),
            "last_quarter": statistics.median(speeds[-quarter:]),
        },
        "own_mib": slope(at, own) | {"least": min(own), "most": max(own)},
        "threads": sorted({one["threads"] for one in cycles}),
        "files": sorted({one["files"] for one in cycles}),
    }


def markdown(result: Document) -> str:
    """A page of the same."""
    plan, found = result["plan"], result["judged"]
    speed, memory = found["tokens_per_second"], found["own_mib"]

    def change(one: Document, unit: str) -> str:
        if one["per_hour"] is None:
            return "too few cycles for a slope"
        return f"{one['per_hour']:+.2f} {unit} an hour ({one['low']:+.2f} to {one['high']:+.2f})"

    rows = (
        ("time", f"{found['seconds'] / 60:.1f} min, {found['cycles']} cycles of {ROUNDS} rounds"),
        ("hangs", f"none; the longest round took {found['longest_round_seconds']:.1f} s"),
        ("rounds with other tokens than in the first cycle", str(found["wrong_rounds"])),
        (
            "peak of the control group",
            f"{result['peak_bytes'] / MIB:.0f} MiB of {result['cap_bytes'] / MIB:.0f} allowed",
        ),
        (
            "memory after a cycle, without libraries' pages",
            f"{memory['least']:.1f} to {memory['most']:.1f} MiB; {change(memory, 'MiB')}",
        ),
        (
            "speed",
            f"median {speed['median']:.2f} tokens/s; first quarter {speed['first_quarter']:.2f}, "
            f"last {speed['last_quarter']:.2f}; {change(speed, 'tokens/s')}",
        ),
        ("threads", " ".join(map(str, found["threads"]))),
        ("open files", " ".join(map(str, found["files"]))),
    )
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        "# Mixed requests for a long time\n\n"
        f"{machine_words(result['about']['machine'])}. Seed {result['seed']}. "
        f"Random weights of {result['weights_bytes'] / MIB:.0f} MiB within "
        f"{plan['budget_bytes'] / MIB:.0f} MiB; {plan['requests']} requests at most, in groups of "
        f"{plan['n_batches']} x {plan['batch_size']}; {result['requests_in_a_cycle']} requests a "
        "cycle: greedy, drawn, stopped by a text, streamed, closed and cancelled. Measured; "
        "slopes by least squares with 95% intervals, the first cycle apart.\n\n"
        f"| what | measured |\n|---|---|\n{table}\n"
    )


def prepare(work: Path, seed: int) -> tuple[Path, Plan]:
    """The checkpoint, its store and profile, made where they are missing, and a plan."""

    def moeplan(*words: object) -> None:
        command = [sys.executable, "-m", "moeplan", *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError((done.stderr.strip().splitlines() or ["no word"])[-1])

    checkpoint, store, profile = work / "checkpoint", work / "store", work / "profile"
    if not (checkpoint / "config.json").exists():
        shape = json.loads(CONFIG.read_text(encoding="utf-8")) | CHANGED
        write_atomic(work / "shape.json", json.dumps(shape).encode())
        moeplan("synth", work / "shape.json", "--layers", LAYERS, "--out", checkpoint)
    if not (store / "store.json").exists():
        moeplan("pack", checkpoint, store)
    if not (profile / "profile.json").exists():
        moeplan("profile", checkpoint, "--memory", BUDGET_BYTES, "--store", store, "--out", profile)
    plan = make_plan(load_profile(profile), WORKLOAD, memory_bytes=BUDGET_BYTES, seed=seed)
    write_document(plan, work / "plan.json")
    return checkpoint, plan


def main(argv: list[str] | None = None) -> int:
    """Prepare, run under the cap, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of what is made, kept")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    # the process under the cap is this file again
    parser.add_argument("--carry-out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    work = options.work.resolve()
    if options.carry_out is not None:
        plan = load_document(Plan, work / "plan.json")
        walks = json.loads((work / "walks.json").read_text(encoding="utf-8"))
        found = run_cycles(plan, walks, 60 * options.minutes, options.seed)
        write_atomic(options.carry_out, json.dumps(found).encode())
        return 0
    # what runs under the cap ends with this process, however that ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work.mkdir(parents=True, exist_ok=True)
    checkpoint, plan = prepare(work, options.seed)
    record = Record.begin(seeds=(options.seed,), budget=f"{options.minutes:g} minutes")
    lines = (checkpoint / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    walks = [[int(word[1:]) for word in json.loads(line)["prompt"].split()] for line in lines]
    (work / "walks.json").write_text(json.dumps(walks), encoding="utf-8")
    cap = plan.memory["device"].capacity_bytes + PROCESS_BYTES
    out = work / "cycles.json"
    command = [sys.executable, str(Path(__file__).resolve()), "--work", str(work)]
    command += ["--minutes", str(options.minutes), "--seed", str(options.seed)]
    limits = Limits(cap, None, 60 * options.minutes + _SLACK_SECONDS)
    ended = run_capped([*command, "--carry-out", str(out)], out, limits, work)
    if ended.document is None:
        raise RunError(f"the run failed: {ended.reason}")
    result = {
        "about": record.about(),
        "seed": options.seed,
        "minutes": options.minutes,
        "weights_bytes": sum(one.stat().st_size for one in checkpoint.glob("*.safetensors")),
        "plan": {
            "budget_bytes": plan.memory["device"].capacity_bytes,
            "device_peak_bytes": plan.memory["device"].peak_bytes,
            "solver": plan.solver,
            "requests": plan.workload.requests,
            "n_batches": plan.policy.n_batches,
            "batch_size": plan.policy.batch_size,
        },
        "cap_bytes": cap,
        "peak_bytes": ended.peak_bytes,
        "others_cores": round(ended.others_cores, 2),
        "judged": judged(ended.document),
        **ended.document,
    }
    page = markdown(result)
    write_result(options.out / "long_run.json", result, page)
    print(page)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MoeplanError as error:
        sys.exit(f"long run: {error}")
