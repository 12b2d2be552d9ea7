"""The front door itself: exit codes, JSON, errors. Commands with real parts are tested apart."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys

import jsonschema
import pytest
import typer
from rich.text import Text

from moeplan import cli
from moeplan.commands.outputs import give_outputs
from moeplan.output import EXIT_CODES, Reporter, SearchSteps, Steps, exit_code
from planner.documents import DOCUMENTS, Workload, to_json
from solvers import errors


def test_every_error_class_has_an_exit_code() -> None:
    # from the drawing in solvers/errors.py: what the caller can fix is 2, a stopped run is 1
    expected = {
        "DocumentError": 2,
        "CheckpointError": 2,
        "UnsupportedError": 2,
        "OptionError": 2,
        "StaleError": 2,
        "BudgetError": 2,
        "InputError": 2,
        "RunError": 1,
        "CancelledError": 1,
    }
    named = {name: getattr(errors, name) for name in errors.__all__ if name != "MoeplanError"}
    assert set(named) == set(expected)
    extra = {"StaleError": ("model", "x"), "BudgetError": ("x", 1)}
    for name, cls in named.items():
        assert exit_code(cls(*extra.get(name, ("x",)))) == expected[name], name
    assert len(EXIT_CODES) == 2


def test_schema_fits_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "workload", "--json"]) == 0
    out, err = capsys.readouterr()
    schema = json.loads(out)
    assert err == ""
    good = to_json(Workload(requests=4, prompt_tokens=8, new_tokens=2))
    jsonschema.validate(good, schema)
    for bad in ({**good, "requests": 0}, {**good, "colour": 1}, {**good, "version": 2}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_has_a_valid_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", name]) == 0
    text = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(text)
    assert text["properties"]["kind"] == {"const": name}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "Missing command"),
        (["nothing"], "nothing"),
        (["schema"], "Missing argument"),
        (["schema", "plan", "--colour"], "No such option: --colour"),
        (["schema", "plans"], "choose from hardware"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_usage_errors(
    argv: list[str], said: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*argv, *(["--json"] if as_json and argv else [])]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert len(err.splitlines()) == 1
    if as_json and argv:
        document = json.loads(out)
        assert said in document["error"]["message"]
    else:
        assert out == ""


def _raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command("fail")
    def fail(as_json: bool = typer.Option(False, "--json")) -> None:
        print("a library talks")
        raise error

    @app.command("other")
    def other() -> None:
        """A second command, so that the first keeps its name."""

    monkeypatch.setattr("moeplan.commands.app", app)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BudgetError("too small;\n the smallest is 9", 9), 2),
        (errors.StaleError("store", "another store"), 2),
        (errors.RunError("the disk went away"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_a_code(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _raising(error, monkeypatch)
    assert cli.main(["fail", "--json"]) == code
    out, err = capsys.readouterr()
    document = json.loads(out)  # exactly one document: the library's words went elsewhere
    kind = "Interrupted" if code == 130 else type(error).__name__
    assert document["error"]["class"] == kind
    assert err.splitlines()[0] == "a library talks"
    assert len(err.splitlines()) == 2
    assert "Traceback" not in err


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_a_path_longer_than_a_line_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    path = "/" + "x" * 40
    Reporter(False).show(Text(f"The report is in {path}"))
    assert f" {path}\n" in capsys.readouterr().out
    Reporter(False).show(Text("several words that are wrapped as ever"))
    assert capsys.readouterr().out == "several words that are wrapped\nas ever\n"


def test_progress_without_a_terminal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 3.0, 4.0, 15.0])  # began, a line, its time, no line, done
    monkeypatch.setattr("moeplan.output.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Steps("load", stream) as steps:
        steps(1, 4)
        steps(2, 4)
    assert stream.getvalue() == "load 25%\nload: 100%, done in 15 s\n"


def test_before_and_after_a_search_no_share_of_its_time_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    steps = SearchSteps(lambda *one: told.append(one), 0.0)  # its time is over
    steps("a first look", 0, None)
    steps("cpsat", 8, 6)
    assert told[0] == (0, 0, "a first look")
    assert told[1][2] == "cpsat, gap 25.0% on fitted sequences; time used:"
    several = SearchSteps(lambda *one: told.append(one), 0.0, "time used, of that for all devices")
    several("cpsat, device 1 (of 2)", 8, None)
    several("cpsat, device 1 (of 2)", 8, 6)
    assert told[2][2] == "cpsat, device 1 (of 2)"
    assert told[3][2].endswith("gap 25.0% on fitted sequences; time used, of that for all devices:")


@pytest.mark.parametrize("fails", [False, True])
def test_progress_that_said_nothing_or_failed_has_no_end(fails: bool) -> None:
    stream = io.StringIO()
    with contextlib.suppress(ZeroDivisionError), Steps("load", stream):
        if fails:
            raise ZeroDivisionError
    assert stream.getvalue() == ""


def test_native_prints_do_not_reach_stdout() -> None:
    # a C library writes to file descriptor 1, as HiGHS does with its banner
    code = (
        "import os, sys\n"
        "from moeplan.output import guard_stdout\n"
        "with guard_stdout():\n"
        "    os.write(1, b'banner\\n')\n"
        "    print('{}')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{}\nafter\n"
    assert done.stderr == "banner\n"


def test_openmp_spinning_is_off_before_anything_loads() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    code = (
        "import os\nfrom moeplan.cli import main\nmain(['schema', 'workload', '--json'])\n"
        "print(os.environ['GOMP_SPINCOUNT'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "0"


def test_starting_loads_nothing_heavy() -> None:
    heavy = "torch transformers sqlalchemy fastapi uvicorn httpx plotly ortools highspy scipy"
    code = (
        "import sys\nfrom moeplan.cli import main\nmain(['--version'])\n"
        f"print(sorted(set({heavy.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_program_stops_quietly_when_its_reader_leaves() -> None:
    done = subprocess.run(
        f"{sys.executable} -m moeplan schema plan | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_control_c_is_one_line_and_130() -> None:
    code = (
        "import time, typer\n"
        "from moeplan import cli\n"
        "app = typer.Typer()\n"
        "@app.command('a')\n"
        "def a():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "@app.command('b')\n"
        "def b(): pass\n"
        "from moeplan import commands\ncommands.app = app\n"
        "import sys\nsys.argv = ['moeplan', 'a']\ncli.entry()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert len(err.splitlines()) == 1
    assert "interrupted" in err


def test_outputs_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"prompt": "a\x00\x1b[2J\x07 é漢字🎉\u202e", "text": "\n\tb\x9b", "token_ids": [1]}
    give_outputs(Reporter(False), [line], None)
    shown = capsys.readouterr().out
    assert shown.startswith("a\\x00\\x1b[2J\\x07 é漢字🎉\\u202e\n")
    assert "b\\x9b" in shown
