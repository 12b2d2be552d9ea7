"""``moeplan offload`` from outside: made, checked and carried out by two processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeplan import cli
from planner.documents import ExpertPlacement, load_document
from tests.refusal import refusal


@pytest.fixture(scope="module")
def placed(
    made: SimpleNamespace,
    command_json: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> SimpleNamespace:
    """A placement on two devices, and the same with a plan; each device has 12 of 24 experts."""
    folder = tmp_path_factory.mktemp("offload")
    placement, planned = folder / "placement.json", folder / "planned.json"
    routing = made.profile / "routing.json"
    fitted = ("--devices", 2, "--scenarios", 8, "--method", "greedy", "--out", placement)
    command_json("place", "--routing", routing, *fitted)
    # an expert has 36 KiB: 3 x 64 x 48 in float32
    asked = ("--memory", "216KiB", "--requests", 4, "--prompt-tokens", 14, "--new-tokens", 4)
    said = command_json(
        *("offload", made.profile, "--placement", placement, *asked, "--time-limit", 0.5),
        *("--out", planned),
    )
    return SimpleNamespace(placement=placement, planned=planned, said=said, asked=asked)


def test_what_is_said_is_what_is_written(placed: SimpleNamespace) -> None:
    document = load_document(ExpertPlacement, placed.planned)
    assert document.offload is not None
    for said, policy in zip(placed.said["devices"], document.offload.devices, strict=True):
        assert said["experts"] == 12
        assert said["resident_experts"] == sum(len(one.resident) for one in policy.layers)
        assert said["resident_experts"] + said["slots"] <= 6
        assert said["predicted"]["wall_ns"] == policy.predicted.wall_ns > 0
    assert placed.said["memory_bytes"] == 216 << 10
    assert placed.said["workload"] == {"requests": 4, "prompt_tokens": 14, "new_tokens": 4}


def test_two_processes_carry_it_out(
    made: SimpleNamespace, placed: SimpleNamespace, command_json: Callable[..., Any]
) -> None:
    asked = ("--prompts", made.prompts, "--max-new-tokens", 4)
    one = command_json("run", made.plan, *asked)
    two = command_json(
        *("parallel", made.checkpoint, "--store", made.store, "--placement", placed.planned),
        *asked,
    )
    assert [line["token_ids"] for line in two["outputs"]] == [
        line["token_ids"] for line in one["outputs"]
    ]
    for rank, policy in zip(two["ranks"], placed.said["devices"], strict=True):
        assert rank["slots"] == policy["slots"]
        assert 0 < rank["hit_rate"] <= 1
        assert rank["prefetched_bytes"] >= rank["wasted_bytes"] >= 0
        assert rank["bytes_read"] > 0


def test_the_checker(
    made: SimpleNamespace, placed: SimpleNamespace, command_json: Callable[..., Any], tmp_path: Path
) -> None:
    assert command_json("check", placed.placement)["violations"] == []
    said = command_json("check", placed.planned)
    assert said["violations"] == []
    assert "no profile" in said["not_recomputed"]
    said = command_json("check", placed.planned, "--profile", made.profile)
    assert (said["violations"], said["not_recomputed"]) == ([], None)
    value = json.loads(placed.planned.read_text())
    value["offload"]["devices"][0]["predicted"]["copied_bytes"] += 1
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(value))
    assert cli.main(["check", str(edited)]) == 0
    assert cli.main(["check", str(edited), "--profile", str(made.profile)]) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--memory", "1KiB"], "the smallest memory that works is"),
        (["--batch-size", "3"], "batches of 3 sequences have no effect: a device gets at most 2"),
        (["--solver", "lru", "--time-limit", "3"], "--time-limit has no effect"),
        (["--solver", "belady"], "--solver"),
        (["--new-tokens", "2000"], "exceed the model's context of 256"),
        (["--placement", "{profile}/costs.json"], "kind is 'costs'"),
        (["--out", "{placement}"], "is one of the inputs"),
    ],
)
def test_what_is_refused(
    more: list[str],
    words: str,
    made: SimpleNamespace,
    placed: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ("--placement", placed.placement, "--out", tmp_path / "out.json")
    more = [one.format(profile=made.profile, placement=placed.placement) for one in more]
    line = refusal(capsys, "offload", made.profile, *where, *placed.asked, *more)
    assert words in line
    assert not list(tmp_path.iterdir())


def test_what_a_run_refuses(
    made: SimpleNamespace,
    placed: SimpleNamespace,
    another_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(checkpoint: Path, placement: Path, *more: Any) -> str:
        asked = ("--prompts", made.prompts, "--max-new-tokens", 4)
        return refusal(capsys, "parallel", checkpoint, "--placement", placement, *asked, *more)

    store = ("--store", made.store)
    said = "offload plan says what each device's memory holds"
    assert said in run(made.checkpoint, placed.planned, *store, "--memory", "1MiB")
    assert said in run(made.checkpoint, placed.planned, *store, "--eviction", "lru")
    assert "leave rebalancing out" in run(
        made.checkpoint, placed.planned, *store, "--rebalance", "2"
    )
    on_gpus = run(made.checkpoint, placed.planned, *store, "--device", "cuda")
    assert "offload plan is for CPUs" in on_gpus
    assert "give it with --store" in run(made.checkpoint, placed.planned)
    assert "not the checkpoint" in run(another_checkpoint, placed.planned)
    # an expert of the other device
    value = json.loads(placed.planned.read_text())
    held = {expert for expert, devices in enumerate(value["layers"][0]["devices"]) if devices[0]}
    value["offload"]["devices"][0]["layers"][0] = {"resident": [min(held)], "prefetch": []}
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(value))
    line = run(made.checkpoint, edited, *store)
    assert f"offload.devices.0.layers.0: expert {min(held)} is not placed on this device" in line
    assert "'moeplan check' lists what is wrong" in line
    assert "--profile has no effect" in refusal(
        capsys, "check", placed.placement, "--profile", made.profile
    )
