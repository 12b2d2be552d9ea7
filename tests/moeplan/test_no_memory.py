"""A process that gets no more memory says so in one line."""

from __future__ import annotations

import pytest

from moeplan import cli


@pytest.mark.parametrize(
    "fault",
    [MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")],
)
def test_no_memory_is_one_line(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_left(*_: object) -> None:
        raise fault

    monkeypatch.setattr("moeplan.commands.use.load_plan", none_left)
    assert cli.main(["run", "plan.json", "--prompts", "prompts.txt"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err == "moeplan: no memory is left for this process (of ulimit -v, perhaps)\n"


def test_another_import_that_fails_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ImportError("cannot import name")

    monkeypatch.setattr("moeplan.commands.use.load_plan", broken)
    with pytest.raises(ImportError, match="cannot import name"):
        cli.main(["run", "plan.json", "--prompts", "prompts.txt"])
