"""Packing: what a store holds, what a crash leaves behind, and what is refused."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from executor import open_weights, pack, packing, verify_store
from executor.direct import DirectFile
from executor.layout import unit_layouts
from executor.store import StoreIndex, load_index
from executor.units import Unit
from executor.verified import ensure_verified
from planner.checkpoint import read_checkpoint
from planner.documents import load_document
from solvers.errors import CheckpointError, RunError, StaleError


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def checkpoint(checkpoint_of: Callable[..., Path]) -> Path:
    return checkpoint_of("qwen3_moe")


@pytest.fixture(scope="module")
def packed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("packed") / "store"
    pack(checkpoint, store)
    return store


def test_store_holds_the_checkpoint(checkpoint: Path, packed: Path) -> None:
    index = load_document(StoreIndex, packed / "store.json")
    data = (packed / index.data_file).read_bytes()
    assert len(data) == index.data_bytes
    assert all(unit.offset_bytes % 4096 == 0 for unit in index.units)
    units = {unit.name: unit for unit in index.units}
    with safe_open(checkpoint / "model.safetensors", "np") as file:
        # expert 5 of layer 3: gate, up, down one after another, and nothing else
        names = [
            f"model.layers.3.mlp.experts.5.{part}_proj.weight" for part in ("gate", "up", "down")
        ]
        want = b"".join(file.get_tensor(name).tobytes() for name in names)
        unit = units["expert.3.5"]
        assert data[unit.offset_bytes : unit.offset_bytes + unit.size_bytes] == want
        for tensor in units["dense.1"].tensors:
            start = units["dense.1"].offset_bytes + tensor.offset_bytes
            value = file.get_tensor(f"model.layers.1.{tensor.role}")
            assert data[start : start + tensor.size_bytes] == value.tobytes()
            assert tensor.offset_bytes % 64 == 0
    assert verify_store(checkpoint, packed).fingerprint == index.fingerprint
    assert not (packed / "pack.journal").exists()


def test_both_sources_bring_the_same_bytes(checkpoint: Path, packed: Path) -> None:
    from executor.direct import Pacer, ReadBuffer

    with open_weights(checkpoint) as one, open_weights(checkpoint, packed) as two:
        assert one.fingerprint == two.fingerprint
        assert one.store_fingerprint is None
        for unit in (Unit(0, "dense", -1), Unit(1, "dense", -1), Unit(3, "expert", 7)):
            got = []
            for source in (one, two):
                reader = source.reader(ReadBuffer(16384), Pacer(None))
                size = source.size_bytes(unit)
                memory = memoryview(mmap.mmap(-1, -(-size // 4096) * 4096))
                for start in range(0, size, 8192):
                    part = min(8192, size - start)
                    reader.read(source.pieces(unit), memory, start, part)
                # what lies between the tensors is not looked at
                got.append(
                    [
                        bytes(memory[place.offset_bytes : place.offset_bytes + place.size_bytes])
                        for place in source.places(unit)
                    ]
                )
            assert got[0] == got[1]


@pytest.mark.parametrize("syncs", [1, 2, 3, 5, 8])
def test_killed_pack_goes_on(
    checkpoint: Path, packed: Path, tmp_path: Path, syncs: int, helpers: Any
) -> None:
    store = tmp_path / "store"
    helpers.crash_pack(checkpoint, store, syncs)
    assert not (store / "store.json").exists()
    with pytest.raises(CheckpointError, match="run 'moeplan pack'"):
        open_weights(checkpoint, store)
    calls: list[tuple[int, int]] = []
    summary = pack(checkpoint, store, lambda now, whole: calls.append((now, whole)))
    # the journal's header takes one fsync, each batch two: its data, then the journal's new lines,
    # which a killed process (unlike a power cut) leaves in the file
    assert (summary.reused_units > 0) == (syncs >= 3)
    assert calls[-1][0] == calls[-1][1] == summary.size_bytes
    assert digest(store / "weights.bin") == digest(packed / "weights.bin")
    assert digest(store / "store.json") == digest(packed / "store.json")
    names = {path.name for path in store.iterdir()}
    # what an earlier process left is not taken on trust: the next reader verifies it
    assert names - {"verified.json"} == {"weights.bin", "store.json"}
    assert ("verified.json" in names) == (summary.reused_units == 0)


def test_journal_cut_short(checkpoint: Path, packed: Path, tmp_path: Path, helpers: Any) -> None:
    """A crash while the journal is written leaves half a line, which counts for nothing."""
    store = tmp_path / "store"
    helpers.crash_pack(checkpoint, store, 6)
    journal = store / "pack.journal"
    journal.write_bytes(journal.read_bytes()[:-7])
    summary = pack(checkpoint, store)
    assert summary.reused_units > 0
    assert digest(store / "weights.bin") == digest(packed / "weights.bin")


def test_pack_again_changes_nothing(checkpoint: Path, packed: Path) -> None:
    before = (packed / "store.json").stat().st_mtime_ns
    summary = pack(checkpoint, packed)
    assert summary.reused_units == summary.units
    assert (packed / "store.json").stat().st_mtime_ns == before


def test_refuses_foreign_folders(
    checkpoint: Path,
    packed: Path,
    checkpoint_of: Callable[..., Path],
    tmp_path: Path,
    helpers: Any,
) -> None:
    other = checkpoint_of("olmoe")
    with pytest.raises(StaleError, match="another checkpoint") as caught:
        pack(other, packed)
    assert caught.value.document == "store"
    half = tmp_path / "half"
    helpers.crash_pack(checkpoint, half, 5)
    with pytest.raises(StaleError, match="another checkpoint"):
        pack(other, half)
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").write_text("keep me")
    with pytest.raises(CheckpointError, match="other files"):
        pack(checkpoint, full)
    assert (full / "letter.txt").read_text() == "keep me"
    with pytest.raises(CheckpointError, match="no such folder"):
        pack(tmp_path / "nothing", tmp_path / "store")


def test_two_packs_at_once(checkpoint: Path, tmp_path: Path, helpers: Any) -> None:
    import fcntl

    store = tmp_path / "store"
    helpers.crash_pack(checkpoint, store, 5)
    with open(store / "pack.journal", "a+b") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another 'pack'"):
            pack(checkpoint, store)


def test_a_store_is_verified_once_for_each_state_of_its_file(
    checkpoint: Path, packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "executor.verified")
    store = tmp_path / "copy"
    shutil.copytree(packed, store)
    for said in (1, 0):
        caplog.clear()
        open_weights(checkpoint, store).close()
        assert caplog.text.count("copied or changed") == said
    (store / "weights.bin").touch()
    (store / "verified.json").write_text("{")
    open_weights(checkpoint, store).close()
    assert "was not verified yet" in caplog.text
    open_weights(checkpoint, store).close()
    assert len(caplog.records) == 1


def test_control_c_while_a_store_is_read(
    checkpoint: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves as what it is: a slice of the buffer lives on in the interrupted frame."""

    def interrupted(file: DirectFile, memory: memoryview, offset: int, size_bytes: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DirectFile, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verify_store(checkpoint, packed)


def test_damaged_stores(checkpoint: Path, packed: Path, tmp_path: Path, helpers: Any) -> None:
    store = tmp_path / "store"
    pack(checkpoint, store)
    index = load_document(StoreIndex, store / "store.json")
    helpers.damage(store, "expert.3.5", 100)
    for read in (verify_store, open_weights, pack):
        with pytest.raises(CheckpointError, match=r"expert\.3\.5 does not match its checksum"):
            read(checkpoint, store)
    with open(store / "weights.bin", "r+b") as file:
        file.truncate(index.data_bytes - 4096)
    with pytest.raises(CheckpointError, match="bytes, not"):
        open_weights(checkpoint, store)
    text = json.loads((packed / "store.json").read_text())
    text["units"][3]["offset_bytes"] += 4096
    (store / "store.json").write_text(json.dumps(text))
    (store / "weights.bin").write_bytes((packed / "weights.bin").read_bytes())
    with pytest.raises(CheckpointError, match="does not describe"):
        open_weights(checkpoint, store)
    (store / "store.json").write_text("{")
    with pytest.raises(CheckpointError, match="pack the checkpoint again"):
        open_weights(checkpoint, store)


Leaf = tuple[tuple[str | int, ...], Any]


def leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """Each value of a document that holds no others, and where it stands; the first of a list."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else [*enumerate(value)][:1]
        for key, inner in items:
            yield from leaves(inner, (*place, key))
    else:
        yield place, value


def others(value: Any) -> list[Any]:
    if isinstance(value, int):
        return [value + 1, abs(value - 1), 1 << 40, -1]
    if value is None:
        return [0]
    return [value[:-1] + ("0" if value[-1] != "0" else "1"), "F16", "../weights.bin"]


def test_every_field_of_an_index_counts(checkpoint: Path, tmp_path: Path) -> None:
    """Whatever is changed, the store is refused: nothing of it is only for show."""
    store = tmp_path / "store"
    pack(checkpoint, store, compress="exact")
    index = json.loads((store / "store.json").read_text())
    index.pop("content_hash", None)
    source = read_checkpoint(checkpoint)
    plain = unit_layouts(source)
    kinds = {unit["name"].partition(".")[0]: at for at, unit in enumerate(index["units"])}
    places = [leaf for leaf in leaves(index) if leaf[0][0] != "units"]
    for at in kinds.values():
        places += leaves(index["units"][at], ("units", at))
    changes = [(place, other) for place, value in places for other in others(value)]
    assert len(changes) > 200
    for place, other in changes:
        changed = json.loads(json.dumps(index))
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = other
        (store / "store.json").write_text(json.dumps(changed))
        with pytest.raises((CheckpointError, StaleError)):
            ensure_verified(store, load_index(store, plain, source.model)[0], source, plain)


@pytest.mark.parametrize("name", ["pack.journal", "weights.bin"])
def test_a_link_in_a_store_is_not_written_through(
    name: str, checkpoint: Path, tmp_path: Path
) -> None:
    store, letter = tmp_path / "store", tmp_path / "letter.txt"
    store.mkdir()
    letter.write_text("keep me")
    (store / name).symlink_to(letter)
    with pytest.raises((RunError, CheckpointError)):
        pack(checkpoint, store)
    assert letter.read_text() == "keep me"
    letter.unlink()  # a link to nothing is not followed, either
    with pytest.raises((RunError, CheckpointError)):
        pack(checkpoint, store)
    assert not letter.exists()


def test_a_store_that_another_pack_finished_meanwhile(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    begun = packing._begun

    def slow(place: Path) -> bool | None:
        with monkeypatch.context() as inner:
            inner.setattr(packing, "_begun", begun)
            pack(checkpoint, place)
        return begun(place)

    monkeypatch.setattr(packing, "_begun", slow)
    with pytest.raises(RunError, match="just finished it; give the command again"):
        pack(checkpoint, store)
    monkeypatch.undo()
    summary = pack(checkpoint, store)
    assert summary.reused_units == summary.units
    assert {path.name for path in store.iterdir()} == {"weights.bin", "store.json", "verified.json"}
