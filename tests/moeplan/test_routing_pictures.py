"""Routing in pictures: shades by hand, the page, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeplan.cli import main
from moeplan.routing_pictures import RoutingView, heat_map
from planner.documents import ProfileIndex, load_document, write_document
from planner.routing import TraceArrays, load_trace, write_trace

# layer 3 is chosen 5, 2, 1 and 0 times, layer 4 all alike; layer 5 follows layer 4
CHOSEN = [[0, 0, 3], [0, 1, 2], [0, 2, 1], [0, 3, 0], [0, 0, 3], [1, 1, 2], [1, 2, 1], [2, 3, 0]]


@pytest.fixture
def routing(tmp_path: Path) -> Path:
    arrays = TraceArrays(
        np.array(CHOSEN, dtype=np.uint16)[:, :, None],
        np.array([0, 0, 0, 0, 1, 1, 1, 1], dtype=np.int32),
        np.array([0, 1, 2, 3] * 2, dtype=np.int32),
        np.array([0, 0, 0, 1] * 2, dtype=np.uint8),
    )
    write_trace(tmp_path, arrays, model_hash="a" * 64, moe_layers=(3, 4, 5), expert_count=4)
    return tmp_path / "routing.json"


def test_shades_say_how_often(routing: Path) -> None:
    view = RoutingView(*load_trace(routing))
    lines = heat_map(view, 80).plain.splitlines()
    # 5, 2, 1 and 0 of 8 choices among four experts: 2.5, 1, 0.5 and 0 times chance
    assert lines[:3] == ["3 ▓▒░ ", "4 ▒▒▒▒", "5 ▒▒▒▒"]
    # two choices in layer 4 are all that layer 5 follows; one in layer 3 tells less
    assert view.bits[1] == pytest.approx(2)
    assert view.bits[0] < 2
    assert view.layer == 1


def test_more_experts_than_columns_share_them(tmp_path: Path) -> None:
    # 32 experts, of which the even ones are chosen alike: twice chance, and never
    chosen = np.arange(0, 32, 2, dtype=np.uint16)[:, None, None]
    zeros = np.zeros(16, dtype=np.int32)
    arrays = TraceArrays(chosen, zeros, np.arange(16, dtype=np.int32), np.zeros(16, dtype=np.uint8))
    write_trace(tmp_path, arrays, model_hash="a" * 64, moe_layers=(0,), expert_count=32)
    first, *_ = heat_map(RoutingView(*load_trace(tmp_path / "routing.json")), 1).plain.splitlines()
    assert first == "0 " + "▓" * 8 + " " * 8


def test_the_page_holds_every_picture_and_needs_no_network(
    routing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out" / "routing.html"
    page.parent.mkdir()
    assert main(["show", str(routing), "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    text = page.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        *("Popularity", "Coverage", "Experts activated by N tokens"),
        *("Co-activation of layers 4 and 5", "Layers"),
    ]
    # the pictures' data: popularity in units of chance
    (data,) = re.findall(r"^const plots = (.*);$", text, re.MULTILINE)
    assert json.loads(data)[0]["cells"] == [[2.5, 1, 0.5, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", text)
    assert [layer["layer"] for layer in told["layers"]] == [3, 4, 5]
    first = told["layers"][0]
    assert first["popularity"] == [5 / 8, 2 / 8, 1 / 8, 0]
    assert first["coverage"] == {"1": 5 / 8, "2": 7 / 8}
    # prefill chose 0, 0, 0, 0, 1, 1 and decode 0 and 2
    assert first["drift"] == pytest.approx((1 / 6 + 1 / 3 + 1 / 2) / 2)
    assert first["activated"]["1"] == pytest.approx(1 / 4)


def test_a_profile_is_shown_by_its_folder(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(made.profile)]) == 0
    assert "of 8 experts in each of 3 layers" in " ".join(capsys.readouterr().out.split())


def test_options_without_effect_are_refused(
    routing: Path, made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*argv: Any) -> str:
        assert main(["show", *map(str, argv)]) == 2
        return capsys.readouterr().err

    page = tmp_path / "page.html"
    assert "--pass has no effect" in said(routing, "--pass", 1)
    assert "--layer has no effect without --html" in said(routing, "--layer", 3)
    assert "choose from 3 to 4" in said(routing, "--layer", 5, "--html", tmp_path.parent / "a.html")
    assert "--layer" in said(made.plan, "--layer", 1)
    assert "which is read" in said(routing.parent, "--html", page)
    (routing.parent / "routing.npz").unlink()
    assert "routing.npz" in said(routing)


def test_what_speaks_against_a_profile_is_shown_with_it(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "profile"
    shutil.copytree(made.profile, folder)
    said = "other programs had 1.3 of 2 cores while the profile was measured"
    index = load_document(ProfileIndex, folder / "profile.json")
    write_document(dataclasses.replace(index, notes=(said,)), folder / "profile.json")
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"• {said}")
    assert main(["show", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [said]


def test_one_of_a_thing_is_not_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token of one sequence, in one layer."""
    one, zero = np.zeros((1, 1, 1), dtype=np.uint16), np.zeros(1, dtype=np.int32)
    arrays = TraceArrays(one, zero, zero, np.zeros(1, dtype=np.uint8))
    write_trace(tmp_path, arrays, model_hash="a" * 64, moe_layers=(0,), expert_count=4)
    assert main(["show", str(tmp_path / "routing.json")]) == 0
    said = "routing of 1 token in 1 sequence; 1 of 4 experts in each of 1 layer"
    assert said in " ".join(capsys.readouterr().out.split())
