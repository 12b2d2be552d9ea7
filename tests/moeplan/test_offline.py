"""``moeplan plan --model --hardware --routing`` and ``moeplan catalog`` from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moeplan import cli
from planner.catalogue import machine_names, named_machine
from planner.documents import write_document

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples" / "pycode-moe" / "config.json"
PLAN = ["--memory", "10MiB", "--requests", "4", "--prompt-tokens", "8", "--new-tokens", "4"]
OFFLINE = ["--model", str(CONFIG), "--hardware", "rtx-3090", "--routing", "uniform"]


def run(*arguments: str) -> int:
    return cli.main(["plan", *PLAN, *arguments])


def test_a_plan_its_profile_and_what_works_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, plan = tmp_path / "profile", tmp_path / "plan.json"
    wanted = ["--profile-out", str(profile), "--solver", "frequency", "--out", str(plan)]
    # a checkpoint's folder is as good as its configuration, and is not run either
    assert run("--model", str(CONFIG.parent), *OFFLINE[2:], *wanted, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["device"] == "cuda"
    assert any("nothing was measured" in note for note in said["notes"])
    assert cli.main(["check", str(plan)]) == 0
    comparing = ["--solvers", "frequency,lru", "--objectives", "throughput"]
    assert cli.main(["compare", str(profile), *PLAN, *comparing]) == 0
    prompts = tmp_path / "p.txt"
    prompts.write_text("x\n")
    capsys.readouterr()
    assert cli.main(["run", str(plan), "--prompts", str(prompts)]) == 2
    assert "made from a configuration" in capsys.readouterr().err


def test_a_plan_for_a_processor_is_not_run_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, prompts = tmp_path / "plan.json", tmp_path / "p.txt"
    offline = [*OFFLINE[:2], "--hardware", "ryzen-7950x", "--routing", "zipf:1"]
    assert run(*offline, "--solver", "frequency", "--out", str(plan)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json"]
    prompts.write_text("x\n")
    assert cli.main(["run", str(plan), "--prompts", str(prompts)]) == 2
    assert "made from a configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a PROFILE_DIR"),
        (["here", *OFFLINE], "--model has no effect on here"),
        (["here", "--host-memory", "1GiB"], "--host-memory has no effect on here"),
        (OFFLINE[:4], "--routing must be given, too (uniform says that nothing is known)"),
        (OFFLINE[2:], "--model must be given, too"),
        (OFFLINE[:2], "--hardware and --routing must be given"),
        ([*OFFLINE[:2], "--hardware", "rtx3090", *OFFLINE[4:]], "nearest are rtx-3090"),
        ([*OFFLINE, "--memory", "25GiB"], "--memory 25 GiB is more than the 24 GiB of rtx-3090"),
        ([*OFFLINE, "--host-memory", "0"], "--host-memory"),
        ([*OFFLINE, "--dtype", "float64"], "--dtype 'float64' is unknown"),
        ([*OFFLINE, "--series", "x"], "--series has no effect"),
        ([*OFFLINE, "--profile-out", str(ROOT / "docs")], "is not empty"),
        ([*OFFLINE[:4], "--routing", "nowhere"], "no such file; give statistics"),
        (["--model", "nowhere.json", *OFFLINE[2:]], "nowhere.json"),
        ([*OFFLINE[:2], "--hardware", "nowhere.json", *OFFLINE[4:]], "nowhere.json: no such file"),
    ],
)
def test_what_is_refused_is_one_line_and_writes_nothing(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--out", str(tmp_path / "plan.json")) == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_machines_file_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.json"
    write_document(named_machine("l4"), mine)
    before = mine.read_bytes()
    offline = [*OFFLINE[:2], "--hardware", str(mine), "--routing", "uniform"]
    assert run(*offline, "--out", str(mine)) == 2
    assert "is one of the inputs" in capsys.readouterr().err
    assert mine.read_bytes() == before


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_catalogue(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["catalog", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [machine["name"] for machine in said["hardware"]] == list(machine_names())
    assert "mixtral" in said["families"]
    assert cli.main(["catalog"]) == 0
    assert "rtx-3090" in capsys.readouterr().out
    assert cli.main(["catalog", "t4", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {row["kind"] for row in figures} == {"spec", "measured"}
    assert all(row["source"] for row in figures)
    assert cli.main(["catalog", "t4"]) == 0
    told = capsys.readouterr().out
    # each figure has its unit, the one that the source has (hardware.csv)
    for words in (
        r"t4 compute_float16 +41\.93 TFLOP/s",
        r"t4 device_memory +16 GiB",
        r"pcie-3-x16 link +[\d.]+ GB/s",
    ):
        assert re.search(words, told)
    assert "…" not in told  # nothing is cut: who wants to look a source up needs all of it
    squeezed = "".join(told.split())
    longest = max((word for row in figures for word in row["source"].split()), key=len)
    assert len(longest) > 20
    assert longest[:20] in squeezed
    assert cli.main(["catalog", "t5"]) == 2
    assert capsys.readouterr().err.startswith("moeplan: hardware 't5' is not in the catalogue")


def test_planning_without_a_machine_loads_no_torch(tmp_path: Path) -> None:
    arguments = ["plan", *PLAN, *OFFLINE, "--solver", "frequency", "--out", "plan.json"]
    code = (
        f"import sys\nfrom moeplan import cli\ncode = cli.main({arguments!r})\n"
        "print(code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip().endswith("0 []")
