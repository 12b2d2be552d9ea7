"""``kill -9`` at the worst moments leaves no half-written document, and the command works again."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor import open_weights
from moeplan import cli
from planner.documents import Trace, load_document
from planner.profiles import load_profile
from solvers.errors import DocumentError

# Runs the program, but the process kills itself at its n-th call of one function of ``os``:
# just before a file is synced, or before it gets its name.
KILLER = """
import os, signal, sys
name, left = sys.argv[1], int(sys.argv[2])
real = getattr(os, name)
def deadly(*arguments, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)
setattr(os, name, deadly)
sys.argv = ["moeplan", *sys.argv[3:]]
from moeplan.cli import entry
entry()
"""


def killed_at(name: str, count: int, *argv: Any) -> bool:
    """Whether the command was killed at that call; False: it had fewer and came to its end."""
    done = subprocess.run(
        [sys.executable, "-c", KILLER, name, str(count), *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


# Likewise for several commands, each in a process of its own that has imported the program already.
KILLERS = """
import json, os, signal, sys
import executor, planner.check, profiler.folder, profiler.refine, profiler.verify
import transformers.models.qwen3_moe.modeling_qwen3_moe
from moeplan.cli import main
codes = []
for name, left, argv in json.loads(sys.argv[1]):
    child = os.fork()
    if child:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    real, left = getattr(os, name), [left]
    def deadly(*arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, deadly)
    os.dup2(2, 1)
    os._exit(main(argv))
print(json.dumps(codes))
"""


def killed_each(*cases: tuple[str, int, list[Any]]) -> None:
    """Run commands, each killed at its n-th call of one function of ``os``."""
    plain = [(name, count, [*map(str, argv)]) for name, count, argv in cases]
    done = subprocess.run(
        [sys.executable, "-c", KILLERS, json.dumps(plain)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [-signal.SIGKILL] * len(cases), done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """What lies in a folder and below."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def works(*argv: Any) -> None:
    """The same command once more."""
    assert cli.main([*map(str, argv)]) == 0


@pytest.mark.parametrize(("name", "count"), [("fsync", 0), ("fsync", 2), ("replace", 0)])
def test_pack(name: str, count: int, made: SimpleNamespace, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert killed_at(name, count, "pack", made.checkpoint, store)
    assert not (store / "store.json").exists()
    works("pack", made.checkpoint, store)
    with open_weights(made.checkpoint, store) as source:
        assert source.store_fingerprint == made.packed_json["fingerprint"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_plan(name: str, made: SimpleNamespace, tmp_path: Path) -> None:
    out, unharmed = tmp_path / "plan.json", tmp_path / "unharmed.json"
    # by a rule, so that no clock decides which plan it is
    argv = ["plan", made.profile, "--memory", made.memory, "--requests", 4, "--solver", "lru"]
    argv += ["--prompt-tokens", 14, "--new-tokens", 4, "--out", out]
    older = '{"kind": "plan", "version": 0}'
    if name == "replace":
        out.write_text(older)
    assert killed_at(name, 0, *argv)
    assert out.read_text() == older if name == "replace" else not out.exists()
    works(*argv)
    works(*argv[:-1], unharmed)
    assert out.read_bytes() == unharmed.read_bytes()


def test_run(made: SimpleNamespace, tmp_path: Path) -> None:
    out, trace = tmp_path / "out.jsonl", tmp_path / "trace.json"
    argv = ["run", made.plan, "--prompts", made.prompts, "--out", out, "--trace", trace]
    assert killed_at("preadv", 40, *argv)  # in the middle of loading and reading weights
    assert list(tmp_path.iterdir()) == []
    assert killed_at("replace", 1, *argv)  # the outputs are there, the trace is not
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 4
    assert not trace.exists()
    works(*argv)
    assert load_document(Trace, trace).totals.new_tokens == 16
    older = out.read_bytes()
    assert killed_at("replace", 0, *argv)  # the older outputs are there, alone
    assert (out.read_bytes(), trace.exists()) == (older, False)
    works(*argv)
    assert killed_at("replace", 1, *argv)  # the new outputs are there, without the older trace
    assert not trace.exists()


@pytest.fixture(scope="module")
def trace_of_made(made: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the plan; read only."""
    trace = tmp_path_factory.mktemp("run") / "trace.json"
    works("run", made.plan, "--prompts", made.prompts, "--trace", trace)
    return trace


def test_profile_and_verify(made: SimpleNamespace, trace_of_made: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("before", "between", "after")]
    for folder in folders:
        shutil.copytree(made.profile, folder)
    before, seeded = contents(tmp_path), random.Random(3)
    measure = ["profile", made.checkpoint, "--memory", made.memory, "--out"]
    refine = ["profile", made.profile, "--refine", trace_of_made, "--out"]
    killed_each(
        ("preadv", seeded.randrange(12), [*measure, folders[0]]),
        ("preadv", seeded.randrange(12), [*measure, tmp_path / "new"]),
        ("open", seeded.randrange(4), ["verify", made.plan, trace_of_made]),
        # six files are written, and then six are moved
        ("replace", seeded.randrange(6), [*refine, folders[0]]),
        ("replace", 6 + seeded.randrange(1, 6), [*refine, folders[1]]),
        ("rmdir", 0, [*refine, folders[2]]),
    )
    kept = {path: data for path, data in contents(tmp_path).items() if ".new/" not in path}
    whole = {path: data for path, data in before.items() if path.startswith(f"{folders[0]}/")}
    assert whole.items() <= kept.items()
    assert not (tmp_path / "new").exists()
    with pytest.raises(DocumentError, match="half a profile"):
        load_profile(folders[1])
    works(*refine, folders[1])
    new = load_profile(folders[1]).index
    assert load_profile(folders[2]).index == new != load_profile(folders[0]).index
