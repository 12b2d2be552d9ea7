"""The report tells every result, is what the results say, and has the README's figures."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def report() -> Any:
    return importlib.import_module("benchmarks.report")


@pytest.fixture(scope="module")
def files(report: Any) -> dict[str, str]:
    built: dict[str, str] = report.build(RESULTS)
    return built


def test_the_report_is_what_the_results_say(files: dict[str, str]) -> None:
    for name, text in files.items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text, (
            f"{name} is stale: run python benchmarks/report.py"
        )
    kept = {f"plots/{path.name}" for path in (RESULTS / "plots").iterdir()}
    assert kept == {name for name in files if name.startswith("plots/")}


def test_every_result_is_shown_whole(report: Any) -> None:
    parts = {part.name: part for part in report.parts_of(RESULTS)}
    for path in RESULTS.glob("*.json"):
        part = parts[path.stem]
        assert part.about is not None, path.name
        # more than a chart: its tables, too
        assert any(type(block).__name__ == "Table" for block in part.blocks), path.name
        said = [block.text for block in part.blocks if type(block).__name__ == "Words"]
        assert not [text for text in said if report.FAULT in text], path.name


def test_every_benchmark_is_in_the_report_run_or_not(files: dict[str, str]) -> None:
    helpers = {"capped", "clairvoyant", "record", "report", "summary", "throttle"}
    for path in (ROOT / "benchmarks").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.stem not in helpers and "__main__" in text:
            assert re.search(rf"benchmarks[/.]{path.stem}\b", files["report.md"]), path.name


def test_the_page_needs_nothing_else_and_is_small(files: dict[str, str]) -> None:
    page = files["report.html"]
    assert len(page.encode()) < MOST_BYTES
    assert not re.search(r"<script|<link|<img|(?:src|href)=\"(?!#)|url\(|@import", page)
    assert "prefers-color-scheme" in page
    assert 'name="viewport"' in page


def test_the_figures_of_the_readme_stand_in_the_report(files: dict[str, str]) -> None:
    readme: Any = importlib.import_module("benchmarks.report_parts.readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.figures_of(text)
    assert readme.missing_figures(text, files["report.md"]) == {}


def test_figures_are_found_by_sentence_and_section() -> None:
    readme: Any = importlib.import_module("benchmarks.report_parts.readme")
    text = (
        "It made 46 tokens/s within 400 MiB. Python 3.11 is enough. It is 1.25x as fast as\n"
        "`x --cells 99`, says [page 7](p8.md), and 1,234 runs were measured.\n\n"
        "```\nmeasured 77 tokens/s\n```\n"
    )
    assert list(readme.figures_of(text).values()) == [["46", "400"], ["1.25", "7", "1,234"]]
    # 46 and 400 stand in the report, but not in one section
    report = "# T\n\n## A\n\n| 46 | 1.25 | 7 | 1,234 |\n\n## B\n\n400, 460 and 46.5\n"
    lacking = readme.missing_figures(text, report)
    assert list(lacking.values()) == [["400"]]


def test_a_missing_and_an_unknown_result_are_told(report: Any, tmp_path: Path) -> None:
    rows = [{"name": "a", "rate": 1.5}, {"name": "b", "rate": 20000.0, "inner": {"x": True}}]
    about = {"measured": "2026-01-02 03:04 UTC", "quiet": True, "others_cores": 0.01, "seeds": [3]}
    inner = {"a": {"rows": [{"n": 2}]}, "b": {"seconds": 1.5}}
    body = {"about": about, "cells": rows, "total": 7, "inner": inner}
    (tmp_path / "surprise.json").write_text(json.dumps(body))
    text = report.build(tmp_path)["report.md"]
    assert "**Not run**: there is no `prediction.json`. `python benchmarks/prediction.py`" in text
    section = text[text.index("## Surprise") :]
    assert "Measured 2026-01-02 03:04 UTC" in section
    assert "quiet, 0.01 cores busy otherwise" in section
    assert "seeds: 3" in section
    assert "| total | 7 |" in section
    assert "| name | rate | inner x |" in section
    assert "| b | 20,000 | yes |" in section
    # a table in a mapping in a mapping is no value of a row
    assert "### rows\n\n| n |\n| --- |\n| 2 |" in section


def test_a_result_of_another_form_is_told_and_shown_plain(report: Any, tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text(json.dumps({"load": {"readers": 3}}))
    (part,) = (one for one in report.parts_of(tmp_path) if one.name == "service")
    said = [block.text for block in part.blocks if type(block).__name__ == "Words"]
    assert any(text.startswith(report.FAULT) for text in said)
    assert any("readers" in str(block) for block in part.blocks)


def test_text_of_results_is_not_markup(report: Any, tmp_path: Path) -> None:
    body = {"rows": [{"name": "<b>|x</b>\n"}]}
    (tmp_path / "surprise.json").write_text(json.dumps(body))
    files = report.build(tmp_path)
    assert "<b>/x</b>" in files["report.md"]
    assert "&lt;b&gt;|x&lt;/b&gt;" in files["report.html"]


def test_stale_reports_and_unknown_names_are_refused(
    report: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results)
    where = ["--results", str(results)]
    assert report.main(where) == 0
    assert report.main([*where, "--check"]) == 0
    (results / "plots" / "old-0.svg").write_text("")
    (results / "report.md").write_text("")
    capsys.readouterr()
    assert report.main([*where, "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == ["stale: report.md", "stale: plots/old-0.svg"]
    with pytest.raises(SystemExit) as left:
        report.main(["--run", "nothing"])
    assert left.value.code == 2
    assert "no benchmark nothing" in capsys.readouterr().err


def test_a_record_tells_how_busy_the_machine_was(monkeypatch: pytest.MonkeyPatch) -> None:
    record: Any = importlib.import_module("benchmarks.record")
    # others: 5 s of the machine before, 8 s after; 10 s later on the clock: 0.3 cores
    clock, others = iter([100.0, 110.0]), iter([5.0, 8.0])
    monkeypatch.setattr(record.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(record, "_others_seconds", lambda: next(others))
    monkeypatch.setattr(record.sys, "argv", ["/somewhere/else/x.py", "--out", "../y"])
    told = record.Record.begin(seeds=range(9), budget="9 runs").about()
    assert told["others_cores"] == pytest.approx(0.3)
    assert told["quiet"] is False
    assert told["seconds"] == 10
    assert told["seeds"] == "0 to 8"
    # no folders that only this machine has
    assert told["command"] == "python x.py --out y"


def test_what_is_added_to_a_result_counts_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    record: Any = importlib.import_module("benchmarks.record")
    # 30 s with 0.2 cores before, now 10 s with none: 6 s of 40
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(record.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(record, "_others_seconds", lambda: 1.0)
    before = {"begun": "then", "seconds": 30.0, "others_cores": 0.2, "quiet": False}
    told = record.Record.begin(before=before).about()
    assert told["begun"] == "then"
    assert told["seconds"] == 40
    assert told["others_cores"] == pytest.approx(0.15)
    assert told["quiet"] is False
