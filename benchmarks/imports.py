"""How long a fresh interpreter takes for an import, and for the program's first word.

    python benchmarks/imports.py [--repeats 10]

Each is started anew; ``python`` alone is what the others hold besides. Writes
benchmarks/results/imports.json.
"""

from __future__ import annotations

# ruff: noqa: E402 (the search path comes before the imports)
import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

from benchmarks.record import Record
from benchmarks.writing import write_result

RESULTS = Path(__file__).parent / "results"
STARTED = {
    "python": ["-c", ""],
    "import planner": ["-c", "import planner"],
    "import moeplan": ["-c", "import moeplan"],
    "import planner.documents": ["-c", "import planner.documents"],
    "import planner.solve": ["-c", "import planner.solve"],
    "moeplan --version": ["-m", "moeplan", "--version"],
    "moeplan plan --help": ["-m", "moeplan", "plan", "--help"],
}


def main() -> int:
    """Print the times and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    record = Record.begin(seeds=(), budget=f"{repeats} starts each")
    milliseconds: dict[str, list[float]] = {name: [] for name in STARTED}
    for _ in range(repeats):
        for name, arguments in STARTED.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
            )
            milliseconds[name].append(1e3 * (time.perf_counter() - start))
    rows = {
        name: {"least_ms": round(min(found), 1), "median_ms": round(statistics.median(found), 1)}
        for name, found in milliseconds.items()
    }
    for name, row in rows.items():
        print(f"{name:28} least {row['least_ms']:7.1f} ms, median {row['median_ms']:7.1f} ms")
    body = {"about": record.about(), "repeats": repeats, "rows": rows}
    write_result(RESULTS / "imports.json", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
