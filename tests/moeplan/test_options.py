"""Sizes, bandwidths, names, output paths and prompt files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moeplan.options import check_output, parse_bandwidth, parse_size, read_prompts, split_names
from solvers.errors import InputError, OptionError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("400000000", 400_000_000),
        ("600MiB", 629_145_600),  # 600 x 1,048,576
        ("1.5GB", 1_500_000_000),
        ("1.5 gb", 1_500_000_000),
        ("0.1KiB", 102),  # 102.4 cut off: capacities are rounded down
        (" 2TiB ", 2 * 1024**4),
        ("1.000000001GB", 1_000_000_001),  # no float rounding on the way
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text, "--memory") == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-5",
        "-5MiB",
        "0",
        "0.4B",
        "1e9",
        "nan",
        "inf",
        "MiB",
        "5 parsec",
        "1,5GB",
        "9" * 40,
        "٣",
    ],
)
def test_bad_sizes_are_one_line_that_names_the_option(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_size(text, "--memory")
    assert "--memory" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bare_letter_is_refused_with_both_readings() -> None:
    with pytest.raises(OptionError, match=r"600MiB.*600MB"):
        parse_size("600M", "--memory")


def test_bandwidths() -> None:
    assert parse_bandwidth("1GB/s", "--disk-bandwidth") == 10**9
    assert parse_bandwidth("800 MB/S", "--disk-bandwidth") == 800_000_000
    for bad in ("1GB", "1GB/h", "/s", "0/s", "-1MB/s"):
        with pytest.raises(OptionError, match="--disk-bandwidth"):
            parse_bandwidth(bad, "--disk-bandwidth")


def test_names_keep_their_order_and_are_known() -> None:
    assert split_names("b, a,b", ("a", "b"), "--solvers") == ("b", "a")
    with pytest.raises(OptionError, match=r"--solvers 'c' is unknown; choose from a, b"):
        split_names("a,c", ("a", "b"), "--solvers")
    with pytest.raises(OptionError, match="names nothing"):
        split_names(" , ", ("a", "b"), "--solvers")


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    given = tmp_path / "plan.json"
    given.write_text('{"kind": "plan"}')
    check_output(tmp_path / "new.json", "--out", [given, None])
    check_output(given, "--out", [], "plan")  # an older output may be replaced
    with pytest.raises(OptionError, match="is one of the inputs"):
        check_output(tmp_path / "." / "plan.json", "--out", [given])
    with pytest.raises(OptionError, match="is a folder"):
        check_output(tmp_path, "--out")
    with pytest.raises(OptionError, match="does not exist"):
        check_output(tmp_path / "no" / "x.json", "--out")


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root may write anywhere")
    with pytest.raises(OptionError, match="cannot be written to"):
        check_output(tmp_path / "x.json", "--out")
    tmp_path.chmod(0o700)


def test_prompts_from_text_and_json_lines(tmp_path: Path) -> None:
    text = tmp_path / "p.txt"
    text.write_bytes("def f(x):\r\n\n  two words\u2028here\n".encode())
    # U+2028 separates lines for str.splitlines(), but not here
    assert read_prompts(text) == ["def f(x):", "  two words\u2028here"]
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"prompt": "a\\nb"}\n\n{"prompt": "c"}\n')
    assert read_prompts(lines) == ["a\nb", "c"]
    lines.write_text('{"token_ids": [1, 2]}\n{"token_ids": [3]}\n')
    assert read_prompts(lines) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.txt", b"", "holds no prompt"),
        ("p.txt", b"\xff\xfe", "not UTF-8"),
        ("p.csv", b"a", "a .txt"),
        ("p.jsonl", b"{", "line 1: not valid JSON"),
        ("p.jsonl", b'{"prompt": "a"}\n[1]', "line 2"),
        ("p.jsonl", b'{"prompt": "a", "token_ids": [1]}', "alone"),
        ("p.jsonl", b'{"prompt": "a", "colour": 1}', "alone"),
        ("p.jsonl", b'{"prompt": ""}', "not empty"),
        ("p.jsonl", b'{"token_ids": []}', "not empty"),
        ("p.jsonl", b'{"token_ids": [1.5]}', "integers"),
        ("p.jsonl", b'{"token_ids": [true]}', "integers"),
        ("p.jsonl", b'{"token_ids": [-1]}', "integers"),
        ("p.jsonl", b'{"prompt": "a"}\n{"token_ids": [1]}', "mixes"),
    ],
)
def test_bad_prompt_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_prompt_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_prompts(tmp_path / "p.txt")
