"""Arguments made up from the commands' own parameters: done, or refused in one line."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from moeplan import cli, commands

# a server that is asked for is there until it is stopped
WITHOUT = ("serve",)
ODD = ["", " ", "-1", "0", "1", "1e400", "nan", "9" * 30, "0x10", "1,1", "a=b", "\x1b[2J", "a\nb"]
ODD += ["\ud800", "ä", "..", "/", "/dev/null", "none.json", "12MiB", "100", "cpu", "--", "-", "*"]
FILES = {"empty": b"", "list.json": b"[]", "text.txt": b"a b\n", "plan.json": b'{"kind": "plan"}'}
ROUNDS = 5


def all_commands(command: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield way, command
        return
    for name, one in inner.items():
        if name not in WITHOUT:
            yield from all_commands(one, (*way, name))


FOUND = [
    pytest.param(way, command, id=" ".join(way))
    for way, command in all_commands(get_command(commands.app))
]


def made_up(draw: random.Random, command: Any) -> list[str]:
    """Some of a command's parameters; now and then one without its value."""
    words: list[str] = []
    for one in command.params:
        if draw.random() < (0.15 if one.param_type_name == "argument" else 0.7):
            continue
        value = draw.choice([*ODD, *FILES])
        if one.param_type_name == "argument":
            words.append(value)
        elif one.name != "help":
            name = draw.choice([*one.opts, *one.secondary_opts])
            words += [name] if one.is_flag else [name, value]
            if draw.random() < 0.05:
                words.append(name)
    if draw.random() < 0.1:
        words.append(draw.choice(["--colour", "-x", "more"]))
    return words


def listing(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(("way", "command"), FOUND)
def test_made_up_arguments(
    way: tuple[str, ...],
    command: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    draw = random.Random(" ".join(way))
    for _ in range(ROUNDS):
        words, before = [*way, *made_up(draw, command)], listing(tmp_path)
        code = cli.main(words)
        err = capsys.readouterr().err
        assert code in (0, 2), (words, err)
        if code:
            said = err.rstrip("\n")
            assert said, words
            assert said.isprintable(), (words, said)
            assert "Traceback" not in said
            assert listing(tmp_path) == before, words
