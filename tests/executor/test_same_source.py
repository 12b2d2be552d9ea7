"""A checkpoint that is changed where its fingerprint does not look is not taken for what it was."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor import open_weights, pack, verify_store
from planner.checkpoint import read_checkpoint
from planner.documents import QuantizedExperts
from solvers.errors import RunError, StaleError

LAYER, EXPERT = 1, 5


@pytest.fixture
def checkpoint(checkpoint_of: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint_of("qwen3_moe"), tmp_path / "checkpoint"))


def edit(checkpoint: Path) -> None:
    """Another lowest bit of one weight of one expert, as of old: none of the samples has it."""
    source = read_checkpoint(checkpoint)
    entry = source.experts[LAYER][EXPERT][0]
    before = entry.file.stat()
    with open(entry.file, "r+b") as file:
        # a sample is 4 KiB of every 64th of the file: one of these places is in none
        for place in range(entry.offset_bytes, entry.offset_bytes + entry.size_bytes, 512):
            (byte,) = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([byte ^ 1]), place)
            if read_checkpoint(checkpoint).model.fingerprint == source.model.fingerprint:
                break
            os.pwrite(file.fileno(), bytes([byte]), place)
        else:
            raise AssertionError("the samples have all of the expert")
    # tools that keep a file's time are not believed
    os.utime(entry.file, ns=(before.st_atime_ns, before.st_mtime_ns))


HOW: list[dict[str, Any]] = [
    {},
    {"compress": "exact"},
    {"quantize": QuantizedExperts("int8-1", None)},
]


@pytest.mark.parametrize("how", HOW, ids=["plain", "exact", "int8"])
def test_a_finished_store_is_held_against_the_checkpoint(
    how: dict[str, Any], checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "executor.verified")
    store = tmp_path / "store"
    pack(checkpoint, store, **how)
    edit(checkpoint)
    if "quantize" in how:
        # the lowest bit of a weight is lost in rounding: the scale of a group has to change
        entry = read_checkpoint(checkpoint).experts[LAYER][EXPERT][0]
        with open(entry.file, "r+b") as file:
            os.pwrite(file.fileno(), bytes(entry.size_bytes), entry.offset_bytes)
        with pytest.raises(StaleError):
            pack(checkpoint, store, **how)
        return
    again: list[Callable[[], object]] = [
        lambda: pack(checkpoint, store, **how),
        lambda: open_weights(checkpoint, store).close(),
        lambda: verify_store(checkpoint, store),
    ]
    for command in again:
        with pytest.raises(StaleError, match=rf"expert\.{LAYER}\.{EXPERT} is another") as caught:
            command()
        assert caught.value.document == "store"
    edit(checkpoint)  # the same bit again
    calls: list[tuple[int, int]] = []
    pack(checkpoint, store, lambda now, whole: calls.append((now, whole)), **how)
    assert calls[-1][0] == calls[-1][1]
    caplog.clear()
    for command in again[:2]:
        command()
    assert not caplog.records


def test_what_was_packed_before_a_change_is_packed_again(
    checkpoint: Path, tmp_path: Path, helpers: Any
) -> None:
    store, fresh = tmp_path / "store", tmp_path / "fresh"
    helpers.crash_pack(checkpoint, store, 15)
    kept = len((store / "pack.journal").read_text().splitlines()) - 1
    names = [unit.name for unit in pack_units(checkpoint, tmp_path / "names")]
    changed = names.index(f"expert.{LAYER}.{EXPERT}")
    edit(checkpoint)
    summary = pack(checkpoint, store)
    assert summary.reused_units == min(kept, changed)
    assert kept > changed
    pack(checkpoint, fresh)
    for name in ("weights.bin", "store.json"):
        assert (store / name).read_bytes() == (fresh / name).read_bytes()


def pack_units(checkpoint: Path, store: Path) -> Any:
    pack(checkpoint, store)
    return verify_store(checkpoint, store).units


def test_a_change_while_it_is_packed(checkpoint: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with pytest.raises(RunError, match="changed while it was packed"):
        pack(checkpoint, store, lambda now, whole: edit(checkpoint))
    assert not (store / "store.json").exists()
    pack(checkpoint, store)
    verify_store(checkpoint, store)
