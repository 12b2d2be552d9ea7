"""Routing statistics that are none: one line each, and no memory before the headers are read."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as made

from planner.placement import scenes_of
from planner.routing_draws import check_work
from planner.routing_sources import load_source
from solvers.errors import DocumentError, InputError, OptionError


def heat_of(*counts: object, **more: object) -> str:
    return json.dumps({"layers": [{"layer": 0, "heat": list(counts)}], **more})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (heat_of(1, 10**400), "larger than 2\\^53"),
        (heat_of(1, 1e308, 1e308), "larger than 2\\^53"),
        (heat_of(1, 2**53 + 1), "larger than 2\\^53"),
        (heat_of(1, -1), "negative"),
        (heat_of(0, 0), "a layer has none"),
        (heat_of(1, float("nan")), "NaN is no JSON number"),
        (heat_of(1, "1"), "list of counts"),
        (heat_of(1, True), "list of counts"),
        (heat_of(1, 2, k=3), "k is not a number of experts, 1 to 2"),
        (heat_of(1, 2, k=10**18), "k is not a number of experts"),
        ('{"layers": [{"heat": [1, 2], "heat": [3, 4]}]}', "stands twice"),
        ('{"layers": [{"heat": [1], "layer": ' + "9" * 40 + "}]}", "ascending numbers"),
        (heat_of(*[1] * 5000), "no model has more"),
        ('{"data": {}}', "holds no series"),
        ('{"data": {"x": {}}}', "holds no domain"),
    ],
)
def test_json(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "heat.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=said) as caught:
        load_source(path)
    assert "\n" not in str(caught.value)


def good() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.full((2, 2, 2), 0.5))
    return buffer.getvalue()


def encrypted() -> bytes:
    data = bytearray(good())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    return bytes(data)


def packed_unknown() -> bytes:
    data = bytearray(good())
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.index(mark) + at] = 77
    return bytes(data)


def with_header(header: str, name: str = "a.npy") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = header.encode() + b"\n"
        start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
        archive.writestr(name, start + text)
    return buffer.getvalue()


def shaped(shape: str, kind: str = "<f8") -> bytes:
    return with_header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}")


@pytest.mark.parametrize(
    "data",
    [
        encrypted(),
        packed_unknown(),
        with_header("{'descr': ("),
        with_header("'''"),
        with_header("(" * 5000),
        with_header("\x00"),
        with_header("{}", "a.txt"),
        shaped("(1000000000, 1000, 1000)"),
        shaped("(2, 2, -2)"),
        shaped("(1e9,)"),
        shaped("(1,)", "|O"),
        good()[:-30],
        b"PK",
    ],
    ids=str.split(
        "encrypted packing cut quotes nested null text huge negative float objects short bare"
    ),
)
def test_archives(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "shares.npz"
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=r"shares\.npz: ") as caught:
        load_source(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["heat", "shares"])
def test_work_without_end_is_refused_with_what_works(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    path.write_bytes(heat_of(1, 2, 3, 4).encode() if kind == "heat" else good())
    source = load_source(path)
    for option, more in (
        ("--batch", {"batch": 10**18}),
        ("--scenarios", {"scenarios": 10**9, "judged": 2 * 10**9}),
    ):
        with pytest.raises(OptionError, match=rf"{option} .* at most [0-9]+ works?$") as caught:
            scenes_of(source, **more)  # type: ignore[arg-type]
        most = int(str(caught.value).split()[-2])
        if option == "--batch":
            check_work(source, 1024, most, 512)
        else:
            check_work(source, 2 * most, 1, most)


def test_one_array_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones(3))
    with pytest.raises(InputError, match="neither JSON nor"):
        load_source(path)


# Anything at all is read or refused --------------------------------------------------------------

ODD = st.sampled_from(
    [None, True, -1, 0.5, 1e308, 10**400, float("nan"), "", "a\nb", "\x1b[2J", [], {}, [[]], [[0]]]
)
NAMES = st.sampled_from(["layers", "heat", "layer", "k", "data", "kind", "a\nb", "\x1b[2J", ""])
JSON = st.recursive(
    ODD | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
COUNTS = {"data": {"x": {"a": [[1, 2], [3, 4]], "b": [[5, 6], [7, 8]]}}, "layers": [0, 2]}
HEAT = {"layers": [{"layer": 0, "heat": [1, 2]}, {"layer": 1, "heat": [3, 4]}], "k": 1}
ARRAYS = st.dictionaries(
    st.sampled_from(["a", "b", "x.a", "x.b", "y.a", "x\ny", "\x1b[2J.a", "..", "0"]),
    st.sampled_from(["<f2", "<f4", ">f8", "<i2", "<u8", "|b1", "<c8", "<U3", "<M8[s]"]).flatmap(
        lambda kind: made.arrays(
            kind,
            made.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3)
            | st.just((2, 2, 2))
            | st.just((1, 2, 3)),
            elements=st.sampled_from([0, 1, 2]) if kind[1] in "iu" else None,
            fill=st.nothing(),
        )
    ),
    max_size=3,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    return [at, *(one for key, inner in items for one in places(inner, (*at, key)))]


def read_or_refused(data: bytes) -> None:
    """Whatever is read can be worked on; what is refused is refused in a line without controls."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "statistics"
        path.write_bytes(data)
        said, source = "", None
        try:
            source = load_source(path)
        except InputError as error:
            said = str(error)
    assert said.isprintable(), repr(said)
    if source is None:
        return
    assert source.domains
    for name, one in {**source.sequences, **source.heat}.items():
        assert name.isprintable(), repr(name)
        assert one.ndim in (2, 3)
        assert one.shape[-2:] == (len(source.layers), source.experts)
        assert np.isfinite(one).all()
        assert one.min() >= 0
        assert one.max() <= 2**54


seeded = settings(max_examples=40, derandomize=True, database=None)


@seeded
@given(value=JSON)
def test_any_json(value: Any) -> None:
    read_or_refused(json.dumps(value).encode())


@seeded
@given(data=st.data(), good=st.sampled_from([COUNTS, HEAT]))
def test_statistics_with_one_thing_changed(data: st.DataObject, good: Any) -> None:
    value = json.loads(json.dumps({"value": good}))
    *ahead, last = data.draw(st.sampled_from(places(value["value"], ("value",))))
    inner = value
    for key in ahead:
        inner = inner[key]
    new = data.draw(JSON)
    if isinstance(inner, dict) and data.draw(st.booleans()):
        inner[data.draw(NAMES)] = inner.pop(last)
    else:
        inner[last] = new
    read_or_refused(json.dumps(value.get("value")).encode())


@seeded
@given(arrays=ARRAYS)
def test_any_arrays(arrays: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    read_or_refused(buffer.getvalue())


@seeded
@given(
    cut=st.integers(0, 300),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4),
)
def test_a_good_archive_cut_and_flipped(cut: int, flips: list[tuple[int, int]]) -> None:
    content = bytearray(good())
    for where, bits in flips:
        content[where % len(content)] ^= bits
    read_or_refused(bytes(content[: len(content) - max(cut - 200, 0)]))


def test_shares_in_half_precision(tmp_path: Path) -> None:
    """A million rows are more than the largest number of half precision."""
    path = tmp_path / "shares.npz"
    np.savez(path, a=np.full((1, 1, 2), 0.5, dtype=np.float16))
    assert load_source(path).sequences["a"].tolist() == [[[500_000, 500_000]]]
