"""What the README and the pages say can be typed, and does what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

import moeplan
from executor import outputs
from moeplan.commands import app
from planner.objectives import OBJECTIVES
from solvers import errors
from solvers.registry import names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


COMMAND_LINES = [
    line
    for page in PAGES
    for block in blocks(page, "")
    for line in block.splitlines()
    if line.startswith("moeplan ")
]


def test_the_pages_show_every_command() -> None:
    shown = {shlex.split(line)[1] for line in COMMAND_LINES}
    assert shown == set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_of_the_pages_can_be_typed(line: str) -> None:
    # parsed as typed, but not run: an unknown option or a missing argument raises
    name, *arguments = shlex.split(line)[1:]
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, arguments)
    assert context.args == []


@pytest.mark.parametrize("name", [*names(), *OBJECTIVES])
def test_every_choice_is_on_the_page_of_commands(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("error", [*errors.__all__, "UsageError", "Interrupted"])
def test_every_error_class_is_on_the_page_of_commands(error: str) -> None:
    # MoeplanError stands for all of them and is never raised itself
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert error == "MoeplanError" or f"`{error}`" in page or f'"{error}"' in page


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def typed(page: str, made: SimpleNamespace, folder: Path) -> str:
    """What the only example in Python of a page prints, where the README's commands were typed."""
    (example,) = blocks(ROOT / page, "python")
    (folder / "build").mkdir()
    (folder / "build" / "profile").symlink_to(made.profile)
    (folder / "build" / "plan.json").symlink_to(made.plan)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=folder,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_runs(made: SimpleNamespace, tmp_path: Path) -> None:
    printed = typed("README.md", made, tmp_path)
    assert printed.startswith("def main(): ")
    assert "\nclass Stack: " in printed


def test_the_example_of_the_executors_page_runs(made: SimpleNamespace, tmp_path: Path) -> None:
    printed = typed("docs/executor.md", made, tmp_path)
    # pieces of both prompts, as they come
    assert printed.startswith("0 ")
    assert "\n1 " in printed


def test_the_answers_to_complaints_name_tests_and_benchmarks_that_exist() -> None:
    page = (ROOT / "docs" / "complaints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*", page, re.M)
    assert rows == [str(number) for number in range(1, 12)]
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) >= 11
    for file, function in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text if function else True, f"{file}: {function}"


def test_the_reference_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 0


def test_what_a_run_gives_back_and_raises_is_a_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for name, home in (("Output", outputs), ("Piece", outputs), ("CancelledError", errors)):
        assert getattr(moeplan, name) is getattr(home, name)
        assert f"\n## {name}\n" in page
