"""With the base install alone: planning works, and what needs more says so in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = (
    "alembic",
    "fastapi",
    "httpx",
    "plotly",
    "prometheus_client",
    "psycopg",
    "ray",
    "sqlalchemy",
    "starlette",
    "torch",
    "transformers",
    "uvicorn",
)
WITHOUT = f"""
import sys
for name in {EXTRAS!r}:
    sys.modules[name] = None  # an import of it raises ModuleNotFoundError
"""


def run(code: str, *argv: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *map(str, argv)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


COMMAND = "from moeplan.cli import main\nsys.exit(main(sys.argv[1:]))"


def test_planning_needs_no_extra(profile_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    asked = ("--memory", "1500kB", "--requests", 4, "--prompt-tokens", 16, "--new-tokens", 4)
    done = run(
        "import planner, moeplan\n" + COMMAND,
        *("plan", profile_folder, *asked, "--solver", "lru", "--out", out),
    )
    assert done.returncode == 0, done.stderr
    assert out.is_file()


def test_the_service_says_what_it_needs(profile_folder: Path, tmp_path: Path) -> None:
    asked = ("plan", profile_folder, "--memory", "1500kB", "--out", tmp_path / "plan.json")
    for argv in (("serve",), ("token", "list"), (*asked, "--server", "http://127.0.0.1:1")):
        done = run(COMMAND, *argv)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert line.endswith("which is not installed: pip install 'moeplan[service]'")
