"""Safetensors headers: what is refused, and that nothing but CheckpointError ever comes out."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from planner.weight_files import DTYPE_BITS, read_weight_file, sampled_digest
from solvers.errors import CheckpointError


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (JSON values or bytes) and this data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> Any:
    return {
        "dtype": dtype,
        "shape": [end - begin] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(4, dtype=np.float16),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "one": np.float32([7.0]).reshape(()),
    }
    path = tmp_path / "x.safetensors"
    save_file(arrays, path, metadata={"made": "here"})
    file = read_weight_file(path)
    assert file.metadata == {"made": "here"}
    assert set(file.tensors) == set(arrays)
    content = path.read_bytes()
    for name, array in arrays.items():
        tensor = file.tensors[name]
        assert tensor.shape == array.shape
        piece = content[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        assert piece == array.tobytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated: 0 bytes"),
        (b"abc", "truncated: 3 bytes"),
        (raw({}, length=1 << 60), "its header would be"),
        (raw({}, length=50), "truncated: its header is 50 bytes, the file only 10"),
        (raw(b"\xff\xfe"), "its header is not valid"),
        (raw(b"{"), "its header is not valid"),
        (raw(b"[]"), "not a JSON object"),
        (raw(b'{"a":' + b"[" * 100_000), "its header is not valid"),
        (raw(b'{"a":1e3}'), "not an integer"),
        (raw(b'{"a":NaN}'), "not an integer"),
        (raw(b'{"a":{},"a":{}}'), "stands twice"),
        (raw({"a": 3}), "'a': not exactly dtype, shape and data_offsets"),
        (raw({"a": {**entry(0, 0), "more": 1}}), "'a': not exactly"),
        (raw({"a": entry(0, 2, dtype="Q4")}, b"xx"), "'Q4' is unknown"),
        (raw({"a": {**entry(0, 2), "dtype": ["U8"]}}, b"xx"), "is unknown"),
        (raw({"a": entry(0, 2, [-2])}, b"xx"), "its shape"),
        (raw({"a": entry(0, 2, [True, 2])}, b"xx"), "its shape"),
        (raw({"a": entry(0, 2, [1] * 17)}, b"xx"), "its shape"),
        (raw({"a": {**entry(0, 2), "data_offsets": [0]}}, b"xx"), "not a pair"),
        (raw({"a": {**entry(0, 2), "data_offsets": [0, "2"]}}, b"xx"), "not a pair"),
        (raw({"a": entry(2, 0, [0])}, b"xx"), "bytes 2 to 0 do not hold"),
        (raw({"a": entry(0, 2, [3])}, b"xx"), "bytes 0 to 2 do not hold 3 values of U8"),
        (raw({"a": entry(0, 2, [1], "F32")}, b"xx"), "do not hold 1 values of F32"),
        (raw({"a": entry(0, 1, [3], "F4")}, b"x"), "do not hold 3 values of F4"),
        (raw({"a": entry(0, 4), "b": entry(2, 6)}, b"x" * 6), "'b' overlaps tensor 'a'"),
        (raw({"a": entry(0, 2), "b": entry(3, 5)}, b"x" * 5), "1 bytes before tensor 'b'"),
        (raw({"a": entry(0, 9)}, b"x" * 5), "truncated: tensor 'a' ends at byte"),
        (raw({"a": entry(0, 2)}, b"x" * 5), "3 bytes after tensor 'a' belong to no tensor"),
        (raw({"__metadata__": {"k": 1}}), "__metadata__"),
        (raw({"__metadata__": "x"}), "__metadata__"),
        (raw({"a\nb": 3}), "not exactly"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_weight_file(path)
    line = str(caught.value)
    assert words in line
    assert str(path) in line
    assert "\n" not in line


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_weight_file(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weight_file(tmp_path)


def test_the_digest_sees_size_header_and_content(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = np.zeros(300_000, dtype=np.float32)
    digests = []
    for change in (None, 0, len(values) - 1, len(values) // 2):
        changed = values.copy()
        if change is not None:
            changed[change] = 1
        save_file({"a": changed}, path)
        digests.append(sampled_digest(read_weight_file(path)))
    # the first and the last block are always sampled; what lies between only in part
    assert len({*digests[:3]}) == 3
    save_file({"b": values}, path)
    assert sampled_digest(read_weight_file(path)) not in digests
    save_file({"a": values}, path)
    assert sampled_digest(read_weight_file(path)) == digests[0]


names = st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a", "b"])
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-4, 40)
    | st.integers()
    | st.floats()
    | st.sampled_from([*DTYPE_BITS, "x"])
    | st.text(max_size=3)
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "x"]) | values,
        "shape": st.lists(st.integers(-1, 9), max_size=3) | values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | values,
    }
)
headers = st.dictionaries(names | st.text(max_size=3), entries | values, max_size=4)


def never_another_error(content: bytes) -> None:
    """Reads ``content`` as a file: it is refused, or what is read lies inside it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content)
        refusal, file = "", None
        try:
            file = read_weight_file(path)
        except CheckpointError as error:
            refusal = str(error)
        if file is None:
            assert refusal
            assert "\n" not in refusal
            return
        end = file.data_offset
        for tensor in sorted(file.tensors.values(), key=lambda t: (t.offset_bytes, t.size_bytes)):
            assert tensor.offset_bytes == end
            assert (
                tensor.size_bytes * 8
                == np.prod(tensor.shape, dtype=object) * DTYPE_BITS[tensor.dtype]
            )
            end += tensor.size_bytes
        assert end == len(content)
        assert len(sampled_digest(file)) == 32


@settings(max_examples=300)
@given(header=headers, data=st.binary(max_size=40))
def test_any_header(header: dict[str, Any], data: bytes) -> None:
    never_another_error(raw(header, data))


@settings(max_examples=150)
@given(content=st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    never_another_error(content)


GOOD = raw({"a": entry(0, 8, [2], "F32"), "b": entry(8, 20, [2, 3], "BF16")}, bytes(range(20)))


@settings(max_examples=300)
@given(
    cut=st.integers(0, len(GOOD)),
    flips=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(1, 255)), max_size=4),
)
def test_a_good_file_cut_and_flipped(cut: int, flips: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for place, bits in flips:
        content[place] ^= bits
    never_another_error(bytes(content[:cut]))


def test_the_good_file_is_good() -> None:
    never_another_error(GOOD)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(GOOD)
        assert set(read_weight_file(path).tensors) == {"a", "b"}
