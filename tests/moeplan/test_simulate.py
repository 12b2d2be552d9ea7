"""``moeplan simulate`` from outside."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from moeplan import cli
from planner.profiles import load_profile
from tests.refusal import refusal

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe" / "config.json"


def call(*arguments: object) -> int:
    return cli.main(list(map(str, arguments)))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A profile of a data sheet's, and placements on 1 and 64 devices."""
    folder = tmp_path_factory.mktemp("simulate")
    profile = folder / "profile"
    offline = ["--model", CONFIG, "--hardware", "rtx-3090", "--routing", "uniform"]
    sizes = ["--memory", "10MiB", "--requests", 4, "--prompt-tokens", 8, "--new-tokens", 4]
    made = ["--solver", "frequency", "--profile-out", profile]
    assert call("plan", *offline, *sizes, *made, "--out", folder / "plan.json") == 0
    placed = {1: folder / "1.json", 64: folder / "64.json"}
    for devices, more in ((1, []), (64, ["--replicas", 48])):
        fitted = ["--routing", profile / "routing.json", "--method", "replicate"]
        many = ["--devices", devices, "--scenarios", 20, *more, "--out", placed[devices]]
        assert call("place", *fitted, *many) == 0
    return SimpleNamespace(profile=profile, placed=placed)


def test_one_device_and_64(given: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    for devices in (1, 64):
        links = ["--bandwidth", "1GB/s", "--latency-us", 20, "--tokens", 512, "--passes", 4]
        where = ["--placement", given.placed[devices]]
        assert call("simulate", given.profile, *where, *links, "--json") == 0
        told[devices] = json.loads(capsys.readouterr().out)
        layer = told[devices]["layer_ns"]
        assert layer["total"] == pytest.approx(layer["compute"] + layer["exchange"])
        # the example has 8 MoE layers
        assert told[devices]["pass_ns"]["mean"] == pytest.approx(8 * layer["total"])
        assert told[devices]["expert_source"] == "fitted"
    # one device sends nothing and waits for nobody
    assert told[1]["layer_ns"]["exchange"] == told[1]["layer_ns"]["idle"] == 0
    # 512 tokens of 2 experts: 16 rows of 160 float32 from each of 64 devices, of which a 64th stays
    # at home: 10,080 bytes and as many ns, there and back, and 60 us of latencies, if links are
    # alike; nobody sends more, but who has an expert alone may get its rows: 64, hardly over 100
    assert 80_160 <= told[64]["layer_ns"]["exchange"] < 60_000 + 2 * 100 * 640
    assert told[64]["layer_ns"]["compute"] < told[1]["layer_ns"]["compute"]


def test_it_needs_nothing_of_what_runs_models(
    given: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("executor", "profiler", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    links = ["--bandwidth", "1GB/s", "--latency-us", 0, "--tokens", 64, "--passes", 1]
    assert call("simulate", given.profile, "--placement", given.placed[1], *links) == 0


def test_other_statistics_of_this_model(
    given: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heat = {"layers": [{"layer": layer, "heat": [1] + [0] * 15} for layer in range(8)]}
    (tmp_path / "heat.json").write_text(json.dumps(heat))
    links = ["--bandwidth", "1GB/s", "--latency-us", 0, "--tokens", 64, "--passes", 1, "--json"]
    where = ["--placement", given.placed[64], "--routing", tmp_path / "heat.json"]
    assert call("simulate", given.profile, *where, *links) == 0
    told = json.loads(capsys.readouterr().out)
    # 64 tokens' 2 choices all fall on expert 0: what is computed lies on its copies alone
    assert told["compute_over_even"] > 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--inter-bandwidth", "1GB/s"], "leave --inter-bandwidth out"),
        (["--series", "x"], "--series has no effect"),
        (["--bandwidth", "fast"], "not a bandwidth"),
        (["--sequences", "65"], "65 sequences of only 64 tokens"),
        (["--tokens", "9999999999"], "too many"),
        (["--routing", "{heat}"], "give the --routing of this model"),
        (["--placement", "{heat}"], "heat.json"),
    ],
)
def test_what_is_refused(
    more: list[str],
    words: str,
    given: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heat = tmp_path / "heat.json"
    heat.write_text('{"layers": [{"heat": [1, 2]}]}')
    links = ["--bandwidth", "1GB/s", "--latency-us", 20, "--tokens", 64]
    more = [one.format(heat=heat) for one in more]
    assert words in refusal(
        capsys, "simulate", given.profile, "--placement", given.placed[64], *links, *more
    )


def test_an_encoder_decoder_is_refused(
    given: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layers do not all compute a pass's tokens."""
    command = importlib.import_module("moeplan.commands.simulate")
    found = load_profile(given.profile)
    both = replace(found, model=replace(found.model, encoder=4))
    monkeypatch.setattr(command, "load_profile", lambda _: both)
    links = ["--bandwidth", "1GB/s", "--latency-us", 20, "--tokens", 512]
    assert call("simulate", given.profile, "--placement", given.placed[1], *links) == 2
    assert "encoder-decoder cannot be simulated" in " ".join(capsys.readouterr().err.split())
