"""What the benchmark of predictions runs: checkpoints, budgets and workloads, and their prompts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

from executor.synth import write_synthetic
from executor.tokenizer import load_tokenizer
from planner.documents import Workload
from planner.profiles import Profile
from profiler import bundled_prompts

ROOT = Path(__file__).resolve().parents[1]


class Job(NamedTuple):
    """One checkpoint, and the cells that it is run in."""

    checkpoint: Path
    memory: tuple[float, ...]
    requests: tuple[int, ...]
    prompt_tokens: int
    new_tokens: int
    seconds: float = 0.0


def grid(work: Path) -> list[Job]:
    """The trained example, and two checkpoints of random weights, made where they are missing.

    Runs of the example of one second differed by half, with how the machine did in that second,
    and those of five to ten seconds by 20 to 40%.
    """
    jobs = [Job(ROOT / "examples" / "pycode-moe", (0.45, 0.7), (4, 16), 32, 160, 20.0)]
    bulk = (
        ("mixtral", ROOT / "examples" / "configs" / "bulk-mixtral.json", 5),
        ("olmoe", ROOT / "benchmarks" / "configs" / "bulk-olmoe.json", 4),
    )
    for name, config, layers in bulk:
        folder = work / name
        if not (folder / "config.json").exists():
            write_synthetic(config, folder, layers=layers)
        jobs.append(Job(folder, (0.4, 0.7), (8, 48), 32, 8, 7.0))
    return jobs


def run_prompts(profile: Profile, workload: Workload, turn: int = 0) -> list[list[int]]:
    """Token ids of unequal length, the longest as planned; in each ``turn`` others, as far as there
    are so many.

    Bundled texts that the profile has not recorded, or a synthetic checkpoint's own prompts; random
    tokens where there is no tokenizer.
    """
    folder, count = Path(profile.index.checkpoint), workload.requests
    longest = workload.prompt_tokens
    own = folder / "prompts.jsonl"
    if not (folder / "tokenizer.json").exists():
        generator = random.Random(turn)
        vocabulary = profile.model.vocab_size
        ids = [[generator.randrange(vocabulary) for _ in range(longest)] for _ in range(count)]
    else:
        tokenizer = load_tokenizer(folder)
        if own.exists():
            lines = own.read_text(encoding="utf-8").splitlines()
            texts = [json.loads(line)["prompt"] for line in reversed(lines)]
        else:
            texts = bundled_prompts(64 + (turn + 1) * count)[64:]
        places = [(turn * count + index) % len(texts) for index in range(count)]
        ids = [tokenizer.encode(texts[at]) for at in places]
    return [one[: max(longest - index % 4, 1)] for index, one in enumerate(ids)]
