"""The benchmarks start as scripts and as modules, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "start",
    [[str(ROOT / "benchmarks" / "solvers.py")], ["-m", "benchmarks.solvers"]],
    ids=["script", "module"],
)
def test_the_solvers_benchmark_prints_its_table(start: list[str], tmp_path: Path) -> None:
    module = start[0] == "-m"
    done = subprocess.run(
        [sys.executable, *start, "--cells", "none", "--small", "1", "--work", "0.05"],
        cwd=ROOT if module else tmp_path,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 small instances against brute force" in done.stdout


def test_the_prediction_benchmark_starts_as_a_script(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "prediction.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        cwd=tmp_path,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Predicted against measured" in done.stdout
