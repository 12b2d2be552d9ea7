"""A full disk is the machine's fault: exit code 1, one line, and nothing is left half-written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from moeplan import cli

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = str(ROOT / "examples" / "pycode-moe")
PLAN = (
    *("plan", "--model", CHECKPOINT, "--hardware", "t4", "--routing", "uniform"),
    *("--memory", "12MiB", "--solver", "lru"),
    *("--requests", "4", "--prompt-tokens", "16", "--new-tokens", "4"),
)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be brought to the disk."""

    def fsync(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("argv", "place"),
    [
        ((*PLAN, "--out", "plan.json"), "plan.json"),
        ((*PLAN, "--profile-out", "made", "--out", "plan.json"), "made"),
        (("pack", CHECKPOINT, "store"), "store"),
    ],
)
def test_one_line_and_exit_code_1(
    argv: tuple[str, ...],
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 1
    said = capsys.readouterr().err.strip().splitlines()
    words = f"moeplan: {place}: the disk is full: make room there, or name another place"
    assert said[-1] == words
    # a store that was begun goes on with the same command
    assert [path.name for path in tmp_path.iterdir()] == (["store"] if place == "store" else [])
