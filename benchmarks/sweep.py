"""A sweep of 200 pairs: by processes here, and on Ray with its driver killed on the way.

    python benchmarks/sweep.py [--kills 2] [--seed 0] [--workers 2] [--time-limit 1] [--machines 10]
        [--out FILE]

Four small models on ten machines of the catalogue within five budgets, one of them too small. The
sweep on Ray is ended by ``kill -9`` of its driver, each time when a random number of plans is kept,
and started again; it must end in the documents of the other, byte for byte, and nothing of a killed
Ray may be left running. Writes benchmarks/results/sweep.json.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks.record import Record
from benchmarks.writing import write_result
from moeplan.service.store import Store
from moeplan.service.store.tables import documents, jobs

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
SHAPES = {
    "mixtral-4x8": ("mixtral", 4, {"num_local_experts": 8, "intermediate_size": 224}),
    "mixtral-6x4": ("mixtral", 6, {"num_local_experts": 4, "intermediate_size": 448}),
    "olmoe-4x16": ("olmoe", 4, {"num_experts": 16, "intermediate_size": 64}),
    "qwen3-3x24": ("qwen3_moe", 3, {"num_experts": 24, "moe_intermediate_size": 48}),
}
"""Name -> family, layers, and what is its own."""
COMMON = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
MACHINES = (
    *("a100-80gb", "a10", "b200", "h100-sxm", "h200", "l4", "rtx-3090", "rtx-4090", "t4"),
    "v100-32gb",
)
BUDGETS = ("1MiB", "25MiB", "26MiB", "28MiB", "40MiB")
_KILLED_AT = (0.05, 0.7)
"""Of all plans, how many are kept when a driver is killed."""
_END_SECONDS = 120.0


@dataclass
class Run:
    """One sweep, in as many parts as it was killed."""

    seconds: list[float] = field(default_factory=list)
    kept_at_kill: list[int] = field(default_factory=list)
    left_running: int = 0
    ended_seconds: list[float] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)


def write_models(folder: Path) -> list[Path]:
    """The models' configurations."""
    made = []
    for name, (family, layers, own) in SHAPES.items():
        config = {**COMMON, "model_type": family, "num_hidden_layers": layers, **own}
        made.append(folder / f"{name}.json")
        made[-1].write_text(json.dumps(config))
    return made


def contents(store: Path) -> tuple[set[Any], set[Any]]:
    """Documents and jobs, without their times."""
    opened = Store(f"sqlite:///{store}")
    with opened.database.read() as connection:
        bodies = connection.execute(sa.select(documents.c.kind, documents.c.hash, documents.c.body))
        found = {tuple(row) for row in bodies}
        columns = (jobs.c.id, jobs.c.state, jobs.c.result_hash, jobs.c.error)
        ended = {tuple(row) for row in connection.execute(sa.select(*columns))}
    opened.close()
    return found, ended


def plans(store: Path) -> int:
    """How many are kept."""
    if not store.exists():
        return 0
    opened = Store(f"sqlite:///{store}")
    count = opened.documents.counts().get("plan", 0)
    opened.close()
    return count


def sweep(arguments: list[str], store: Path, kill_at: list[int]) -> Run:
    """Carry a sweep out to its end, killed at so many plans and started again each time."""
    command = [sys.executable, "-m", "moeplan", "sweep", *arguments, "--json"]
    run = Run()
    for limit in [*kill_at, None]:
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, "--store", f"sqlite:///{store}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        while limit is not None and process.poll() is None:
            if plans(store) >= limit:
                family = psutil.Process(process.pid).children(recursive=True)
                os.kill(process.pid, signal.SIGKILL)
                killed = time.monotonic()
                _, alive = psutil.wait_procs(family, timeout=_END_SECONDS)
                run.ended_seconds.append(time.monotonic() - killed)
                run.left_running += len(alive)
                run.kept_at_kill.append(plans(store))
                print(f"  killed with {run.kept_at_kill[-1]} plans kept", flush=True)
                break
            time.sleep(0.2)
        said, _ = process.communicate()
        run.seconds.append(time.monotonic() - start)
        if process.returncode == 0:
            run.said = json.loads(said)
            return run
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the sweep ended with {process.returncode}")
    raise RuntimeError("the sweep did not end")


def main() -> int:
    """Print the figures and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=1.0)
    parser.add_argument("--machines", type=int, choices=range(1, 11), default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "sweep.json")
    options = parser.parse_args()
    record = Record.begin(seeds=(options.seed,), budget=f"{options.time_limit:g} s a search")
    machines = MACHINES[: options.machines]
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="moeplan-sweep-") as name:
        folder = Path(name)
        arguments = [
            *("--models", ",".join(map(str, write_models(folder)))),
            *("--hardware", ",".join(machines), "--budgets", ",".join(BUDGETS)),
            *("--routing", "zipf:1", "--time-limit", str(options.time_limit)),
            *("--requests", "4", "--prompt-tokens", "16", "--new-tokens", "4"),
            *("--workers", str(options.workers)),
        ]
        print("local", flush=True)
        local = sweep(arguments, folder / "local.db", [])
        print("ray", flush=True)
        made = local.said["planned"]
        kills = sorted(int(made * random.uniform(*_KILLED_AT)) for _ in range(options.kills))
        ray = sweep([*arguments, "--engine", "ray"], folder / "ray.db", kills)
        same = contents(folder / "local.db") == contents(folder / "ray.db")
    counts = {key: local.said[key] for key in ("pairs", "planned", "refused", "failed")}
    figures = {
        "workers": options.workers,
        "time_limit_seconds": options.time_limit,
        **counts,
        "local_seconds": round(sum(local.seconds), 1),
        "ray_seconds": [round(one, 1) for one in ray.seconds],
        "ray_plans_kept_at_kills": ray.kept_at_kill,
        "ray_found_at_the_end": ray.said["found"],
        "ray_planned_at_the_end": ray.said["planned"],
        "seconds_until_all_of_ray_ended": [round(one, 1) for one in ray.ended_seconds],
        "processes_left_by_kills": ray.left_running,
        "same_documents": same,
        "same_record": local.said["sweep"] == ray.said["sweep"],
    }
    for key, value in figures.items():
        print(f"{key:31} {value}")
    write_result(options.out, {"about": record.about(), **figures})
    return 0 if same and not ray.left_running else 1


if __name__ == "__main__":
    sys.exit(main())
