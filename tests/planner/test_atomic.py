"""Atomic writing: whole files or none, also under kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.documents import write_atomic
from solvers.errors import DocumentError


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "inner").write_text("x")
    with pytest.raises(DocumentError, match="folder: cannot be written"):
        write_atomic(path, b"data")
    with pytest.raises(DocumentError, match="cannot be written: No such file or directory"):
        write_atomic(tmp_path / "missing" / "file", b"data")
    assert os.listdir(tmp_path) == ["folder"]


def test_without_nameless_files_writing_is_atomic_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    write_atomic(tmp_path / "a", b"one")
    write_atomic(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    kept, link, chain = tmp_path / "far" / "kept", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("far/kept")
    chain.symlink_to(link)
    for data in (b"new", b"newer"):  # nothing is there yet, and something is
        write_atomic(chain, data)
        assert kept.read_bytes() == data
    assert chain.is_symlink()
    assert link.is_symlink()
    assert os.listdir(tmp_path / "far") == ["kept"]
    link.unlink()
    link.symlink_to("nowhere/kept")
    with pytest.raises(DocumentError, match="chain: cannot be written: No such file or directory"):
        write_atomic(chain, b"lost")
    assert sorted(os.listdir(tmp_path)) == ["chain", "far", "link"]


def test_what_belongs_to_an_older_file_goes_before_the_new_one_is_there(tmp_path: Path) -> None:
    path, stale = tmp_path / "outputs", tmp_path / "trace"
    stale.write_text("old")
    with pytest.raises(DocumentError):
        write_atomic(tmp_path / "missing" / "outputs", b"new", stale)
    assert stale.exists()
    write_atomic(path, b"new", stale)
    assert os.listdir(tmp_path) == ["outputs"]
    write_atomic(path, b"newer", stale)
    assert path.read_bytes() == b"newer"


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_the_mode_of_an_older_file_stays(
    mode: int, nameless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path, link = tmp_path / "a", tmp_path / "link"
    link.symlink_to(path)
    before = os.umask(0o022)
    try:
        write_atomic(path, b"one")
        assert path.stat().st_mode & 0o7777 == 0o644  # nothing was there: as the umask says
        path.chmod(mode)
        for place in (path, link):
            write_atomic(place, b"two")
            assert path.read_bytes() == b"two"
            assert path.stat().st_mode & 0o7777 == mode
    finally:
        os.umask(before)


WRITER = """
import sys
from pathlib import Path
from planner.documents import write_atomic
path = Path(sys.argv[1])
print("ready", flush=True)
turn = 0
while True:
    write_atomic(path, bytes([65 + turn % 26]) * 2_000_000)
    turn += 1
"""


def test_kill_9_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "document"
    for delay in (0.0, 0.011, 0.023, 0.037, 0.05, 0.071):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        for left in tmp_path.iterdir():
            data = left.read_bytes()
            assert len(data) == 2_000_000, f"{left.name} is half written"
            assert len(set(data)) == 1
    write_atomic(path, b"after")
    assert path.read_bytes() == b"after"


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from planner.documents import write_atomic
setattr(os, sys.argv[2], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
write_atomic(Path(sys.argv[1]), b"new" * 1000)
"""


@pytest.mark.parametrize(("step", "left"), [("fsync", []), ("link", []), ("replace", [3000])])
def test_kill_9_at_each_step(step: str, left: list[int], tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has no files without a name")
    path = tmp_path / "document"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", KILLED_AT, str(path), step], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    others = [other for other in tmp_path.iterdir() if other != path]
    # before the rename nothing has a name, or the whole text has
    assert [other.stat().st_size for other in others] == left
