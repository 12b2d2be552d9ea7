"""Bad input of every kind: exit code 2, one line, no traceback, nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moeplan import cli
from planner.documents import Plan, Trace, write_document
from tests.refusal import refusal


@dataclass(frozen=True)
class Case:
    """One bad call: its arguments, made in a fresh folder, and what the line must say."""

    name: str
    argv: Callable[[Path, Path], list[Any]]
    said: tuple[str, ...]


def copied(tiny: Path, here: Path) -> Path:
    """A checkpoint of one's own, to be broken."""
    shutil.copytree(tiny, here / "mine")
    return here / "mine"


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A JSON file with a change."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    return path


def profile_of(checkpoint: Path, here: Path, memory: str = "5000KiB") -> list[Any]:
    return ["profile", checkpoint, "--memory", memory, "--out", here / "out"]


def truncated(tiny: Path, here: Path) -> list[Any]:
    mine = copied(tiny, here)
    weights = next(mine.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    return profile_of(mine, here)


def header_cut(tiny: Path, here: Path) -> list[Any]:
    mine = copied(tiny, here)
    weights = next(mine.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:5])
    return profile_of(mine, here)


def without_experts(tiny: Path, here: Path) -> list[Any]:
    mine = copied(tiny, here)
    (mine / "config.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2})
    )
    return profile_of(mine, here)


def broken_config(tiny: Path, here: Path) -> list[Any]:
    mine = copied(tiny, here)
    (mine / "config.json").write_text('{"model_type": ')
    return profile_of(mine, here)


def without_weights(tiny: Path, here: Path) -> list[Any]:
    mine = copied(tiny, here)
    next(mine.glob("*.safetensors")).unlink()
    return profile_of(mine, here)


def empty(tiny: Path, here: Path) -> list[Any]:
    (here / "empty").mkdir(exist_ok=True)
    return profile_of(here / "empty", here)


def out_is_foreign(tiny: Path, here: Path) -> list[Any]:
    (here / "out").mkdir()
    (here / "out" / "thesis.txt").write_text("years of work")
    return profile_of(tiny, here)


CHECKPOINT_CASES = [
    Case("no folder", lambda tiny, here: profile_of(here / "none", here), ("none",)),
    Case("an empty folder", empty, ("empty", "config.json")),
    Case("truncated weights", truncated, ("mine", "safetensors")),
    Case("weights cut inside the header", header_cut, ("mine", "safetensors")),
    Case("no experts", without_experts, ("llama",)),
    Case("config cut short", broken_config, ("config.json",)),
    Case("no weights", without_weights, ("mine",)),
    Case("no unit", lambda tiny, here: profile_of(tiny, here, "600M"), ("600MiB", "600MB")),
    Case("negative memory", lambda tiny, here: profile_of(tiny, here, "-5MiB"), ("--memory",)),
    Case(
        "unknown device",
        lambda tiny, here: [*profile_of(tiny, here), "--device", "tpu"],
        ("tpu", "cpu or cuda"),
    ),
    Case(
        "bandwidth without time",
        lambda tiny, here: [*profile_of(tiny, here), "--disk-bandwidth", "1GB"],
        ("--disk-bandwidth", "1GB/s"),
    ),
    Case(
        "no store",
        lambda tiny, here: [*profile_of(tiny, here), "--store", here / "none"],
        ("none",),
    ),
    Case(
        "no prompts",
        lambda tiny, here: [*profile_of(tiny, here), "--prompts", here / "none.txt"],
        ("none.txt", "no such file"),
    ),
    Case("a folder with other files", out_is_foreign, ("out", "no part of a profile")),
    Case(
        "into the checkpoint",
        lambda tiny, here: ["profile", tiny, "--memory", "5000KiB", "--out", tiny],
        ("one of the inputs",),
    ),
    Case("pack nothing", lambda tiny, here: ["pack", here / "none", here / "s"], ("none",)),
    Case("pack onto itself", lambda tiny, here: ["pack", tiny, tiny], (str,)[:0]),
    Case(
        "pack with an unknown compression",
        lambda tiny, here: ["pack", tiny, here / "s", "--compress", "zip"],
        ("'zip'", "none, exact, both, auto"),
    ),
    Case(
        "pack with an unknown quantization",
        lambda tiny, here: ["pack", tiny, here / "s", "--quantize", "int3"],
        ("'int3'", "int8, int4"),
    ),
    Case(
        "pack with a group of nothing",
        lambda tiny, here: ["pack", tiny, here / "s", "--group", 32],
        ("--group has no effect",),
    ),
    Case(
        "pack with a small group",
        lambda tiny, here: ["pack", tiny, here / "s", "--quantize", "int4", "--group", 0],
        ("--group 0", "16"),
    ),
    Case(
        "pack with a group that does not divide",
        lambda tiny, here: ["pack", tiny, here / "s", "--quantize", "int4", "--group", 23],
        ("cannot be cut into groups of 23",),
    ),
    Case(
        "pack quantized and compressed",
        lambda tiny, here: ["pack", tiny, here / "s", "--quantize", "int8", "--compress", "auto"],
        ("--compress", "--quantize"),
    ),
    Case(
        "pack in several forms without the checkpoint's own",
        lambda tiny, here: ["pack", tiny, here / "s", "--quantize", "int8,int4"],
        ("int8,int4", "'own'"),
    ),
    Case(
        "pack in the checkpoint's own form alone",
        lambda tiny, here: ["pack", tiny, here / "s", "--quantize", "own"],
        ("--quantize own", "int8 or int4 or both"),
    ),
    Case(
        "pack in several forms and compressed",
        lambda tiny, here: [
            "pack",
            tiny,
            here / "s",
            "--quantize",
            "own,int4",
            "--compress",
            "exact",
        ],
        ("--compress", "--quantize"),
    ),
    Case(
        "synth without layers",
        lambda tiny, here: ["synth", tiny, "--layers", 0, "--out", here / "s"],
        ("--layers",),
    ),
    Case(
        "synth of nothing",
        lambda tiny, here: ["synth", here / "none.json", "--out", here / "s"],
        ("none.json",),
    ),
]


def listing(*folders: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_refused(
    argv: list[Any], said: tuple[str, ...], capsys: pytest.CaptureFixture[str], *watched: Path
) -> None:
    """Exit code 2, one line on stderr, nothing on stdout, no file made or changed."""
    before = listing(*watched)
    line = refusal(capsys, *argv)
    for text in said:
        assert text in line
    assert listing(*watched) == before
    code = cli.main([*(str(item) for item in argv), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 2
    assert set(document) == {"error"}
    assert document["error"]["message"] in line


@pytest.mark.parametrize("case", CHECKPOINT_CASES, ids=lambda case: case.name)
def test_bad_checkpoints_and_options(
    case: Case, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = case.argv(tiny, tmp_path)
    assert_refused(argv, case.said, capsys, tmp_path, tiny)


# --- documents that are not what they should be ---------------------------------------------------


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _plan(here: Path, plan: Plan, change: Callable[[dict[str, Any]], object]) -> Path:
    write_document(plan, here / "plan.json")
    return edited(here / "plan.json", change)


DOCUMENT_CASES: list[tuple[str, Callable[[Path, Plan], Path], str]] = [
    ("missing", lambda here, plan: here / "none.json", "no such file"),
    ("a folder", lambda here, plan: here, "cannot be read"),
    ("no JSON", lambda here, plan: _text(here / "x.json", "{"), "not valid JSON"),
    ("no object", lambda here, plan: _text(here / "x.json", "[]"), "not a JSON object"),
    ("not a text", lambda here, plan: _text(here / "x.json", "\x00"), "not valid JSON"),
    (
        "another kind",
        lambda here, plan: _text(here / "x.json", '{"kind": "trace", "version": 1}'),
        "kind is 'trace'",
    ),
    (
        "another version",
        lambda here, plan: _plan(here, plan, lambda v: v.update(version=99)),
        "version 99",
    ),
    (
        "an unknown key",
        lambda here, plan: _plan(here, plan, lambda v: v["policy"].update(colour="red")),
        "policy.colour",
    ),
    (
        "a key too few",
        lambda here, plan: _plan(here, plan, lambda v: v["policy"].pop("slots")),
        "policy.slots",
    ),
    (
        "a negative number",
        lambda here, plan: _plan(here, plan, lambda v: v["policy"].update(n_batches=-1)),
        "policy.n_batches",
    ),
    (
        "a number as text",
        lambda here, plan: _plan(here, plan, lambda v: v["policy"].update(slots="3")),
        "policy.slots",
    ),
    (
        "a huge number",
        lambda here, plan: _plan(here, plan, lambda v: v["policy"].update(slots=1e400)),
        "policy.slots",
    ),
    (
        "no device memory",
        lambda here, plan: _plan(here, plan, lambda v: v.update(memory={})),
        "memory",
    ),
]


# show takes two kinds of documents: what it says of other files is in test_show
NOT_FOR_SHOW = ("no object", "another kind", "no JSON", "not a text")


@pytest.mark.parametrize(
    ("command", "case"),
    [
        pytest.param(command, case, id=f"{command}: {case[0]}")
        for command in ("check", "run", "verify", "show")
        for case in DOCUMENT_CASES
        if command != "show" or case[0] not in NOT_FOR_SHOW
    ],
)
def test_bad_plans(
    command: str,
    case: tuple[str, Callable[[Path, Plan], Path], str],
    plan: Plan,
    trace: Trace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, make, said = case
    path = make(tmp_path, plan)
    (tmp_path / "p.txt").write_text("a prompt\n")
    write_document(trace, tmp_path / "trace.json")
    extra = {
        "run": ["--prompts", tmp_path / "p.txt", "--out", tmp_path / "out.jsonl"],
        "verify": [tmp_path / "trace.json"],
    }.get(command, [])
    assert_refused([command, path, *extra], (said,), capsys, tmp_path)
