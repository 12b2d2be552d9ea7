"""The parts of the seeds' benchmark that run no model: buffers, accuracies, verdicts, its page."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.schedule import Schedule
from executor.units import Unit, model_units
from planner.checkpoint import read_checkpoint
from planner.documents import LayerPolicy, Policy
from planner.routing import TraceArrays

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def traces() -> Any:
    return importlib.import_module("benchmarks.seeds_traces")


@pytest.fixture
def runs() -> Any:
    return importlib.import_module("benchmarks.seeds_runs")


def trace(experts: list[list[list[int]]], tokens: int) -> TraceArrays:
    """Sequences of so many tokens, half of them prompt; ``experts`` [tokens, layers, top_k]."""
    chosen = np.array(experts, dtype=np.uint16)
    position = np.arange(len(chosen), dtype=np.int32) % tokens
    sequence = (np.arange(len(chosen)) // tokens).astype(np.int32)
    return TraceArrays(chosen, sequence, position, (position >= tokens // 2).astype(np.uint8))


def test_a_cycle_of_three_misses_in_a_buffer_of_two_as_by_hand(traces: Any) -> None:
    # 0 1 2 0 1 2. lru and fifo: what comes has always just gone. lifo: 2 takes 1's place, 0 hits, 1
    # takes 2's, 2 takes 1's: 5 misses of 6. belady: 2 takes 1's place (0 comes first), 0 hits, 1
    # takes 0's (never again), 2 hits: 4 of 6
    demand = np.zeros((6, 1, 4), dtype=np.int32)
    demand[np.arange(6), 0, np.arange(6) % 3] = 1
    missed = {"lru": 6, "fifo": 6, "lifo": 5, "belady": 4}
    assert {name: traces.miss_rate(demand, 2, name) * 6 for name in missed} == pytest.approx(missed)
    # where all fit, each is missed once; a buffer larger than a layer is no use
    for size in (3, 4, 9):
        assert traces.miss_rate(demand, size, "lru") == 0.5


def test_layers_share_a_buffer_but_with_lifo(traces: Any) -> None:
    # one layer needs two experts in turn, the other always the same one; one slot a layer. Shared
    # by recency: 0 a 1 a 0 a 1 a, of the last two a always stays: 1 + 4 misses of 8; so has the
    # other layer its own slot with lifo, and so has belady nothing to gain
    demand = np.zeros((4, 2, 2), dtype=np.int32)
    demand[np.arange(4), 0, np.arange(4) % 2] = 1
    demand[:, 1, 0] = 3
    for name in ("lru", "lifo", "belady"):
        assert traces.miss_rate(demand, 1, name) == 5 / 8
    # by arrival a goes as soon as it is the older one: 0 a | 1 (for 0), a hits | 0 (for a), a (for
    # 1) | 1 (for 0), a hits: 6 misses
    assert traces.miss_rate(demand, 1, "fifo") == 6 / 8


def test_decode_passes_count_the_tokens_of_sequences_that_go_together(traces: Any) -> None:
    # two sequences of a prompt token and a new one each
    arrays = trace([[[0, 1]], [[1, 2]], [[0, 1]], [[3, 2]]], tokens=2)
    assert traces.passes_of(arrays, 4, 2).tolist() == [[[0, 1, 2, 1]]]
    assert traces.passes_of(arrays, 4, 1).tolist() == [[[0, 1, 1, 0]], [[0, 0, 1, 1]]]


def test_hot_is_what_no_more_others_beat_than_are_named(traces: Any) -> None:
    counts = np.array([5, 3, 3, 0])
    assert traces.hot_share((0, 2), counts) == 1.0
    assert traces.hot_share((1, 2), counts) == 1.0  # either of the two equal ones would do
    assert traces.hot_share((1,), counts) == 0.0
    assert traces.hot_share((0, 3), np.array([5, 0, 0, 0])) == 0.5


def test_what_always_follows_is_found_by_coactivation(traces: Any) -> None:
    # a token that chooses e in the first layer chooses e + 1 in the second; e goes round
    rows = [[[e % 4], [(e + 1) % 4]] for e in range(64)]
    first, second = traces.accuracies(trace(rows, 8), 4, (0, 3), (1,), seed=0)
    assert (first["layer"], second["layer"]) == (0, 3)
    assert second["coactivation_needed"] == second["coactivation_hot"] == 1.0
    assert second["popularity_needed"] < 0.5
    assert second["lookahead_needed"] is None


def test_without_the_expert_aware_order_experts_go_by_number(runs: Any) -> None:
    model = read_checkpoint(ROOT / "examples" / "pycode-moe").model
    layers = tuple(LayerPolicy(True, (3,), ()) for _ in model.layers)
    policy = Policy(1, 2, layers, model.vocab_size, 1, 1, 2, 0, 1, "none", 1 << 20)
    active = [Unit(0, "expert", expert) for expert in (5, 4, 3, 1)]

    def routed() -> list[int]:
        found = Schedule(policy, model_units(model, policy), 1).route(active)
        return [unit.item for unit in (*found.ready, *found.demanded)]

    assert routed() == [3, 5, 4, 1]
    # the resident still goes first: what is there may hold slots that the others wait for
    with runs.by_number():
        assert routed() == [3, 1, 4, 5]
    assert routed() == [3, 5, 4, 1]


def test_neighbours_are_all_groups_and_other_batches_of_the_same(runs: Any) -> None:
    # of 8 requests: groups of 8, 4, 3, 2 and 1
    assert runs.neighbours(8, 2, 4) == {(1, 4), (1, 3), (1, 2), (1, 1), (1, 8), (4, 2)}
    assert runs.neighbours(8, 1, 2) == {(4, 2), (2, 2), (2, 1), (1, 1)}


def test_the_chosen_n_is_held_against_the_best(runs: Any) -> None:
    def row(n: int, rate: float, chosen: bool = False, runs: int = 3) -> dict[str, Any]:
        low, high = 0.99 * rate, 1.01 * rate
        rates = {"tokens_per_second": rate, "lowest": low, "highest": high}
        return {"n": n, "b": 4, "chosen": chosen, "runs": runs, **rates}

    near = runs.verdict([row(4, 100.0), row(2, 98.0, True), {"n": 8, "b": 4, "why": "no"}])
    assert (near["chosen"], near["best"], near["within"]) == ("2 x 4", "4 x 4", True)
    assert near["short"] == pytest.approx(0.02)
    assert near["noise"] == pytest.approx(0.01)
    # one run says nothing of noise
    far = runs.verdict([row(4, 100.0, runs=1), row(2, 96.0, True)])
    assert (far["within"], far["noise"]) == (False, None)
    assert runs.verdict([row(4, 100.0, True), row(2, 96.0)])["short"] == 0.0


def test_experiments_are_kept_beside_the_one_that_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: Any = importlib.import_module("benchmarks.seeds")
    loads = {"sequences": 8, "devices": 2, "greedy": 1.25}
    monkeypatch.setitem(seeds.EXPERIMENTS, "balance", lambda bench: [loads])
    shown = {"sequences": 1, "layer": 3, "named": 2, "coactivation_needed": 0.5}
    monkeypatch.setitem(seeds.EXPERIMENTS, "prefetch", lambda bench: [shown])
    ran = {"n": 2, "b": 4, "tokens_per_second": 9.5, "runs": 3, "chosen": True}
    cell = {"checkpoint": "small", "memory": 0.5, "requests": 8, "chosen": "2 x 4", "within": True}
    found = [{**cell, "measured": [ran, {"n": 1, "b": 8, "why": "does not fit"}]}]
    monkeypatch.setitem(seeds.EXPERIMENTS, "choice", lambda bench: found)
    out = tmp_path / "seeds.json"
    # reads are paced, which needs no root
    common = ["--disk-bandwidth", "1000000", "--work", str(tmp_path / "work"), "--out", str(out)]
    assert seeds.main(["--only", "balance", *common]) == 0
    assert seeds.main(["--only", "prefetch", "choice", *common]) == 0
    body = json.loads(out.read_text())
    assert body["experiments"]["balance"]["rows"] == [loads]
    assert body["experiments"]["prefetch"]["paced_bytes_per_second"] == 1_000_000
    page = out.with_suffix(".md").read_text()
    assert "| 8 | 2 | 1.250 |" in page
    assert "| 1 | 3 | 2 | 50.0% |" in page
    assert "| small | 50.0% | 8 | 2 x 4 | yes |" in page
    assert "| small | 50.0% | 8 | 2 | 4 | 9.5 | 3 | yes |  |" in page
    assert "| small | 50.0% | 8 | 1 | 8 |  |  |  | does not fit |" in page
    assert page in capsys.readouterr().out
    with pytest.raises(SystemExit):
        seeds.main(["--only", "everything", *common])
