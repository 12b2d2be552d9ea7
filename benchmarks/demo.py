"""The demo as a new user runs it: what was promised, and what was measured.

    python benchmarks/demo.py [--keep 12]

Runs ``examples/demo.py``, as ``make demo`` does, and adds both checkpoints' runs to
benchmarks/results/demo.json; the latest ``--keep`` runs of each stay, and those of other days that
the README tells.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

import argparse
import json
import os
import subprocess
from typing import Any

from benchmarks.record import Record
from benchmarks.writing import write_result

RESULT = ROOT / "benchmarks" / "results" / "demo.json"
DEMO = ROOT / "build" / "demo"
RUNS = (
    ("pycode-moe", DEMO / "example", ROOT / "examples" / "pycode-moe"),
    ("bulk (random)", DEMO / "bulk-run", DEMO / "bulk"),
)
"""Name, folder of plan and trace, checkpoint."""


def run_of(name: str, folder: Path, checkpoint: Path) -> dict[str, Any]:
    """What the documents of one checkpoint's run say."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    totals = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["totals"]
    promised = plan["predicted"]["tokens_per_second"]
    return {
        "checkpoint": name,
        "weights_bytes": sum(one.stat().st_size for one in checkpoint.glob("*.safetensors")),
        "budget_bytes": totals["device_budget_bytes"],
        "requests": plan["workload"]["requests"],
        "solver": plan["solver"],
        "predicted": promised["value"],
        "low": promised["low"],
        "high": promised["high"],
        "measured": totals["new_tokens"] * 1e9 / totals["wall_ns"],
        "beside_budget_bytes": totals["process_peak_bytes"] - totals["device_budget_bytes"],
    }


def main() -> int:
    """Run the demo and keep its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=int, default=12)
    keep = parser.parse_args().keep
    if keep < 1:
        parser.error("--keep: give 1 or more")
    record = Record.begin(budget="searches of 10 s, one run each")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        cwd=ROOT,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
        check=False,
    )
    if done.returncode:
        return done.returncode
    about = record.about()
    known = json.loads(RESULT.read_text(encoding="utf-8"))["runs"] if RESULT.exists() else []
    for name, folder, checkpoint in RUNS:
        when = {"measured_at": about["measured"], "others_cores": about["others_cores"]}
        known.append({**when, **run_of(name, folder, checkpoint)})
    kept = [one for one in known if "remark" in one]
    for name, _, _ in RUNS:
        own = [one for one in known if one["checkpoint"] == name and "remark" not in one]
        kept += own[-keep:]
    write_result(RESULT, {"about": about, "runs": kept})
    return 0


if __name__ == "__main__":
    sys.exit(main())
