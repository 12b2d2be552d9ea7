"""``moeplan place`` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from executor.parallel import ParallelEngine
from moeplan import cli
from planner.documents import ExpertPlacement, document_hash, load_document
from tests.refusal import refusal

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    path = tmp_path / "shares.npz"
    np.savez(path, a=np.random.default_rng(1).dirichlet(np.arange(1, 9), size=(40, 3)))
    return path


def test_a_placement_and_its_summary(
    shares: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "placement.json"
    arguments = ["--routing", str(shares), "--devices", "2", "--scenarios", "20", "--json"]
    assert cli.main(["place", *arguments, "--time-limit", "3", "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    written = load_document(ExpertPlacement, out)
    assert written.method == said["method"] == "cpsat"
    assert said["held_out"]["average_max_load"] == written.held_out.average_max_load
    assert {"max_load", "average_max_load"} <= set(said["held_out"])
    assert 0 <= said["gap"] <= 1
    assert said["bound"] <= said["fitted"]["average_max_load"]
    assert [layer.layer for layer in written.layers] == [0, 1, 2]
    assert sum(one["layers"] for one in said["candidates"]) == 3


def test_methods_beside_each_other(shares: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["place", "--routing", str(shares), "--devices", "2", "--replicas", "2"]
    assert cli.main([*arguments, "--method", "greedy,replicate"]) == 0
    shown = capsys.readouterr().out
    assert "greedy" in shown
    assert "replicate" in shown
    assert "took" not in shown


@pytest.mark.parametrize("method", ["contiguous,greedy", "greedy,contiguous"])
def test_of_several_methods_the_best_is_written_in_whatever_order(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # the first two of four experts get all tokens: contiguous puts both on the first device,
    # greedy each on its own
    shares, out = tmp_path / "shares.npz", tmp_path / "placement.json"
    np.savez(shares, a=np.tile([0.5, 0.5, 0.0, 0.0], (20, 2, 1)))
    arguments = ["place", "--routing", str(shares), "--devices", "2", "--scenarios", "4"]
    arguments += ["--method", method, "--out", str(out)]
    assert cli.main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"greedy is written to {out}, of these the best" in said
    assert cli.main([*arguments, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["method"] == "greedy"
    assert [one["method"] for one in body["methods"]] == method.split(",")
    written = load_document(ExpertPlacement, out)
    assert written.method == "greedy"
    assert document_hash(written) == body["hash"]


def test_what_a_search_was_chosen_over_is_said(
    shares: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["place", "--routing", str(shares), "--devices", "2", "--scenarios", "20"]
    assert cli.main([*arguments, "--time-limit", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cpsat took what had less on the fullest device" in said
    for name in ("contiguous", "greedy", "anti-correlation", "replicate", "search"):
        assert f"{name} 0." in said
    # fewer leave no part to choose by
    assert cli.main([*arguments[:-1], "15", "--time-limit", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cpsat searched all layers without a choice: of so few fitted batches" in said
    assert "took what had less" not in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--devices", "9"], "some would hold nothing"),
        (["--devices", "2", "--method", "greedy", "--replicas", "1"], "no effect on greedy"),
        (["--devices", "2", "--method", "greedy", "--time-limit", "3"], "--time-limit has no"),
        (["--devices", "2", "--memory", "1GiB"], "go together"),
        (["--devices", "2", "--inter-bandwidth", "1GB/s"], "one node"),
        (["--devices", "3", "--nodes", "2"], "cannot be divided"),
        (["--devices", "2", "--nodes", "2"], "which follow which|which experts follow which"),
        (["--devices", "2", "--series", "x"], "--series has no effect"),
        (["--devices", "2", "--fit-domains", "z"], "unknown"),
        (["--devices", "2", "--scenarios", "999999999999"], "too many"),
        (["--devices", "2", "--method", "magic"], "unknown"),
        (["--devices", "2", "--replicas", "9"], "at most 8"),
    ],
)
def test_what_is_refused(
    shares: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "place", "--routing", shares, *more)
    assert any(word in line for word in words.split("|"))


def test_room_is_counted_as_devices_count_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routing, out = tmp_path / "shares.npz", tmp_path / "placement.json"
    np.savez(routing, a=np.full((4, 8, 16), 1 / 16))
    arguments = ["place", "--routing", str(routing), "--devices", "2", "--method", "contiguous"]
    arguments += ["--model", str(EXAMPLE), "--out", str(out), "--memory"]
    # half of the example's 16 experts in each of 8 layers: 138,240 bytes each, in whole blocks of
    # 4,096 bytes 139,264
    least = 8 * 8 * 139264
    for memory in (8 * 8 * 138240, least - 1):
        assert cli.main([*arguments, f"{memory}B"]) == 2
        assert f"the smallest memory that works is {least:,} bytes" in capsys.readouterr().err
    assert cli.main([*arguments, f"{least}B"]) == 0
    placement = load_document(ExpertPlacement, out)
    assert ParallelEngine(EXAMPLE, placement, memory_bytes=least).slots == [64, 64]
