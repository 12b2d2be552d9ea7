"""The parts of the executor's benchmark: limits, the clairvoyant's bytes, weights for llama.cpp."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint import read_checkpoint
from planner.documents import LayerPolicy, Policy, StoredShares, Workload
from solvers.errors import OptionError

ROOT = Path(__file__).resolve().parents[1]


def writing(out: Path, rest: str = "") -> list[str]:
    return [sys.executable, "-c", f"open({str(out)!r}, 'w').write('[]'); {rest}"]


def test_a_commands_end_is_a_document_or_a_reason(tmp_path: Path) -> None:
    capped: Any = importlib.import_module("benchmarks.capped")
    free = capped.Limits(None, None, 300.0)
    out = tmp_path / "out.json"
    ended = capped.run_capped(writing(out), out, free, tmp_path)
    assert (ended.document, ended.reason, ended.peak_bytes) == ([], None, None)
    # what an earlier command left is not taken for this one's
    silent = [sys.executable, "-c", "import sys; sys.exit('no such thing')"]
    ended = capped.run_capped(silent, out, free, tmp_path)
    assert (ended.document, ended.reason) == (None, "exit code 1: no such thing")
    slow = writing(out, "import time; time.sleep(600)")
    ended = capped.run_capped(slow, out, capped.Limits(None, None, 0.5), tmp_path)
    assert (ended.document, ended.reason) == (None, "not done after 0 s")


@pytest.mark.skipif(
    not any(os.access(f"/sys/fs/cgroup/{one}", os.W_OK) for one in ("memory", "cgroup.procs")),
    reason="control groups cannot be made here",
)
def test_a_command_over_its_memory_is_killed_and_leaves_no_group(tmp_path: Path) -> None:
    capped: Any = importlib.import_module("benchmarks.capped")
    out = tmp_path / "out.json"
    greedy = writing(out, "one = b'1' * (256 << 20)")
    try:
        ended = capped.run_capped(greedy, out, capped.Limits(64 << 20, None, 60.0), tmp_path)
    except OptionError as error:
        pytest.skip(str(error))
    assert (ended.document, ended.reason) == (None, "killed: out of memory under the cap")
    assert ended.peak_bytes <= 64 << 20
    assert not list(Path("/sys/fs/cgroup").glob(f"**/moeplan-{os.getpid()}-*"))


def policy(model: Any, resident: int) -> Policy:
    layers = tuple(LayerPolicy(True, tuple(range(resident)), ()) for _ in model.layers)
    rows = model.vocab_size
    return Policy(2, 2, layers, rows, 1, 1, 2, 0, 1, "none", 1 << 20)


def test_a_clairvoyant_reads_what_its_memory_does_not_hold() -> None:
    clairvoyant: Any = importlib.import_module("benchmarks.clairvoyant")
    model = read_checkpoint(ROOT / "examples" / "pycode-moe").model
    experts, layers = model.layers[0].experts, len(model.layers)
    # two groups of four sequences, prompts of 3 tokens, 4 new tokens: 3 decode passes a group, in
    # each of which the four tokens choose all experts between them
    sequence, position = (x.ravel() for x in np.mgrid[0:8, 0:6])
    chosen = np.arange(experts).reshape(4, -1)[sequence % 4]
    routing = {
        "experts": np.repeat(chosen[:, None, :], layers, axis=1),
        "sequence": sequence,
        "position": position,
    }
    workload = Workload(8, 3, 4)
    assert clairvoyant.decode_bytes(model, policy(model, experts), workload, routing) == 0
    # every unit is used once a pass, so what one more byte of memory saves is a byte a pass, and
    # nothing else does: 6 passes of all but half of the experts and two slots. The pass before a
    # group's first decode pass is free, so that one may find memory full of what it needs
    one = model.layers[0].expert_bytes
    slots = 2 * max(one, model.head_bytes or model.embedding_bytes)
    missing = layers * (experts - experts // 2) * one - slots
    assert clairvoyant.decode_bytes(model, policy(model, experts // 2), workload, routing) == (
        6 * missing
    )
    # a store that has its experts in half of their bytes moves half
    halved = replace(model, stored=StoredShares(dense=1.0, expert=0.5, head=1.0))
    assert clairvoyant.decode_bytes(halved, policy(model, experts // 2), workload, routing) == (
        3 * missing
    )
    # nobody chooses the second half: all that is used is resident
    routing["experts"] = routing["experts"] % (experts // 2)
    assert clairvoyant.decode_bytes(model, policy(model, experts // 2), workload, routing) == 0


def test_a_clairvoyant_gives_up_what_is_needed_last() -> None:
    """Against the best of everything that may be kept, whole units of one byte each."""
    missed = importlib.import_module("benchmarks.clairvoyant").missed_bytes
    rng = np.random.default_rng(3)
    for _ in range(30):
        uses = [
            (bool(rng.random() < 0.8), [(0, int(unit)) for unit in rng.permutation(4)[:2]])
            for _ in range(6)
        ]
        capacity = int(rng.integers(0, 4))
        units = sorted({unit for _, used in uses for unit in used})
        # cost of the cheapest way to have each set in memory before a use; at first for nothing
        sizes = range(capacity + 1)
        sets = [frozenset(one) for n in sizes for one in itertools.combinations(units, n)]
        cost = dict.fromkeys(sets, 0)
        for counts, used in uses:
            later: dict[frozenset[tuple[int, int]], int] = {}
            for held, spent in cost.items():
                here = spent + (len(set(used) - held) if counts else 0)
                for one in sets:
                    if one <= held | set(used):
                        later[one] = min(later.get(one, here), here)
            cost = later
        assert missed(uses, dict.fromkeys(units, 1), capacity) == min(cost.values())


def test_rows_are_paired_as_llama_cpp_rotates_them() -> None:
    import torch

    pytest.importorskip("gguf")
    module = importlib.import_module("benchmarks.peers.gguf_file")
    # two heads of four rows: row i of a head goes with row i + 2, and they become neighbours
    rows = torch.arange(8)[:, None].repeat(1, 3)
    assert module.interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert module.numbered("layers.10.x") > module.numbered("layers.9.x")


def test_the_page_sets_moeplan_against_the_others() -> None:
    table: Any = importlib.import_module("benchmarks.executor_table")
    columns = "bytes_read limit_ratio load_seconds agreement others_cores setting reason"
    more = ("decode_tokens_per_second", "bubble_inter_share", "bubble_intra_share")
    cell = dict.fromkeys((*columns.split(), *more)) | {
        "checkpoint": "mixtral",
        "cap_fraction": 0.5,
        "throttle_bytes_per_second": 800_000_000,
        "requests": 8,
        "new_tokens": 16,
    }
    rates = {"moeplan": 6.0, "lru": 5.0, "on-demand": 4.0, "accelerate": 2.0, "llama.cpp": None}
    cells = [{**cell, "engine": name, "tokens_per_second": rate} for name, rate in rates.items()]
    machine = {"processor": "p", "cores": 2, "memory_bytes": 1 << 30, "system": "s"}
    page = table.markdown({"about": {"machine": machine}, "prompt_tokens": 32, "cells": cells})
    assert "## mixtral, cap 50%, disk held to 800 MB/s, 16 new tokens" in page
    assert "| 8 | moeplan | 3.00x |  |  | 1.20x lru |" in page


def test_cells_are_chosen_by_a_regular_expression(capsys: pytest.CaptureFixture[str]) -> None:
    bench = importlib.import_module("benchmarks.executor")
    assert bench.main(["--work", "nowhere", "--list", "--cells", "^olmoe/25/free/8/l"]) == 0
    assert capsys.readouterr().out.split() == [
        "olmoe/25/free/8/llama.cpp",
        "olmoe/25/free/8/lru",
        "olmoe/25/free/8/lifo",
    ]
    assert bench.main(["--work", "nowhere", "--cells", "qwen4"]) == 2


def test_a_cell_that_is_known_is_not_run_again_unless_it_failed(tmp_path: Path) -> None:
    bench = importlib.import_module("benchmarks.executor")
    out = tmp_path / "executor.json"
    cell = {"name": "mixtral/50/800/8/lru", "new_tokens": 16, "reason": None}
    failed = cell | {"name": "mixtral/50/800/8/lifo", "reason": "exit code 1: no such thing"}
    ended = {"one": {"reason": "not done after 9 s"}, "two": {"reason": failed["reason"]}}
    out.write_text(json.dumps({"cells": [cell, failed], "trials": ended}))
    known = bench.Results(out, 16, 32)
    assert known.has(cell["name"], 16)
    assert not known.has(cell["name"], 8)
    assert not known.has(failed["name"], 16)
    assert list(known.trials) == ["one"]
