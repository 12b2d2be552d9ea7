"""Faults in the read path, one seeded run after another: right tokens or one clear error.

    python benchmarks/faults.py [--checkpoint examples/pycode-moe] [--runs 200] [--delay 1.0]

Packs the checkpoint and runs a few prompts from the store, with everything streamed and every read
held against its checksum. Run i meets, by its seed, one of: short reads, one read error, delays of
``--delay`` seconds, one flipped bit, or all of these. Its tokens are compared with those of a run
without faults. A run that has not ended after a minute and its delays is a hang, and ends the
benchmark. Writes benchmarks/results/faults.json (``--out``).
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

# not the script's own folder, which has a file of the name of a package
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import errno
import json
import os
import random
import re
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import executor.embedding
import planner.memory
from benchmarks.record import Record
from executor import open_weights, pack
from executor.device import Device
from executor.direct import preadv
from executor.generation import Generation
from planner.documents import LayerPolicy, ModelSpec, Policy, Workload
from planner.memory import account_device, smallest_policy
from solvers.errors import MoeplanError

RESULTS = Path(__file__).parent / "results"
KINDS = ("short reads", "read error", "delays", "flipped bit", "all of them")
WORKLOAD = Workload(5, 9, 6)
PROMPTS = [[3 + (7 * i + j) % 200 for j in range(2 + 7 * i % 8)] for i in range(5)]
LIMITS = [6, 2, 5, 3, 6]
ROWS_BYTES = 16 << 10
"""Embedding rows that are kept, so that rows are read in every pass."""


@dataclass
class Faulty:
    """Reads that go wrong at places drawn from a seed.

    ``reads`` is how many a clean run makes, ``rows_bytes`` where the embedding and head end in the
    store: half of the flipped bits lie before, as few reads do.
    """

    kind: str
    seed: int
    reads: int
    rows_bytes: int
    delay_seconds: float
    delays: int = 0
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(self.seed)
        self.fails_at = draw.randrange(self.reads)
        self.flips_at = draw.randrange(self.reads)
        self.flips_before = draw.choice([self.rows_bytes, 1 << 62])
        self.late_at = {draw.randrange(self.reads) for _ in range(draw.randint(1, 3))}

    def has(self, kind: str) -> bool:
        return self.kind in (kind, "all of them")

    def __call__(self, descriptor: int, target: memoryview, offset: int) -> int:
        with self.lock:
            call, self.calls = self.calls, self.calls + 1
            cut = self.draw.choice([0, 0, 512, 4096, 12288]) if self.has("short reads") else 0
            bit = self.draw.randrange(8)
            place = self.draw.random()
            flips = call >= self.flips_at and offset < self.flips_before
            if flips:
                self.flips_at = 1 << 62
        if self.has("delays") and call in self.late_at:
            self.delays += 1
            time.sleep(self.delay_seconds)
        if self.has("read error") and call == self.fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        count = preadv(descriptor, target, offset)
        if self.has("flipped bit") and flips:
            target[int(place * count)] ^= 1 << bit
        # a whole block at least: of less, direct reads get the same again
        return min(count, max(count - cut, 4096))


def streamed(model: ModelSpec) -> Policy:
    """Two batches of two, a resident expert a layer, prefetches, and a tiled head."""
    width = model.dtype_bytes
    return replace(
        smallest_policy(model, width),
        n_batches=2,
        batch_size=2,
        layers=tuple(LayerPolicy(False, (0,), (5, 2)) for _ in model.layers),
        slots=4,
        dense_slots=2,
        chunk_bytes=16 << 10,
    )


def tokens_of(checkpoint: Path, store: Path, read: Faulty) -> list[list[int]]:
    """One run: places of ended sequences are taken by those that wait."""
    with open_weights(checkpoint, store, read_into=read) as source:
        policy, width = streamed(source.model), source.model.dtype_bytes
        budget = account_device(source.model, policy, WORKLOAD, width, 0).peak_bytes
        device = Device(source, policy, WORKLOAD, budget, verify=True)
        run = Generation(device, PROMPTS, LIMITS, frozenset())
        run.run(None)
        return run.results


def outcome(checkpoint: Path, store: Path, read: Faulty, want: list[list[int]]) -> str:
    """``right``, ``wrong``, ``hang``, or the error, without its numbers."""
    found: list[object] = []

    def work() -> None:
        try:
            found.append(tokens_of(checkpoint, store, read))
        except Exception as error:  # noqa: BLE001 - told apart below
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60 + 3 * read.delay_seconds)
    if not found:
        return "hang"
    error = found[0]
    if isinstance(error, MoeplanError) and "\n" not in str(error):
        words = re.sub(r"\S*weights\.bin", "weights.bin", str(error))
        return f"{type(error).__name__}: {re.sub('[0-9]+', 'N', words)}"
    if isinstance(error, Exception):
        return f"unclear: {error!r}"
    return "right" if error == want else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).resolve().parents[1] / "examples" / "pycode-moe"
    parser.add_argument("--checkpoint", type=Path, default=example)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    arguments = parser.parse_args()
    executor.embedding.EMBEDDING_CACHE_BYTES = planner.memory.EMBEDDING_CACHE_BYTES = ROWS_BYTES
    record = Record.begin(seeds=range(arguments.runs), budget="60 s a run, then it hangs")
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    delays, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        pack(arguments.checkpoint, store)
        with open_weights(arguments.checkpoint) as source:
            rows_bytes = source.model.embedding_bytes
        clean = Faulty("none", 0, 1, 1, 0.0)
        want = tokens_of(arguments.checkpoint, store, clean)
        for seed in range(arguments.runs):
            kind = KINDS[seed % len(KINDS)]
            read = Faulty(kind, seed, clean.calls, rows_bytes, arguments.delay)
            told = outcome(arguments.checkpoint, store, read, want)
            found[kind][told] += 1
            delays += read.delays
            if told == "hang":
                break
    every = sum(found.values(), Counter())
    result = {
        "about": record.about(),
        "checkpoint": arguments.checkpoint.name,
        "runs": every.total(),
        "reads_of_a_clean_run": clean.calls,
        "delay_seconds": arguments.delay,
        "delays": delays,
        "seconds": round(time.monotonic() - started, 1),
        "right": every["right"],
        "wrong": every["wrong"],
        "hangs": every["hang"],
        "unclear": sum(count for told, count in every.items() if told.startswith("unclear")),
        "outcomes": {kind: dict(told.most_common()) for kind, told in found.items()},
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    # a hanging read must not keep the interpreter
    sys.stdout.flush()
    os._exit(1 if result["wrong"] or result["hangs"] or result["unclear"] else 0)


if __name__ == "__main__":
    main()
