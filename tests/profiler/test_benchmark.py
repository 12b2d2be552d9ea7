"""The benchmark of predictions runs, and says what it measured."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.summary import Cell
from planner.documents import Workload
from planner.profiles import load_profile
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan
from profiler.drift import Drift, link_ratio, predicted_now

ROOT = Path(__file__).parents[2]


ROUNDED = 0.00501
"""Measured tokens/s are told to two digits, so beside an error near zero no share of it will do."""


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "prediction_benchmark", ROOT / "benchmarks" / "prediction.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _tiny(checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path) -> Path:
    """A checkpoint with prompts of its own."""
    folder = tmp_path / "tiny"
    shutil.copytree(checkpoint("mixtral"), folder)
    lines = (json.dumps({"token_ids": prompt}) for prompt in prompts)
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


def test_every_cell_is_in_the_result(
    benchmark_module: ModuleType,
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = _tiny(checkpoint, prompts, tmp_path)
    out = tmp_path / "result.json"
    # the tiny weights are small beside what libraries keep, so budgets are many times as large
    arguments = [str(folder), "--memory", "20", "40", "--requests", "2", "--new-tokens", "3"]
    arguments += ["--prompt-tokens", "8", "--runs", "2", "--quick", "--out", str(out)]
    assert benchmark_module.main(arguments) == 0
    result = json.loads(out.read_text())
    assert [cell["memory_bytes"] for cell in result["cells"]] == sorted(
        cell["memory_bytes"] for cell in result["cells"]
    )
    assert len(result["cells"]) == 2
    for cell in result["cells"]:
        assert len(cell["measured"]) == 2
        assert min(cell["measured"]) > 0
        assert cell["low"] <= cell["predicted"] <= cell["high"]
        # with two runs the faster one is compared
        assert cell["error"] == pytest.approx(
            max(cell["measured"]) / cell["predicted"] - 1, abs=ROUNDED / cell["predicted"]
        )
        assert {"attention", "expert", "router"} <= set(cell["kinds"])
    assert result["worst_abs_error"] == max(abs(cell["error"]) for cell in result["cells"])
    assert "2 cells" in capsys.readouterr().out
    # nothing is left beside the checkpoint
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", "result.json", "result.md"}


@pytest.fixture(scope="module")
def first(
    benchmark_module: ModuleType,
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[str]]:
    """A folder with the result of one cell, and the words that it was run with."""
    folder = tmp_path_factory.mktemp("grid")
    words = [str(_tiny(checkpoint, prompts, folder)), "--memory", "40", "--new-tokens", "3"]
    words += ["--quick", "--prompt-tokens", "8", "--runs", "1", "--work", str(folder / "work")]
    out = ["--out", str(folder / "result.json")]
    assert benchmark_module.main([*words, *out, "--requests", "2"]) == 0
    return folder, words


def test_a_stopped_grid_goes_on(
    benchmark_module: ModuleType,
    first: tuple[Path, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The profile and the cells that are there stay; only what is missing runs."""
    folder, words = first
    out = folder / "result.json"
    old = json.loads(out.read_text())
    (before,) = old["cells"]
    monkeypatch.setattr(benchmark_module, "profile_checkpoint", None)
    assert benchmark_module.main([*words, "--out", str(out), "--requests", "2", "3"]) == 0
    result = json.loads(out.read_text())
    again, second = result["cells"]
    assert again == before
    assert second["requests"] == 3
    # what of it came before counts with its own time
    old["about"]["seconds"] = 1000.0
    out.write_text(json.dumps(old))
    assert benchmark_module.main([*words, "--out", str(out), "--requests", "2"]) == 0
    assert json.loads(out.read_text())["about"]["seconds"] >= 1000
    # and of another profile nothing
    old["cells"][0]["profile_hash"] = "0" * 64
    out.write_text(json.dumps(old))
    assert benchmark_module.main([*words, "--out", str(out), "--requests", "2"]) == 0
    anew = json.loads(out.read_text())
    assert anew["cells"][0]["profile_hash"] != "0" * 64
    assert anew["about"]["seconds"] < 1000


def test_every_strategy_of_a_cell_is_planned_and_run(
    first: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ranking: Any = importlib.import_module("benchmarks.ranking")
    prediction: Any = importlib.import_module("benchmarks.prediction")
    # the grid's profile is used
    monkeypatch.setattr(prediction, "profile_checkpoint", None)
    out = tmp_path / "ranking.json"
    words = [*first[1], "--requests", "2", "--runs", "2", "--out", str(out)]
    assert ranking.main([*words, "--solvers", "all-experts", "on-demand", "lru"]) == 0
    (cell,) = json.loads(out.read_text())["cells"]
    assert {row["solver"] for row in cell["rows"]} == {"all-experts", "on-demand", "lru"}
    run = {row["solver"]: row for row in cell["rows"] if "measured" in row}
    assert cell["pairs"] == len(run) * (len(run) - 1) // 2
    for row in cell["rows"]:
        if row["solver"] not in run:
            assert row["same_plan_as"] in run
            continue
        assert len(row["measured"]) == 2
        assert 0 < row["least"] <= row["median"] <= row["most"]
    # it goes on where it was: the cell is not run again, one of other strategies is
    planned: list[str] = []
    monkeypatch.setattr(ranking, "ranked", lambda *_: planned.append("again") or {**cell, "x": 1})
    same = [*words, "--solvers", "lru", "on-demand", "all-experts"]
    assert ranking.main(same) == 0
    assert json.loads(out.read_text())["cells"] == [cell]
    assert ranking.main([*words, "--solvers", "lru", "on-demand"]) == 0
    assert planned == ["again"]


def test_without_drift_a_prediction_stays(first: tuple[Path, list[str]]) -> None:
    """And where all takes twice as long, so does the run."""
    folder, _ = first
    profile = load_profile(folder / "work" / "tiny-run" / "profile-free")
    workload = Workload(2, 8, 3)
    least = smallest_budget_bytes(profile, workload)
    plan = make_plan(profile, workload, memory_bytes=least, solver="on-demand")
    same = predicted_now(plan, profile, Drift(1.0, 1.0))
    assert same == plan.predicted
    twice = predicted_now(plan, profile, Drift(2.0, 2.0)).totals
    # durations are rounded to ns anew
    assert twice.wall_ns == pytest.approx(2 * same.totals.wall_ns, rel=1e-3)
    assert twice.bytes_read == same.totals.bytes_read > 0
    slow = predicted_now(plan, profile, Drift(1.0, 100.0)).totals.duration_by_kind_ns
    before = same.totals.duration_by_kind_ns
    assert slow["expert"] == before["expert"]
    assert slow["copy_demand"] == pytest.approx(100 * before["copy_demand"], rel=1e-3)
    ratio = link_ratio(profile, plan.policy.chunk_bytes)
    assert ratio is not None
    assert ratio > 0


def test_runs_on_the_raw_disk_are_held_against_what_the_drift_says(
    benchmark_module: ModuleType, first: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = first
    out = folder / "raw.json"
    module: Any = benchmark_module
    # before and after the run copies take twice and four times as long as while profiling
    ratios = iter([2.0, 4.0])
    monkeypatch.setattr(module, "link_ratio", lambda profile, chunk: next(ratios))
    drifts = []
    real = module.predicted_now

    def seen(plan: Any, profile: Any, drift: Drift) -> Any:
        drifts.append(drift)
        return real(plan, profile, drift)

    monkeypatch.setattr(module, "predicted_now", seen)
    # the same cells without a correction are others
    shutil.copy(folder / "result.json", out)
    assert module.main([*words, "--raw", "--requests", "2", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    (cell,), (drift,) = result["cells"], drifts
    assert drift.copies == cell["copy_drift"] == 3.0
    assert drift.compute == cell["drift"]
    (measured,) = cell["measured"]
    error = measured / cell["predicted"] - 1
    assert cell["error"] == pytest.approx(error, abs=ROUNDED / cell["predicted"])
    assert cell["inside"] == (cell["low"] <= measured <= cell["high"])
    # the plan itself knew of no drift
    assert result["uncorrected_median_abs_error"] == pytest.approx(
        abs(measured / cell["planned"] - 1), abs=ROUNDED / cell["planned"]
    )


def test_a_run_is_its_workload_again_and_again(
    benchmark_module: ModuleType, first: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = first
    out = folder / "longer.json"
    module: Any = benchmark_module
    seen: list[Any] = []
    groups: list[Any] = []
    real = module.Bench._traces

    def kept(self: Any, plan: Any, asked: Any) -> Any:
        groups.extend(asked)
        seen.append(real(self, plan, asked))
        return seen[-1]

    monkeypatch.setattr(module.Bench, "_traces", kept)
    # 2 requests of 3 tokens at the predicted rate, three times
    (before,) = json.loads((folder / "result.json").read_text())["cells"]
    seconds = str(3 * 6 / before["predicted"])
    assert module.main([*words, "--requests", "2", "--seconds", seconds, "--out", str(out)]) == 0
    (cell,), (traces,) = json.loads(out.read_text())["cells"], seen
    assert before["times"] == 1
    assert cell["times"] == len(traces) == 3
    # each time other prompts
    assert [len(group) for group in groups] == [2, 2, 2]
    assert groups[0] != groups[1] != groups[2] != groups[0]
    wall = sum(trace.totals.wall_ns for trace in traces)
    assert cell["measured"] == [round(3 * 6 * 1e9 / wall, 2)]
    spent = sum(trace.totals.duration_by_kind_ns["expert"] for trace in traces)
    assert cell["kinds"]["expert"][1] == spent // 3


@pytest.mark.parametrize("other", [["--throttle", "1"], ["--disk-bandwidth", "1"]])
def test_the_raw_disk_is_held_to_nothing(
    benchmark_module: ModuleType, other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        benchmark_module.main(["--raw", *other])
    assert left.value.code == 2
    assert "as it is" in capsys.readouterr().err


def test_coverage_is_of_runs_and_the_median_of_cells(benchmark_module: ModuleType) -> None:
    """Errors +10%, -20% and 0 of 3 + 3 + 2 runs, of which 3 + 1 + 2 were inside."""
    cells = [
        Cell(
            "a", "hash", None, 1, requests, 1, 1, "lru", 1, 1, 20.0, 10.0, 30.0,
            measured, error, inside, 1.0, 0.0, {"expert": (100, took)}, 1.0, planned,
        )
        for requests, measured, error, inside, planned, took in (
            (1, (22.0, 21.0, 23.0), 0.1, 3, 22.0, 150),
            (2, (16.0, 5.0, 40.0), -0.2, 1, 40.0, 40),
            (3, (20.0, 20.0), 0.0, 2, None, 110),
        )
    ]  # fmt: skip
    found = benchmark_module.summary(cells)
    assert found["coverage"] == 6 / 8
    assert (found["median_abs_error"], found["worst_abs_error"]) == (0.1, 0.2)
    # 22 measured of 22 planned, 16 of 40, and one that nothing corrected
    assert found["uncorrected_median_abs_error"] == pytest.approx(0)
    assert found["uncorrected_worst_abs_error"] == pytest.approx(0.6)
    (kind,) = found["kinds"].values()
    assert kind["cells"] == 3
    # +50%, -60% and +10%
    assert kind["median_error"] == pytest.approx(0.1)
    assert kind["median_abs_error"] == pytest.approx(0.5)
    assert kind["worst_abs_error"] == pytest.approx(0.6)
    assert [Cell.of(dataclasses.asdict(cell)).key for cell in cells] == [c.key for c in cells]


def test_copies_count_together_whichever_pays_for_the_throttle(
    benchmark_module: ModuleType,
) -> None:
    """Copies: 150 predicted and measured; computation 60 of 80 ns; waits 30 of 20."""
    kinds = {
        "copy_demand": (100, 80), "copy_prefetch": (50, 70),
        "expert": (70, 50), "router": (10, 10),
        "wait_expert": (15, 28), "wait_head": (5, 2),
    }  # fmt: skip
    cell = Cell(
        "a", "hash", None, 1, 1, 1, 1, "lru", 1, 1, 20.0, 10.0, 30.0,
        (20.0,), 0.0, 1, 1.0, 0.0, kinds,
    )  # fmt: skip
    found = benchmark_module.summary([cell])["groups"]
    assert {name: one["median_error"] for name, one in found.items()} == {
        "all copies": 0,
        "all computation": pytest.approx(-0.25),
        "all waiting": pytest.approx(0.5),
    }


def test_cells_are_run_in_turns(
    benchmark_module: ModuleType, first: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = first
    module: Any = benchmark_module
    order: list[int] = []
    real = module.Bench.run

    def noted(self: Any, cell: Any) -> None:
        order.append(cell.plan.workload.requests)
        real(self, cell)

    monkeypatch.setattr(module.Bench, "run", noted)
    out = folder / "turns.json"
    asked = ["--requests", "2", "3", "--runs", "2", "--out", str(out)]
    assert module.main([*words, *asked]) == 0
    assert order == [2, 3, 2, 3]
    # a grid that was stopped goes on with what it lacks
    order.clear()
    assert module.main([*words, "--requests", "3", "4", "--runs", "2", "--out", str(out)]) == 0
    assert order == [4, 4]
