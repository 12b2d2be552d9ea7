"""A full disk is the machine's fault: exit code 1, one line, and nothing is left half-written."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor import Output
from moeplan import cli
from moeplan.commands.use import _keep_finished
from moeplan.output import Reporter
from planner.documents import Trace, load_document
from planner.documents.writing import TOO_LARGE

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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without room."""
    place = tmp_path / "disk"
    place.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own can only be mounted by root")
    try:
        (place / "filler").write_bytes(b"x" * 8192)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_too_little_room_for_a_synthetic_checkpoint_is_the_machines_fault(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["synth", f"{CHECKPOINT}/config.json", "--layers", "1", "--out"]
    (small_disk / "filler").write_bytes(b"x" * 4096)
    assert cli.main([*argv, str(small_disk / "made")]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"moeplan: {small_disk}: ")
    assert told.endswith(" bytes are needed, 4096 are free\n")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.parametrize("as_json", [False, True])
def test_outputs_that_do_not_fit_are_shown(
    as_json: bool,
    small_disk: Path,
    made: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out, trace = small_disk / "outputs.jsonl", tmp_path / "trace.json"
    argv = ["run", made.plan, "--prompts", made.prompts, "--out", out, "--trace", trace]
    assert cli.main([*map(str, argv), *(["--json"] if as_json else [])]) == 1
    told = capsys.readouterr()
    words = f"{out}: the disk is full: make room there, or name another place"
    assert told.err.splitlines()[-1] == f"moeplan: {words}"
    prompts = made.prompts.read_text().splitlines()
    if as_json:
        assert json.loads(told.out) == {"error": {"class": "RunError", "message": words}}
        lines = [json.loads(line) for line in told.err.splitlines() if line.startswith("{")]
        assert [line["prompt"] for line in lines] == prompts
        assert all(len(line["token_ids"]) == 4 for line in lines)
    else:
        assert all(prompt in told.out for prompt in prompts)
    # nothing half-written, and what fits elsewhere is kept
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    assert load_document(Trace, trace).totals.new_tokens == 16


def test_what_had_ended_is_shown_where_it_cannot_be_written(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = [Output("first", " and last" * 500, (1, 2)), Output("second", "", (3,), False)]
    _keep_finished(Reporter(False), outputs, small_disk / "outputs.jsonl")
    told = capsys.readouterr()
    assert "first and last" in told.out
    assert "second" not in told.out
    assert "the disk is full" in told.err


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("schema", "plan"), 2, f"stdout: {TOO_LARGE}"),
        (("--version",), 2, f"stdout: {TOO_LARGE}"),
        (("check", "none", "--json"), 2, "none: no such file; a plan document was expected"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_stdout_without_room_is_one_line(
    argv: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    """``moeplan ... > file``: two bytes may be written, what is buffered fails at the end."""
    with (tmp_path / "out").open("w") as out:
        made = subprocess.run(
            [sys.executable, "-m", "moeplan", *argv],
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2)),
            check=False,
        )
    assert (made.returncode, made.stderr) == (code, f"moeplan: {said}\n")


@pytest.mark.parametrize(
    ("argv", "place"),
    [
        (("synth", f"{CHECKPOINT}/config.json", "--layers", "1", "--out", "made"), "made"),
        (("pack", CHECKPOINT, "store"), "store"),
        ((*PLAN, "--out", "plan.json"), "plan.json"),
        ((*PLAN, "--profile-out", "made", "--out", "plan.json"), "made"),
    ],
    ids=["synth", "pack", "plan", "profile-out"],
)
def test_a_file_that_may_not_be_so_large_is_one_line_and_exit_code_2(
    argv: tuple[Any, ...], place: str, tmp_path: Path
) -> None:
    """``ulimit -f``: Python ignores the signal, so that writing fails."""
    made = subprocess.run(
        [sys.executable, "-m", "moeplan", *map(str, argv)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
        check=False,
    )
    assert made.returncode == 2, made.stderr
    assert made.stderr.splitlines()[-1] == f"moeplan: {place}: {TOO_LARGE}"
    # a store that was begun goes on with the same command
    assert [path.name for path in tmp_path.iterdir()] == (["store"] if place == "store" else [])


def test_a_full_disk_behind_stdout_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Reporter, "show_text", refuse)
    assert cli.main(["schema", "plan"]) == 1
    line = "moeplan: stdout: the disk is full: make room there, or name another place\n"
    assert capsys.readouterr().err == line
