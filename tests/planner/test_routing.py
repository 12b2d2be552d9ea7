"""Routing traces on disk and their statistics, counted by hand."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.documents import RoutingTrace, load_document
from planner.routing import (
    TraceArrays,
    coactivation,
    load_trace,
    popularity,
    read_arrays,
    write_trace,
)
from solvers.errors import DocumentError

HASH = "a" * 64


def arrays_of(experts: list[Any], sequence: list[int], position: list[int]) -> TraceArrays:
    return TraceArrays(
        np.array(experts, dtype=np.uint16),
        np.array(sequence, dtype=np.int32),
        np.array(position, dtype=np.int32),
        np.zeros(len(sequence), dtype=np.uint8),
    )


# Three tokens of two sequences, two layers, top-2 of 3 experts.
SMALL = arrays_of([[[0, 1], [1, 2]], [[0, 2], [1, 0]], [[0, 1], [2, 1]]], [0, 0, 1], [0, 1, 0])


def write(folder: Path, arrays: TraceArrays = SMALL) -> Path:
    write_trace(folder, arrays, model_hash=HASH, moe_layers=(1, 3), expert_count=3)
    return folder / "routing.json"


def rewrite(folder: Path, **changed: Any) -> Path:
    """The small trace with other arrays behind it, its hash made to fit."""
    path = write(folder)
    buffer = io.BytesIO()
    arrays = {**dataclasses.asdict(SMALL), **changed}
    np.savez(buffer, **{name: array for name, array in arrays.items() if array is not None})
    replace_arrays(path, buffer.getvalue())
    return path


def replace_arrays(path: Path, data: bytes) -> None:
    (path.parent / "routing.npz").write_bytes(data)
    value = json.loads(path.read_text())
    value["arrays_hash"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(value))


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    trace, arrays = load_trace(write(tmp_path))
    assert (trace.tokens, trace.sequences, trace.top_k, trace.experts) == (3, 2, 2, 3)
    assert trace.moe_layers == (1, 3)
    for name in ("experts", "sequence", "position", "phase"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(SMALL, name))


def test_popularity_by_hand() -> None:
    # layer 0: experts 0, 1, 0, 2, 0, 1: 3, 2 and 1 of 6; layer 1: 1, 2, 1, 0, 2, 1: 1, 3, 2 of 6
    np.testing.assert_allclose(popularity(SMALL, 3), np.array([[3, 2, 1], [1, 3, 2]]) / 6)


def test_coactivation_by_hand() -> None:
    # layer 0 -> 1: expert 0 is followed by {1,2}, {1,0}, {2,1}: 0 once, 1 thrice, 2 twice of 3;
    # expert 1 by {1,2}, {2,1}; expert 2 by {1,0}
    expected = np.array([[[1, 3, 2], [0, 3, 3], [3, 3, 0]]]) / 3
    np.testing.assert_allclose(coactivation(SMALL, 3), expected)


def test_an_expert_never_chosen_is_followed_by_nothing() -> None:
    table = coactivation(SMALL, 4)
    assert table.shape == (1, 4, 4)
    assert not table[0, 3].any()


def test_an_empty_trace(tmp_path: Path) -> None:
    empty = arrays_of([], [], [])
    empty = dataclasses.replace(empty, experts=np.zeros((0, 2, 2), dtype=np.uint16))
    trace, arrays = load_trace(write(tmp_path, empty))
    assert trace.tokens == trace.sequences == 0
    assert not popularity(arrays, 3).any()


@settings(max_examples=40)
@given(data=st.data())
def test_statistics_agree_with_counting(data: st.DataObject) -> None:
    tokens, layers, experts = (data.draw(st.integers(1, most)) for most in (6, 3, 5))
    top_k = data.draw(st.integers(1, experts))
    chosen = [
        [data.draw(st.permutations(range(experts)))[:top_k] for _ in range(layers)]
        for _ in range(tokens)
    ]
    arrays = arrays_of(chosen, [0] * tokens, list(range(tokens)))
    shares, table = popularity(arrays, experts), coactivation(arrays, experts)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    for layer in range(layers):
        for e in range(experts):
            here = [token for token in chosen if e in token[layer]]
            assert shares[layer, e] == pytest.approx(len(here) / (tokens * top_k))
            for f in range(experts) if layer + 1 < layers else ():
                both = sum(f in token[layer + 1] for token in here)
                assert table[layer, e, f] == pytest.approx(both / max(len(here), 1))


def test_missing_and_foreign_arrays_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(DocumentError, match="no such file"):
        load_trace(tmp_path / "other.json")
    (tmp_path / "routing.npz").write_bytes(b"something else")
    with pytest.raises(DocumentError, match=r"does not belong to routing\.json"):
        load_trace(path)
    (tmp_path / "routing.npz").unlink()
    with pytest.raises(DocumentError, match="no such file"):
        load_trace(path)


def test_arrays_outside_the_folder_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    for name in ("../routing.npz", "/etc/passwd", "..", ""):
        value = json.loads(path.read_text())
        path.write_text(json.dumps({**value, "arrays_file": name}))
        with pytest.raises(DocumentError, match="beside the document"):
            load_trace(path)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, experts=np.array([{}], dtype=object))
    return buffer.getvalue()


@pytest.mark.parametrize("data", [b"", b"PK", b"text", npy(np.zeros(3)), pickled()])
def test_files_that_hold_no_arrays_are_refused(data: bytes, tmp_path: Path) -> None:
    path = write(tmp_path)
    replace_arrays(path, data)
    with pytest.raises(DocumentError, match="not a routing array file"):
        load_trace(path)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"phase": None}, "not a routing array file"),
        ({"experts": SMALL.experts[:2]}, "experts is uint16 "),
        ({"experts": SMALL.experts.astype(np.int64)}, "experts is int64"),
        ({"experts": SMALL.experts + np.uint16(1)}, "beyond the 3"),
        ({"sequence": SMALL.sequence[:2]}, "sequence is int32"),
        ({"sequence": SMALL.sequence[::-1]}, "sequence descends"),
        ({"sequence": np.array([0, 1, 2], dtype=np.int32)}, "holds 3 sequences, not 2"),
        ({"position": np.array([0, 0, 0], dtype=np.int32)}, "position does not ascend"),
        ({"position": np.array([-1, 0, 0], dtype=np.int32)}, "position is negative"),
        ({"position": SMALL.position[None]}, "position is int32"),
        ({"phase": np.array([0, 1, 2], dtype=np.uint8)}, "phase is neither"),
        ({"phase": np.zeros(3)}, "phase is float64"),
    ],
)
def test_impossible_arrays_are_refused(changed: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"routing\.npz: ") as caught:
        load_trace(rewrite(tmp_path, **changed))
    assert part in str(caught.value)


def test_an_archive_that_unpacks_to_more_than_the_trace_is_not_unpacked(tmp_path: Path) -> None:
    # 64 MB of zeros in 62 kB: its header, not its contents, is what is looked at
    buffer = io.BytesIO()
    zeros = np.zeros(64_000_000, dtype=np.uint8)
    np.savez_compressed(buffer, **{**dataclasses.asdict(SMALL), "phase": zeros})
    replace_arrays(write(tmp_path), buffer.getvalue())
    trace = load_document(RoutingTrace, tmp_path / "routing.json")
    tracemalloc.start()
    with pytest.raises(DocumentError, match=r"phase is uint8 \(64000000,\), not uint8 \(3,\)"):
        read_arrays(trace, buffer.getvalue(), "routing.npz", "routing.json")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4_000_000


def test_a_trace_that_claims_more_than_memory_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "tokens": 1 << 40}))
    with pytest.raises(DocumentError, match="more than a trace can have"):
        load_trace(path)


def test_what_routers_say_ahead_is_kept(tmp_path: Path) -> None:
    ahead = np.array([[[0, 0], [2, 1]]] * 3, dtype=np.uint16)
    _, arrays = load_trace(write(tmp_path, dataclasses.replace(SMALL, ahead=ahead)))
    assert arrays.ahead is not None
    np.testing.assert_array_equal(arrays.ahead, ahead)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (np.zeros((3, 2, 1), np.uint16), r"ahead is uint16 \(3, 2, 1\), not uint16 \(3, 2, 2\)"),
        (np.full((3, 2, 2), 3, np.uint16), "beyond the 3 of the model"),
    ],
)
def test_what_routers_say_ahead_is_checked(
    tmp_path: Path, ahead: np.ndarray[Any, Any], words: str
) -> None:
    path = rewrite(tmp_path, ahead=ahead)
    with pytest.raises(DocumentError, match=words):
        load_trace(path)
