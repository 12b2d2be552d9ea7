"""Faults that were found by breaking things: each stands for its kind."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from moeplan import cli
from moeplan.options import check_new_folder, check_output, read_prompts
from planner.documents import (
    Plan,
    Policy,
    ProfileIndex,
    Workload,
    load_document,
    parse_document,
    to_json,
)
from planner.documents import base as documents
from planner.files import loads_once
from planner.profiles import load_profile
from solvers.errors import DocumentError, InputError, OptionError

CHECKPOINT = str(Path(__file__).parents[2] / "examples" / "pycode-moe")


def test_an_output_never_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OptionError, match="device or a pipe"):
        check_output(pipe, "--out")
    with pytest.raises(OptionError, match="device or a pipe"):
        check_output(Path(os.devnull), "--out")


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder of a user who is not root, as whom the test then runs; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        root = os.geteuid() == 0
        if root:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)


def test_an_output_takes_no_place_of_a_file_that_may_not_be_written_to(nobodys: Path) -> None:
    path, link = nobodys / "outputs", nobodys / "link"
    path.write_bytes(b"")
    link.symlink_to(path)
    path.chmod(0o444)
    for place in (path, link):
        with pytest.raises(OptionError, match="may not be written to"):
            check_output(place, "--out")
    path.chmod(0o644)
    for place in (path, link, nobodys / "new"):
        check_output(place, "--out")


def test_another_users_file_in_a_shared_folder_is_refused_before_the_work(nobodys: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root makes files of other users")
    path = nobodys / "outputs"
    path.write_bytes(b"")
    path.chmod(0o666)
    os.seteuid(0)
    nobodys.chmod(0o1777)
    os.chown(nobodys, 0, 0)
    for owner, refused in ((65534, False), (1, True), (0, True)):
        os.seteuid(0)
        os.chown(path, owner, owner)
        os.seteuid(65534)
        if not refused:
            check_output(path, "--out")
            continue
        with pytest.raises(OptionError, match="another user's, in a folder where only owners"):
            check_output(path, "--out")
        with pytest.raises(PermissionError):  # the kernel's word on it
            path.rename(nobodys / "renamed")


def test_an_output_never_lies_in_a_folder_that_is_read(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "link").symlink_to(checkpoint)
    for path in (
        checkpoint / "model.safetensors",
        checkpoint / "new.jsonl",
        tmp_path / "link" / "new.jsonl",
    ):
        with pytest.raises(OptionError, match="lies in"):
            check_output(path, "--out", [checkpoint, None, tmp_path / "missing"])
    check_output(tmp_path / "new.jsonl", "--out", [checkpoint])


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "\\ud800"}',
        '{"token_ids": [99999999999999999999999]}',
        '{"token_ids": [' + "9" * 5_000 + "]}",
        '{"prompt": "a", "prompt": "b"}',
    ],
    ids=["half", "large", "digits", "twice"],
)
def test_what_no_tokenizer_can_take_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match="line 1"):
        read_prompts(path)


def test_a_file_without_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_MOST_BYTES", 100)
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"kind": "workload"}) + " " * 100)
    with pytest.raises(DocumentError, match="larger than any workload"):
        load_document(Workload, path)


def test_a_policy_without_layers_is_no_policy() -> None:
    schema = TypeAdapter(Policy).json_schema()
    assert schema["properties"]["layers"]["minItems"] == 1


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\x00", "\x9b1m", "\u202e", "\u2028"])
def test_no_document_holds_what_moves_a_terminal(text: str) -> None:
    value = to_json(ProfileIndex("c", None, "0" * 64, None, 1, *("0" * 64,) * 4))
    for changed in ({**value, "store": text}, {**value, text: 1}):
        with pytest.raises(DocumentError, match="control characters") as caught:
            parse_document(ProfileIndex, changed, "here")
        assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "key", "most"),
    [
        (Workload, "requests", 10**6),
        (Workload, "prompt_tokens", 1 << 27),
        (Policy, "n_batches", 10**6),
        (Policy, "batch_size", 10**6),
        (Policy, "slots", 1 << 20),
        (Policy, "chunk_bytes", 64 << 20),
    ],
)
def test_numbers_that_nobody_can_mean_are_refused(cls: type, key: str, most: int) -> None:
    assert TypeAdapter(cls).json_schema()["properties"][key]["maximum"] == most
    value = {"kind": "workload", "version": 1, "requests": 10**12}
    with pytest.raises(DocumentError, match=r"requests: must be at most 1000000"):
        parse_document(Workload, {**value, "prompt_tokens": 1, "new_tokens": 1}, "here")


def test_a_document_without_a_kind() -> None:
    with pytest.raises(DocumentError, match="here: has no 'kind'; is it a moeplan document"):
        parse_document(Workload, {"requests": 1}, "here")


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "p", "--memory", "9" * 5000],
        ["plan", "p", "--memory", "9 " * 5000],
        ["plan", "p", "--memory", "1MiB", "--requests", "9" * 5000],
        ["plan", "p", "--memory", "1MiB", "--solver", "x" * 5000],
        ["x" * 5000],
        ["show", "\x1b[2J" * 3000],
    ],
    ids=lambda argv: argv[0][:9],
)
def test_errors_do_not_echo_without_end(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    line = capsys.readouterr().err
    assert len(line) < 2000
    assert "\x1b" not in line


def test_one_rule_for_all_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = tmp_path / "read"
    read.mkdir()
    config = read / "config.json"
    config.write_text("{}")
    size = ["--memory", "1MiB"]
    for argv in (
        ["plan", read, *size, "--out", read / "plan.json"],
        ["profile", read, *size, "--out", read / "new"],
        ["profile", read, *size, "--out", read],
        ["pack", read, read / "store"],
        ["synth", read, "--out", read / "new"],
    ):
        assert cli.main([str(item) for item in argv]) == 2
        assert "is read" in (line := capsys.readouterr().err) or "one of the inputs" in line
    assert [path.name for path in read.iterdir()] == ["config.json"]


def test_a_name_that_no_document_can_hold_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    out = tmp_path / "out"
    assert cli.main(["profile", str(folder), "--memory", "1MiB", "--out", str(out)]) == 2
    assert "control characters" in capsys.readouterr().err


PAGE = "<!doctype html>\n<title>moeplan: a plan</title>"
OUTPUT = '{"prompt": "a \\"b", "text": "c", "token_ids": [1]}\n'


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ("plan", '{"kind": "plan"}'),
        ("trace", '{\n "kind": "trace",'),
        ("page", PAGE),
        ("outputs", OUTPUT),
        ("placement", ""),
    ],
)
def test_an_output_replaces_only_its_own_kind(tmp_path: Path, made: str, text: str) -> None:
    path = tmp_path / "there"
    path.write_text(text)
    check_output(path, "--out", [], made)
    for other in ('{"kind": "model"}', "thesis", '{"prompt": "mine"}', "<!doctype html>mine", PAGE):
        if made != "page" or other is not PAGE:
            path.write_text(other)
            with pytest.raises(OptionError, match="is there and holds no older"):
                check_output(path, "--out", [], made)
    path.write_bytes(b"PK\xff\xfe")
    with pytest.raises(OptionError, match="is there and holds no older"):
        check_output(path, "--out", [], made)


@pytest.mark.parametrize("name", ["profile.json", "store.json", "a.safetensors"])
def test_no_output_lies_in_a_profile_a_store_or_a_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for folder in ("kept", "link"):
        with pytest.raises(OptionError, match="which is read"):
            check_output(tmp_path / folder / "plan.json", "--out", [], "plan")
        with pytest.raises(OptionError, match="which is read"):
            check_new_folder(tmp_path / folder / "new", "--out")
    # the folder itself may be taken up again, or replaced
    check_new_folder(tmp_path / "kept", "--out")


def test_outputs_through_links(tmp_path: Path) -> None:
    """What a link leads to counts; of what a process has open, none can be put in its place."""
    (tmp_path / "link").symlink_to("kept/plan.json")
    with pytest.raises(OptionError, match=r"--out .*link: the folder .*kept does not exist"):
        check_output(tmp_path / "link", "--out", [], "plan")
    with pytest.raises(OptionError, match=r"--out .*link: the folder .*kept does not exist"):
        check_new_folder(tmp_path / "link", "--out")
    (tmp_path / "kept").mkdir()
    check_output(tmp_path / "link", "--out", [], "plan")
    check_new_folder(tmp_path / "link", "--out")
    (tmp_path / "kept" / "plan.json").write_text("thesis")
    with pytest.raises(OptionError, match="is there and holds no older"):
        check_output(tmp_path / "link", "--out", [], "plan")
    (tmp_path / "out").symlink_to("/dev/fd/1")
    for place in (Path("/dev/stdout"), Path("/dev/fd/1"), tmp_path / "out"):
        with pytest.raises(OptionError, match="is a device or a pipe"):
            check_output(place, "--out", [], "plan")


@pytest.mark.parametrize("linked", ["folder", "nothing"])
@pytest.mark.parametrize(
    "argv",
    [
        ["pack", CHECKPOINT, "OUT"],
        ["synth", f"{CHECKPOINT}/config.json", "--layers", "1", "--out", "OUT"],
        [
            *("plan", "--model", CHECKPOINT, "--hardware", "t4", "--routing", "uniform"),
            *("--memory", "12MiB", "--solver", "lru", "--requests", "4", "--prompt-tokens", "16"),
            *("--new-tokens", "4", "--out", "PLAN", "--profile-out", "OUT"),
        ],
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_folders_through_links(argv: list[str], linked: str, tmp_path: Path) -> None:
    link, kept = tmp_path / "link", tmp_path / "kept"
    link.symlink_to("kept")
    if linked == "folder":
        kept.mkdir()
    places = {"OUT": str(link), "PLAN": str(tmp_path / "plan.json")}
    for _ in range(1 if "plan" in argv else 2):
        assert cli.main([places.get(word, word) for word in argv]) == 0
        assert link.is_symlink()
        assert any(path.suffix == ".json" for path in kept.iterdir())
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"plan.json"} == {"link", "kept"}


@pytest.mark.parametrize(
    "argv",
    [
        ["pack", CHECKPOINT, "OUT"],
        ["synth", f"{CHECKPOINT}/config.json", "--layers", "1", "--out", "OUT"],
        ["profile", CHECKPOINT, "--memory", "10MiB", "--out", "OUT"],
    ],
    ids=lambda argv: argv[0],
)
def test_folders_are_refused_before_the_work(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").touch()
    (tmp_path / "file").write_text("kept")
    for out, said in (
        (tmp_path / "new", "lies in a profile"),
        (tmp_path / "file", "is a file; name a folder"),
        (Path("/proc/new"), "the folder /proc cannot be written to"),
    ):
        assert cli.main([str(out) if word == "OUT" else word for word in argv]) == 2
        assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "profile.json"]


def test_a_file_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DocumentError, match=r"is no folder of a profile; make one"):
        load_profile(tmp_path / "plan.json")


def test_digits_without_end_are_named_as_such() -> None:
    with pytest.raises(ValueError, match=r"^an integer has 6,000 digits$"):
        loads_once("[" + "9" * 6_000 + "]")
    assert loads_once("[-12]") == [-12]


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "p", "--memory", "1MiB", "--time-limit", "inf"],
        ["compare", "p", "--memory", "1MiB", "--time-limit", "Infinity"],
        ["sweep", "p", "--memory", "1MiB..2MiB", "--time-limit", "1e999"],
        ["place", "--routing", "p", "--devices", "2", "--time-limit", "inf"],
        ["explain", "p", "--time-limit", "inf"],
        ["plan", "p", "--memory", "1MiB", "--time-limit", "nan"],
        ["verify", "p", "q", "--max-error", "inf"],
        ["plan", "p", "--memory", "1MiB", "--requests", "1_0"],
        ["plan", "p", "--memory", "1MiB", "--requests", "٣"],
        ["plan", "p", "--memory", "1MiB", "--then", "bytes", "--tolerance", "1_0%"],
        ["run", "p", "--prompts", "a.txt", "--max-new-tokens", "1_0"],
        ["run", "p", "--prompts", "a.txt", "--stop-token", "3", "--stop-token", "1_0"],
    ],
    ids=lambda argv: argv[0],
)
def test_numbers_are_plain_and_finite(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert argv[-2] in (line := capsys.readouterr().err)
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("plan p --memory 1MiB --requests ten", "--requests 'ten' is no whole number"),
        ("plan p --memory 1MiB --requests 1.5", "--requests '1.5' is no whole number"),
        ("plan p --memory 1MiB --requests 1_0", "--requests '1_0' is no whole number"),
        ("plan p --memory 1MiB --requests 0", "--requests 0 is too small: give 1 or more"),
        ("plan p --memory 1MiB --seed -1", "--seed -1 is too small: give 0 or more"),
        ("plan p --memory 1MiB --allow-error much", "--allow-error 'much' is no finite number"),
        ("plan p --memory 1MiB --time-limit 0", "--time-limit 0 is too small: give 0.001 or more"),
        ("verify p q --max-error -1", "--max-error -1 is too small: give 0 or more"),
        ("run p --prompts a.txt --stop-token end", "--stop-token 'end' is no whole number"),
        ("serve --port 70000", "--port 70000 is too large: give 65535 or less"),
    ],
)
def test_numbers_are_refused_in_one_way(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"moeplan: {said}")
    assert told.count("\n") == 1


@pytest.mark.parametrize("option", ["--max-error", "--time-limit", "--latency-us"])
def test_of_nan_no_limit_is_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = {
        "--max-error": "verify p q",
        "--time-limit": "explain p",
        "--latency-us": "simulate p",
    }
    assert cli.main([*commands[option].split(), option, "nan"]) == 2
    line = f"moeplan: {option} 'nan' is no finite number; write it like 10 or 0.5\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["plan", "", "--memory", "1MiB"], "PROFILE_DIR"),
        (["plan", "p", "--memory", "1MiB", "--out", ""], "--out"),
        (["show", "a.json", ""], "PLAN|TRACE..."),
        (["pack", "c", ""], "STORE"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_an_empty_path_is_not_this_folder(
    argv: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err == (
        f"moeplan: {name} is an empty text; name a file or a folder ('.' is this one)\n"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["compare", "p", "--memory", "1MiB", "--solvers", "belady", "--time-limit", "3"],
            "--time-limit has no effect: belady follows a rule and does not search",
        ),
        (
            ["compare", "p", "--memory", "1MiB", "--solvers", "lru,lifo", "--then", "bytes"],
            "--then bytes has no effect: lru, lifo follow rules",
        ),
        (["sweep", "p", "--memory", "1B..2B", "--steps", "3"], "at most 2 steps"),
        (
            ["profile", "p", "--memory", "1MiB", "--out", "q", "--disk-bandwidth", "1B/s"],
            "too slow to end; give 1MB/s or more",
        ),
    ],
)
def test_messages_name_what_to_change(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert said in capsys.readouterr().err


LONG = "a" * 300


@pytest.mark.parametrize(
    "argv",
    [
        ["show", LONG],
        ["check", LONG],
        ["plan", LONG, "--memory", "1MiB"],
        ["profile", LONG, "--memory", "1MiB", "--out", "o"],
        ["profile", ".", "--memory", "1MiB", "--out", LONG],
        ["pack", LONG, "o"],
        ["synth", LONG, "--out", "o"],
        ["place", "--routing", LONG, "--devices", "2"],
        ["run", LONG, "--prompts", "p.txt"],
        ["verify", LONG, "t"],
        ["explain", LONG],
    ],
    ids=lambda argv: argv[0],
)
def test_names_that_are_too_long(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    line = capsys.readouterr().err
    assert "File name too long" in line
    assert len(line.splitlines()) == 1


def test_what_nobody_foresaw_of_a_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "locked/plan.json")

    monkeypatch.setattr("moeplan.commands.look._is_routing", fails)
    assert cli.main(["show", "p"]) == 2
    assert capsys.readouterr().err == "moeplan: locked/plan.json: Permission denied\n"


def test_plan_says_where_it_wrote_and_that_an_older_plan_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["plan", "--model", CHECKPOINT, "--hardware", "t4", "--routing", "uniform"]
    argv += ["--memory", "12MiB", "--solver", "lru", "--requests", "4", "--prompt-tokens", "16"]
    said = []
    for tokens in ("4", "5"):
        assert cli.main([*argv, "--new-tokens", tokens]) == 0
        said.append(capsys.readouterr().out.rstrip("\n").splitlines()[-1])
    assert said == [
        "The plan is in plan.json",
        "The plan is in plan.json, in place of an older one",
    ]
    assert load_document(Plan, tmp_path / "plan.json").workload.new_tokens == 5
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["plan", "--help"]) == 0
    assert "an older plan there is replaced" in capsys.readouterr().out


def test_a_plan_that_cannot_be_made_leaves_no_profile_and_can_be_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "--model", CHECKPOINT, "--hardware", "t4", "--routing", "uniform"]
    argv += ["--solver", "lru", "--requests", "4", "--prompt-tokens", "16", "--new-tokens", "4"]
    argv += ["--out", str(tmp_path / "plan.json"), "--profile-out", str(tmp_path / "profile")]
    assert cli.main([*argv, "--memory", "1kB"]) == 2
    assert "the smallest that works" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*argv, "--memory", "12MiB"]) == 0
    capsys.readouterr()
    # the plan is of that very profile
    assert cli.main(["check", str(tmp_path / "plan.json")]) == 0
    assert "checked against" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "p", "--memory", "1MiB", "--requests"],
        ["plan", "p", "--memory", "1MiB", "--time-limit"],
        ["verify", "p", "t", "--max-error"],
    ],
)
def test_a_figure_that_is_no_text(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    # a byte that is not UTF-8, as Python hands it over
    assert cli.main([*argv, "\udcff"]) == 2
    said = capsys.readouterr().err
    assert said == f"moeplan: {argv[-1]} '\\udcff' is not UTF-8 text; write it like 10\n"
