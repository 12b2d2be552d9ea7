"""The benchmark of predictions runs, and says what it measured."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
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


def test_every_cell_is_in_the_result(
    benchmark_module: ModuleType,
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(checkpoint("mixtral"), folder)
    lines = (json.dumps({"token_ids": prompt}) for prompt in prompts)
    (folder / "prompts.jsonl").write_text("\n".join(lines))
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
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", "result.json"}
