"""Commands that refuse what they are given."""

from __future__ import annotations

from typing import Any

import pytest

from moeplan import cli

__all__ = ["refusal"]


def refusal(capsys: pytest.CaptureFixture[str], *argv: Any, code: int = 2) -> str:
    """What a command says of bad input: one line on stderr, and nothing on stdout."""
    capsys.readouterr()  # of commands before
    got = cli.main([str(part) for part in argv])
    out, err = capsys.readouterr()
    assert got == code, (out, err)
    assert out == ""
    (line,) = err.strip().splitlines()
    assert line.startswith("moeplan: ")
    return line
