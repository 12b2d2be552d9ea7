"""``moeplan predictors`` from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeplan import cli
from planner.documents import Plan, load_document
from planner.routing import TraceArrays, write_trace

HASH = "a" * 64


def write(folder: Path, *, shift: int, ahead: bool = True, model: str = HASH) -> Path:
    """Eight sequences of six tokens; layer 1 follows layer 0 (e -> e + ``shift`` mod 4), and its
    router, asked ahead, is always right."""
    folder.mkdir()
    first = np.random.default_rng(shift).integers(0, 4, 48)
    chosen = np.stack([first, (first + shift) % 4], axis=1).astype(np.uint16)[:, :, None]
    arrays = TraceArrays(
        chosen,
        np.repeat(np.arange(8, dtype=np.int32), 6),
        np.tile(np.arange(6, dtype=np.int32), 8),
        np.ones(48, dtype=np.uint8),
        chosen if ahead else None,
    )
    write_trace(folder, arrays, model_hash=model, moe_layers=(0, 1), expert_count=4)
    return folder / "routing.json"


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, other = write(tmp_path / "a", shift=1), write(tmp_path / "b", shift=2)
    page = tmp_path / "page.html"
    arguments = ["predictors", str(here), "--against", str(other), "--html", str(page)]
    assert cli.main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    own, apart = said["judged"]
    assert (said["count"], said["fitted_sequences"], own["sequences"]) == (1, 4, 4)
    assert (apart["on"], apart["sequences"]) == (str(other), 8)
    assert own["layers"][1]["hit_rate"]["coactivation"] == 1
    assert own["hit_rate"]["uniform"] == 0.25
    assert own["layers"][0]["hit_rate"]["lookahead"] is None
    # another domain has other successors: the table is wrong there until it has learned them
    assert apart["hit_rate"]["lookahead"] == 1
    assert 0 < apart["hit_rate"]["coactivation"] < 1
    assert "Predictors of experts" in page.read_text()


def test_a_trace_without_lookahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = write(tmp_path / "a", shift=1, ahead=False)
    assert cli.main(["predictors", str(here), "--group", "4"]) == 0
    assert "lookahead is missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--count", "5"], "--count 5: a layer has only 4 experts"),
        (["--against", "a/routing.json"], "holds the same routing"),
        (["--against", "other/routing.json"], "is the routing of another model"),
        (["--against", "none"], "no such file"),
    ],
)
def test_bad_options(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    words: str,
) -> None:
    write(tmp_path / "a", shift=1)
    write(tmp_path / "other", shift=1, model="b" * 64)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["predictors", "a/routing.json", *more]) == 2
    assert words in capsys.readouterr().err


def test_a_plan_with_predictors_runs(
    made: SimpleNamespace, command_json: Callable[..., Any], tmp_path: Path
) -> None:
    """Klotski's plan with Klotski's prefetcher; every token is that of the plan without."""
    outputs = []
    for number, more in enumerate(([], ["--predictors"])):
        plan, out = tmp_path / f"{number}.json", tmp_path / f"{number}.jsonl"
        command_json(
            *(
                "plan",
                made.profile,
                "--memory",
                made.memory,
                "--requests",
                4,
                "--prompt-tokens",
                14,
            ),
            *("--new-tokens", 4, "--solver", "klotski", "--out", plan, *more),
        )
        command_json("run", plan, "--prompts", made.prompts, "--out", out)
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1]
    assert any(note.startswith("predictors") for note in load_document(Plan, plan).notes)
