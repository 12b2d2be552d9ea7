"""Looking at files: every fault is one line, and nothing is waited for."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from planner.checkpoint import read_checkpoint
from planner.documents import Workload, load_document
from planner.files import exists, is_dir, is_file, loads_once, read_regular
from planner.profiles import load_profile
from planner.routing_sources import load_source
from solvers.errors import DocumentError, InputError

LONG = "a" * 300
"""Longer than the 255 bytes that file systems allow a name."""


def test_what_lies_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12")
    os.mkfifo(tmp_path / "pipe")
    told = {
        name: (exists(tmp_path / name), is_file(tmp_path / name), is_dir(tmp_path / name))
        for name in ("file", ".", "pipe", "none", "file/below")
    }
    assert told == {
        "file": (True, True, False),
        ".": (True, False, True),
        "pipe": (True, False, False),
        "none": (False, False, False),
        "file/below": (False, False, False),
    }
    assert read_regular(tmp_path / "file") == b"12"
    with pytest.raises(DocumentError, match="larger than any note can be"):
        read_regular(tmp_path / "file", "note", most_bytes=1)


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12" * 3_000_000)
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "file", most_bytes=1 << 28) == b"12" * 3_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # its pieces, all of it and what it is held against, and not what it might have been
    assert peak < 32 << 20


@pytest.mark.parametrize("look", [exists, is_file, is_dir, read_regular, load_source])
@pytest.mark.parametrize(("name", "said"), [(LONG, "File name too long"), ("a\0b", "is no path")])
def test_names_that_cannot_be(look: object, name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        look(tmp_path / name)  # type: ignore[operator]


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(InputError, match="Permission denied"):
        exists(tmp_path / "locked" / "file")


@pytest.mark.parametrize(
    "look",
    [
        read_regular,
        load_source,
        lambda path: load_document(Workload, path),
        load_profile,
        read_checkpoint,
    ],
)
def test_pipes_and_devices_are_not_read(look: object, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match=r"device or a pipe|is no folder"):
            look(path)  # type: ignore[operator]


@pytest.mark.parametrize("look", [load_profile, read_checkpoint])
def test_long_names_of_folders(look: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="File name too long"):
        look(tmp_path / LONG)  # type: ignore[operator]


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "[NaN]", "[-Infinity]", "[" * 100_000, "9" * 5_000]
)
def test_json_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"twice|number|deeply|digits"):
        loads_once(text)


def test_a_key_that_stands_twice_is_found_at_once_among_very_many() -> None:
    # comparing each with each would take hours
    keys = ",".join(f'"k{number}":1' for number in range(200_000))
    with pytest.raises(ValueError, match="'k199999' stands twice"):
        loads_once(f'{{{keys},"k199999":1}}')
