"""Help is wrapped to the terminal's width, whatever the width of the sources."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from typer.main import get_command

from moeplan import cli
from moeplan.commands import app
from tests.moeplan.test_any_arguments import all_commands

COMMANDS = [" ".join(way) for way, _ in all_commands(get_command(app))] + ["serve", "token", ""]


def wide(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("command", COMMANDS)
def test_paragraphs_fill_their_lines(
    command: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main([*command.split(), "--help"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(wide, lines)) <= columns
    # what a command does: all that stands before the frames of its parameters
    told = lines[: next(at for at, line in enumerate(lines) if line.startswith("╭"))]
    begun = next(at for at, line in enumerate(told) if line.lstrip().startswith("Usage:"))
    told = told[told.index("", begun) :]
    assert any(told), "nothing is said"
    for line, after in pairwise(told):
        if line and after:
            # one column is left free on either side
            assert wide(line) + 1 + wide(after.split()[0]) > columns - 1, (line, after)


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("group", ["", "token"])
def test_summaries_of_commands_fill_theirs(
    group: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main([*group.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("╭─ Commands"))
    rows = [line.strip("│ ") and line for line in lines[first + 1 : -1] if line.startswith("│")]
    # a name begins right behind the frame, what goes on does not
    names = [row[2:].split()[0] for row in rows if row[2] != " "]
    inner = get_command(app)
    if group:
        inner = inner.commands[group]  # type: ignore[attr-defined]
    assert names == list(inner.commands)  # type: ignore[attr-defined]
    start = max(map(len, names)) + 4
    for row, after in pairwise(rows):
        if after[2] == " ":
            said, word = row[start:-1].strip(), after[start:-1].split()[0]
            assert start + wide(said) + 1 + wide(word) > columns - 2, (row, after)
