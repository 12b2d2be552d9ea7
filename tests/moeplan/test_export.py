"""``moeplan export`` from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from moeplan import cli
from planner.documents import Plan, Trace, write_document
from planner.exports import TARGETS
from tests.refusal import refusal


@pytest.fixture(scope="module")
def on_gpu(
    tiny: Path, command_json: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """A plan of the tiny checkpoint's configuration for a GPU of the catalogue, by a rule."""
    folder = tmp_path_factory.mktemp("gpu")
    plan, profile = folder / "plan.json", folder / "profile"
    command_json(
        *("plan", "--model", tiny / "config.json", "--hardware", "rtx-3090"),
        *("--routing", "uniform", "--memory", "64MiB", "--requests", 4, "--prompt-tokens", 8),
        *("--new-tokens", 2, "--solver", "frequency", "--profile-out", profile, "--out", plan),
    )
    return SimpleNamespace(plan=plan, profile=profile)


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_for_each_target(
    target: str, on_gpu: SimpleNamespace, command_json: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = command_json("export", on_gpu.plan, "--to", target, "--out", out)
    assert (said["target"], said["out"], said["export"]) == (target, str(out), None)
    assert said["cannot_express"]
    text = out.read_text()
    for line in said["cannot_express"]:
        assert json.dumps(line)[1:-1] in text or line in text
    # a newer export takes the place of an older one, whatever it is for
    again = command_json("export", on_gpu.plan, "--to", "ktransformers", "--out", out)
    assert again["plan"] == said["plan"]
    assert yaml.safe_load(out.read_text())[0]["match"]["name"].endswith(r"\.mlp\.experts$")


@pytest.mark.parametrize("target", ["accelerate", "llama.cpp", "perfetto"])
def test_without_a_file_stdout_is_the_file(
    target: str, made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["export", str(made.plan), "--to", target, "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"What {target} cannot do of it: - " in shown
    assert cli.main(["export", str(made.plan), "--to", target]) == 0
    captured = capsys.readouterr()
    assert captured.out == out.read_text()
    assert f"what {target} cannot do of the plan:" in captured.err
    assert cli.main(["export", str(made.plan), "--to", target, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    body = json.loads(out.read_text()) if target != "llama.cpp" else out.read_text()
    assert said["export"] == body
    assert said["out"] is None


def test_a_timeline_needs_no_profile_and_takes_a_trace(
    plan: Plan, trace: Trace, command_json: Callable[..., Any], tmp_path: Path
) -> None:
    write_document(plan, tmp_path / "plan.json")
    write_document(trace, tmp_path / "trace.json")
    arguments = ("export", tmp_path / "plan.json", "--to", "perfetto")
    said = command_json(*arguments, "--trace", tmp_path / "trace.json")
    names = {
        event["args"]["name"]
        for event in said["export"]["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {"predicted", "measured"}
    # the run took twice as long (conftest)
    ends = {
        side: max(
            event["ts"] + event["dur"]
            for event in said["export"]["traceEvents"]
            if event["ph"] == "X" and event["pid"] == side
        )
        for side in (1, 2)
    }
    assert ends == {1: 40_000.0, 2: 80_000.0}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--to", "gguf"], "'gguf' is unknown; choose from accelerate, llama.cpp, ktransformers"),
        (["--to", "perfetto", "--profile", "x"], "--profile has no effect on an export to perf"),
        (["--to", "accelerate", "--trace", "x"], "--trace has no effect on an export to accel"),
        (["--to", "llama.cpp", "--placement", "x"], "--placement has no effect on an export to"),
        (["--to", "vllm"], "plan for a GPU"),
        (["--to", "accelerate", "--profile", "missing"], "missing: no such folder; --profile DIR"),
        (["--to", "perfetto", "--trace", "missing"], "no such file"),
        (["--to", "perfetto", "--out", "PLAN"], "is one of the inputs"),
        (["--to", "perfetto", "--out", "PROFILE/new"], "which is read"),
        (["--to", "perfetto", "--out", "mine"], "holds no older export"),
    ],
)
def test_what_is_refused(
    more: list[str],
    words: str,
    made: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("# notes\n")
    given = [
        word.replace("PLAN", str(made.plan)).replace("PROFILE", str(made.profile)) for word in more
    ]
    assert words in refusal(capsys, "export", made.plan, *given)
    assert (tmp_path / "mine").read_text() == "# notes\n"


def test_a_profile_that_has_gone_is_asked_for(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``explain`` said to make another one, from which the plan would not be."""
    gone = str(tmp_path / "gone")
    assert cli.main(["explain", str(made.plan), "--profile", gone]) == 2
    assert f"{gone}: no such folder; --profile DIR says where" in capsys.readouterr().err


def test_another_profile_is_refused(
    made: SimpleNamespace, on_gpu: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(made.plan), "--to", "accelerate", "--profile", str(on_gpu.profile)]
    assert cli.main(arguments) == 2
    assert "made from another model document; give its profile" in capsys.readouterr().err
