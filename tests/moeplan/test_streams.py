"""Whatever the shell does with the streams and the width: no work is lost, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from moeplan import cli
from planner.documents import Plan, load_document

ROOT = Path(__file__).resolve().parents[2]
PLAN = (
    f"{sys.executable} -m moeplan plan --model {ROOT}/examples/pycode-moe --hardware t4 "
    "--routing uniform --memory 12MiB --solver lru --requests 4 --prompt-tokens 16 "
    "--new-tokens 4 --out plan.json"
)
MISSING = f"{sys.executable} -m moeplan show missing.json"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", line]
    return subprocess.run(
        command, cwd=folder, env=path, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "streams",
    [
        "<&- >&- 2>&-",
        ">&-",
        "2>&-",
        "2> /dev/full",
        "| true",  # who reads has gone
        "2>&1 | true",
    ],
)
def test_the_plan_is_written(streams: str, tmp_path: Path) -> None:
    done = shell(f"{PLAN} {streams}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert load_document(Plan, tmp_path / "plan.json").workload.requests == 4


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>&-", "2> /dev/full", "2>&1 | true"])
def test_the_exit_code_stays(streams: str, tmp_path: Path) -> None:
    done = shell(f"{MISSING} {streams}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""


def test_no_place_for_temporary_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    monkeypatch.setattr("planner.files._mode", lambda _: tempfile.gettempdir())
    assert cli.main(["show", "plan.json"]) == 2
    said = "no folder for temporary files can be written to: set TMPDIR to one that can"
    assert capsys.readouterr().err == f"moeplan: {said}\n"


@pytest.mark.parametrize("columns", ["0", "1", "-5", "abc", "²", "٣", "999999999", "9" * 5_000])
def test_a_width_that_is_none(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["schema", "--help"]) == 0
    said = capsys.readouterr().out
    assert "schema" in said
    assert len(said) < 100_000
