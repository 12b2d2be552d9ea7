"""Routing statistics that are none: one line each, and no memory before the headers are read."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

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
