"""The benchmark of predictions runs, and says what it measured."""

from __future__ import annotations

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

ROOT = Path(__file__).parents[2]


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
            max(cell["measured"]) / cell["predicted"] - 1, rel=0.01
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
    (before,) = json.loads(out.read_text())["cells"]
    monkeypatch.setattr(benchmark_module, "profile_checkpoint", None)
    assert benchmark_module.main([*words, "--out", str(out), "--requests", "2", "3"]) == 0
    again, second = json.loads(out.read_text())["cells"]
    assert again == before
    assert second["requests"] == 3


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
