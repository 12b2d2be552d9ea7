"""The benchmarks start as scripts and as modules, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def started(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_the_solvers_benchmark_prints_its_table(as_module: bool, tmp_path: Path) -> None:
    options = ["--cells", "none", "--small", "1", "--work", "0.05"]
    if as_module:
        out = started(["-m", "benchmarks.solvers", *options], ROOT)
    else:
        out = started([str(ROOT / "benchmarks" / "solvers.py"), *options], tmp_path)
    assert "1 small instances against the joint model" in out


def test_the_prediction_benchmark_starts_as_a_script(tmp_path: Path) -> None:
    out = started([str(ROOT / "benchmarks" / "prediction.py"), "--help"], tmp_path)
    assert "Predicted against measured" in out
