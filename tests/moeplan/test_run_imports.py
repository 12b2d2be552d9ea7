"""What ``moeplan run`` loads: each module of its takes memory that experts could have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

RUN = """
import sys
from moeplan.cli import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    print(*sys.modules, sep="\\n", file=file)
sys.exit(code)
"""
HEAVY = {"ortools", "pandas", "pulp", "ray"}


def test_a_run_loads_nothing_that_it_does_not_need(made: SimpleNamespace, tmp_path: Path) -> None:
    """Text in and out, drawn tokens, a trace."""
    modules, out, trace = (tmp_path / name for name in ("modules", "out.jsonl", "trace.json"))
    command = [sys.executable, "-c", RUN, modules, "run", made.plan, "--prompts", made.prompts]
    command += ["--out", out, "--trace", trace, "--temperature", "0.8", "--top-p", "0.9"]
    done = subprocess.run(
        [*map(str, command), "--top-k", "50"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(modules.read_text().split("\n"))
    assert {"torch", "tokenizers", "executor.engine"} <= loaded
    assert not HEAVY & loaded
