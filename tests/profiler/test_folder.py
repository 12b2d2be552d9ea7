"""Whole profiles of tiny checkpoints, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import profiler.written
from executor import pack
from planner.documents import Document, Workload, document_hash, write_document
from planner.profiles import load_profile
from planner.solve import make_plan
from profiler import profile_checkpoint
from profiler.effort import Effort
from profiler.folder import _between, _looks
from profiler.tasks import Task
from solvers.errors import (
    BudgetError,
    CheckpointError,
    DocumentError,
    OptionError,
    UnsupportedError,
)

SECOND = 10**9
QUICK = Effort(cell_ns=1, rounds=1, fills=1, moment_ns=20_000_000, turns=1, passes=1, stream_ns=0)
LARGE = 64 << 20


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_profile_is_whole_and_can_be_planned_from(
    family: str,
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # by chance, or by what runs beside these tests
    monkeypatch.setattr("profiler.folder.taken", lambda *_: 1.26)
    monkeypatch.setattr("profiler.others.usable_cores", lambda: 2)
    told: list[tuple[int, int, str]] = []
    out = tmp_path / "new" / "profile"
    index = profile_checkpoint(
        checkpoint(family),
        out,
        memory_bytes=LARGE,
        prompts=prompts,
        effort=QUICK,
        progress=lambda done, total, what: told.append((done, total, what)),
    )
    profile = load_profile(out)
    assert profile.index == index
    assert index.checkpoint == str(checkpoint(family))
    assert index.store is None
    assert index.memory_bytes == LARGE
    assert profile.costs.curves["expert"].rows[0] == 1
    # prompts of 8 and 32 tokens fit a context of 96; at most 1,024 tokens are prefilled at once
    assert profile.costs.curves["router"].rows[-1] == 1024
    assert ("dense_mlp" in profile.costs.curves) == (family == "qwen3_moe")
    # what copies cost is asked of the head, too, wherever it is of experts
    beside = profile.costs.slowdown_by_kind
    assert ("head" in beside) == ("expert" in beside)
    writes = profile.costs.kv_writes
    assert writes is not None
    assert (writes.alone.rows[0], writes.beside.rows[-1]) == (4096, 4 << 20)
    assert profile.costs.attention_decode.second == (32,)
    assert profile.costs.attention_prefill.second == (8, 32)
    (channel,) = profile.hardware.channels
    assert channel.bandwidth_bytes_per_second.value > 1e6
    assert channel.paced_bytes_per_second is None
    # every token of each prompt and of the 15 decode passes behind it
    lengths = sorted(len(prompt) + 15 for prompt in prompts)
    counted = np.bincount(profile.arrays.sequence)
    assert sorted(counted.tolist()) == lengths
    assert int(profile.arrays.phase.sum()) == 15 * len(prompts)
    assert told[-1][0] == told[-1][1]
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    plan = make_plan(
        profile, Workload(4, 8, 4), memory_bytes=LARGE, solver="on-demand", time_limit_seconds=1
    )
    # what speaks against its figures goes with it
    said = "other programs had 1.3 of 2 cores while the profile was measured"
    assert index.notes == (said,)
    assert said in plan.notes
    assert plan.inputs.costs == document_hash(profile.costs)


def test_the_smallest_budget_is_named_and_works(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    folder = checkpoint("mixtral")
    with pytest.raises(BudgetError) as caught:
        profile_checkpoint(folder, tmp_path / "p", memory_bytes=1000, prompts=prompts)
    assert not (tmp_path / "p").exists()
    smallest = caught.value.smallest_bytes
    assert f"{smallest:,} bytes" in str(caught.value)
    with pytest.raises(BudgetError):
        profile_checkpoint(folder, tmp_path / "p", memory_bytes=smallest - 1, prompts=prompts)
    profile_checkpoint(
        folder,
        tmp_path / "p",
        memory_bytes=smallest,
        prompts=[prompt[:2] for prompt in prompts],
        effort=QUICK,
    )
    assert load_profile(tmp_path / "p").index.memory_bytes == smallest


def test_a_store_on_a_paced_disk(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    folder = checkpoint("mixtral")
    pack(folder, tmp_path / "store")
    pace = 20_000_000
    index = profile_checkpoint(
        folder,
        tmp_path / "p",
        memory_bytes=LARGE,
        prompts=prompts,
        effort=replace(QUICK, moment_ns=200_000_000),
        store=tmp_path / "store",
        paced_bytes_per_second=pace,
    )
    assert index.store_fingerprint is not None
    (channel,) = load_profile(tmp_path / "p").hardware.channels
    assert channel.paced_bytes_per_second == pace
    bandwidth = channel.bandwidth_bytes_per_second
    assert bandwidth.source == "paced"
    # an expert of 36,864 bytes takes 1.84 ms at that pace, whatever the disk can do; a machine
    # with other work to do may be late, and a pacer makes up for 2 ms of that
    assert 0.3 * pace < bandwidth.value < 1.2 * pace


def test_a_profile_replaces_only_a_profile(
    checkpoint: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    folder = checkpoint("mixtral")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, part in (("other", r"notes\.txt"), ("file", "is a file")):
        with pytest.raises(OptionError, match=part):
            profile_checkpoint(folder, tmp_path / name, memory_bytes=LARGE, prompts=prompts)
    out = tmp_path / "p"
    profile_checkpoint(folder, out, memory_bytes=LARGE, prompts=prompts, effort=QUICK)
    before = load_profile(out).index
    profile_checkpoint(folder, out, memory_bytes=LARGE // 2, prompts=prompts, effort=QUICK)
    after = load_profile(out).index
    assert (before.memory_bytes, after.memory_bytes) == (LARGE, LARGE // 2)
    assert len(list(out.iterdir())) == 6


def test_what_fails_while_it_is_written_leaves_what_was_there(
    checkpoint: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, out = checkpoint("mixtral"), tmp_path / "p"

    def measured() -> None:
        profile_checkpoint(folder, out, memory_bytes=LARGE, prompts=prompts, effort=QUICK)

    def full(document: Document, path: Path) -> None:
        if path.name == "costs.json":
            raise DocumentError(f"{path}: cannot be written: No space left on device")
        write_document(document, path)

    with monkeypatch.context() as patch:
        patch.setattr(profiler.written, "write_document", full)
        with pytest.raises(DocumentError, match="No space"):
            measured()
        assert not out.exists()
    # a command that was killed leaves its hidden folder, which the next one clears
    (out / ".new").mkdir(parents=True)
    (out / ".new" / "costs.json").write_text("{")
    measured()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(before) == 6
    monkeypatch.setattr(profiler.written, "write_document", full)
    with pytest.raises(DocumentError, match="No space"):
        measured()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_bad_options_are_refused_before_anything_is_measured(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, out = checkpoint("mixtral"), tmp_path / "p"
    with pytest.raises(UnsupportedError, match="cuda"):
        profile_checkpoint(folder, out, memory_bytes=LARGE, device="cuda")
    with pytest.raises(OptionError, match="memory budget"):
        profile_checkpoint(folder, out, memory_bytes=0)
    with pytest.raises(OptionError, match="bandwidth"):
        profile_checkpoint(folder, out, memory_bytes=LARGE, paced_bytes_per_second=0)
    with pytest.raises(CheckpointError):
        profile_checkpoint(tmp_path / "none", out, memory_bytes=LARGE)
    with pytest.raises(CheckpointError, match="store"):
        profile_checkpoint(folder, out, memory_bytes=LARGE, store=tmp_path / "none")
    for prompts in ([], [[]], [[1], []]):
        with pytest.raises(OptionError, match="prompts"):
            profile_checkpoint(folder, out, memory_bytes=LARGE, prompts=prompts)
    with pytest.raises(OptionError, match="vocabulary"):
        profile_checkpoint(folder, out, memory_bytes=LARGE, prompts=[[211]])
    # no tokenizer: the bundled texts cannot be encoded
    with pytest.raises(CheckpointError, match="tokenizer"):
        profile_checkpoint(folder, out, memory_bytes=LARGE)
    assert not out.exists()


def test_short_runs_lie_between_the_measuring_as_often_as_a_third_of_its_time_allows() -> None:
    def task(what: str, seconds: int) -> Task:
        return Task(what, seconds * SECOND, lambda: None)

    # 36 s: a third is twelve runs of 1 s, six of 2 s, or one of 12 s; seven at most, three at least
    measuring = [task(str(number), 6) for number in range(6)]
    for seconds, looks in ((1, 7), (2, 6), (12, 3)):
        assert _looks(measuring, task("runs", seconds)) == looks
    runs = task("runs", 12)
    names = [one.what for one in _between(measuring, runs, 3)]
    assert names == ["runs", "0", "1", "2", "runs", "3", "4", "5", "runs"]
    # five parts of six tasks: parts of two
    names = [one.what for one in _between(measuring, runs, 6)]
    assert names == ["runs", "0", "1", "runs", "2", "3", "runs", "4", "5", "runs"]
