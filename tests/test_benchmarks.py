"""The benchmarks start as scripts and as modules, from any folder."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.solver_cells import Cell
from benchmarks.solvers import solve_cell, summary
from solvers.outcome import LiveEviction

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


def test_bounds_with_and_without_a_price_are_each_checked() -> None:
    # copies ahead have a price in all cells, and who knows the routing does not pay it
    row = solve_cell(Cell("zipf", 2, 4, 1, 1, 0.5, 1.2), "cpsat", 0.05, None)
    assert row["bound_class"] == "plan"
    assert row["eviction"] in get_args(LiveEviction)


def test_gaps_of_schedules_that_cache_are_said_to_be_unproven() -> None:
    # the bound is of schedules without caches: of the second one's gap it proves nothing
    same = {
        "group": 1, "layers": 32, "solver": "cpsat", "won": "cpsat", "gap": 0.02, "beats": 0.1,
        "price_of_information": 0.03, "held_out": 0.0, "paired_interval": 0.01,
    }  # fmt: skip
    rows = [{**same, "name": "first", "eviction": "none"}, {**same, "name": "second"}]
    rows[1]["eviction"] = "stale"
    (said,) = (one for one in summary(rows) if "no proof" in one)
    assert said.endswith(": second (stale)")
    (said,) = (one for one in summary(rows[:1]) if "no proof" in one)
    assert said.endswith(": 0")


def test_the_prediction_benchmark_starts_as_a_script(tmp_path: Path) -> None:
    out = started([str(ROOT / "benchmarks" / "prediction.py"), "--help"], tmp_path)
    assert "Predicted against measured" in out


def test_a_slope_by_hand() -> None:
    """Of the line 10 + x / 3600 with x in seconds: 1 an hour, and no doubt about it; a row of equal
    values with one that is 4 higher in the middle: 0, and as far to both sides."""
    slope: Any = importlib.import_module("benchmarks.long_run").slope
    exact = slope([0.0, 3600.0, 7200.0, 10800.0], [10.0, 11.0, 12.0, 13.0])
    assert [exact[key] for key in ("median", "per_hour", "low", "high")] == [11.5, 1, 1, 1]
    level = slope([-7200.0, -3600.0, 0.0, 3600.0, 7200.0], [6.0, 6.0, 10.0, 6.0, 6.0])
    # residuals -0.8 four times and 3.2: squares 12.8 over 3 degrees of freedom, over 10 hours^2
    assert level["per_hour"] == pytest.approx(0, abs=1e-12)
    half = pytest.approx(1.96 * (12.8 / 3 / 10) ** 0.5)
    assert level["high"] == half
    assert -level["low"] == half
    assert slope([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])["per_hour"] is None


def test_a_cancelled_round_may_end_elsewhere_and_no_other() -> None:
    agrees: Any = importlib.import_module("benchmarks.long_run").agrees
    assert agrees("cancelled", [[1, 2, 3], []], [[1, 2], [4]])
    assert not agrees("cancelled", [[1, 2, 3]], [[1, 3]])
    assert not agrees("closed", [[1, 2, 3]], [[1, 2]])
