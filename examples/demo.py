"""The whole job, twice: the trained example checkpoint, then a bulk one of over 1.5 GB.

Each step is a command that you can type yourself; it is printed before it runs. Everything lands
in ``build/demo``; the bulk checkpoint is kept for the next time.
"""

from __future__ import annotations

import bisect
import cmd
import colorsys
import copy
import fileinput
import fnmatch
import getopt
import inspect
import json
import os
import sched
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = Path("examples/pycode-moe")
CONFIG = Path("examples/configs/bulk-mixtral.json")
DEMO = Path("build/demo")
EXAMPLE_LOAD = (16, 32, 16)  # requests, prompt tokens, new tokens
BULK = DEMO / "bulk"
BULK_LAYERS = 9
BULK_REQUESTS, BULK_PROMPT, BULK_NEW = 64, 32, 8
BULK_RECORDED = 24  # prompts whose routing the profile records

console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


@dataclass(frozen=True)
class Row:
    """One line of the table at the end."""

    name: str
    weights_bytes: int
    budget_bytes: int
    plan: dict[str, Any]
    run: dict[str, Any]
    doubts: tuple[str, ...]


def moeplan(*arguments: str | Path) -> dict[str, Any]:
    """Run one command and give back its JSON document; stop the demo where it fails."""
    words = [str(argument) for argument in arguments]
    console.print(f"$ moeplan {shlex.join(words)}", style="bold", soft_wrap=True)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "moeplan", *words, "--json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode != 0:
        sys.exit(f"demo: the command above ended with exit code {done.returncode}")
    console.print(f"  {time.monotonic() - start:.1f} s", style="dim")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def job(name: str, folder: Path, memory: str, load: tuple[int, int, int], *source: Any) -> Row:
    """profile, plan, check, run, verify and show for one checkpoint."""
    checkpoint, prompts, *extra = source
    requests, prompt_tokens, new_tokens = load
    plan, trace = folder / "plan.json", folder / "trace.json"
    profile = moeplan(
        "profile", checkpoint, "--memory", memory, "--out", folder / "profile", *extra
    )
    planned = moeplan(
        *("plan", folder / "profile", "--memory", memory, "--requests", str(requests)),
        *("--prompt-tokens", str(prompt_tokens), "--new-tokens", str(new_tokens)),
        *("--out", plan),
    )
    moeplan("check", plan)
    ran = moeplan(
        *("run", plan, "--prompts", prompts, "--max-new-tokens", str(new_tokens)),
        *("--out", folder / "outputs.jsonl", "--trace", trace),
    )
    doubts = (*profile["doubts"], *moeplan("verify", plan, trace)["notes"])
    moeplan("show", plan, trace, "--html", folder / "report.html")
    return Row(name, profile["weights_bytes"], profile["memory_bytes"], planned, ran, doubts)


def example() -> Row:
    """The trained example, within less than half of its weights, from a packed store."""
    folder = DEMO / "example"
    folder.mkdir(parents=True, exist_ok=True)
    moeplan("pack", EXAMPLE, folder / "store")
    size = sum(path.stat().st_size for path in EXAMPLE.glob("*.safetensors"))
    prompts = folder / "prompts.jsonl"
    texts = code_prompts(EXAMPLE_LOAD[0], EXAMPLE_LOAD[1])
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    memory = f"{int(size * 0.45) >> 10}KiB"
    store = ("--store", folder / "store")
    return job("pycode-moe", folder, memory, EXAMPLE_LOAD, EXAMPLE, prompts, *store)


def code_prompts(count: int, tokens: int) -> list[str]:
    """Beginnings of functions of Python's library, of as many tokens as the plan is made for."""
    tokenizer = Tokenizer.from_file(str(EXAMPLE / "tokenizer.json"))
    texts: list[str] = []
    for module in (bisect, cmd, colorsys, copy, fileinput, fnmatch, getopt, sched):
        for part in inspect.getsource(module).split("\ndef ")[1:]:
            ids = tokenizer.encode(f"def {part}").ids[:tokens]
            text = tokenizer.decode(ids)
            if len(ids) == len(tokenizer.encode(text).ids) == tokens:
                texts.append(text)
    return texts[:count]


def bulk() -> Row:
    """Random weights of a real shape: for speed and size, not for what it says."""
    folder = DEMO / "bulk-run"
    folder.mkdir(parents=True, exist_ok=True)
    if not (BULK / "config.json").exists() or not list(BULK.glob("*.safetensors")):
        moeplan("synth", CONFIG, "--layers", str(BULK_LAYERS), "--out", BULK)
    prompts, recorded = folder / "prompts.jsonl", folder / "recorded.jsonl"
    walks = [json.loads(line)["prompt"] for line in (BULK / "prompts.jsonl").open()]
    # words of this checkpoint's tokenizer are tokens; prompts of unequal length
    cut = [" ".join(walk.split()[: BULK_PROMPT - i % 8]) for i, walk in enumerate(walks)]
    lines = [json.dumps({"prompt": text}) + "\n" for text in cut]
    prompts.write_text("".join(lines[:BULK_REQUESTS]))
    recorded.write_text("".join(lines[-BULK_RECORDED:]))
    load = (BULK_REQUESTS, BULK_PROMPT, BULK_NEW)
    name = "bulk (random)"
    return job(name, folder, "400MiB", load, BULK, prompts, "--prompts", recorded)


def main() -> None:
    """Run both jobs and print what was promised beside what was measured."""
    os.chdir(ROOT)
    start = time.monotonic()
    table = Table(title="tokens/s in all: prefill and decode together")
    for heading in ("checkpoint", "weights", "budget", "predicted", "measured", "off by"):
        table.add_column(heading, justify="left" if heading == "checkpoint" else "right")
    rows = (example(), bulk())
    for row in rows:
        predicted = row.plan["predicted"]["tokens_per_second"]
        measured = row.run["tokens_per_second"]
        inside = predicted["low"] <= measured <= predicted["high"]
        table.add_row(
            row.name,
            f"{row.weights_bytes / 2**20:,.0f} MiB",
            f"{row.budget_bytes / 2**20:,.0f} MiB",
            f"{predicted['value']:,.1f} ({predicted['low']:,.1f} to {predicted['high']:,.1f})",
            f"{measured:,.1f}",
            f"{100 * (measured / predicted['value'] - 1):+.0f}%, {'in' if inside else 'out'}side",
        )
    console.print(table)
    console.print(
        "off by: (measured - predicted) / predicted, inside or outside the predicted 90% interval, "
        "which stands in brackets"
    )
    for row in rows:
        for doubt in row.doubts:
            console.print(f"{row.name}: {doubt}")
    report = DEMO / "report.html"
    report.write_bytes((DEMO / "bulk-run" / "report.html").read_bytes())
    console.print(f"{time.monotonic() - start:.0f} s. The report of the bulk run: {report}")
    console.print(f"The report of the example: {DEMO / 'example' / 'report.html'}")


if __name__ == "__main__":
    main()
