"""``profile`` in parts: the machine alone, routing alone, and corrected by a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.documents import (
    CostProfile,
    Figure,
    Machine,
    Plan,
    Predicted,
    Slowdown,
    Trace,
    TraceTotals,
    document_hash,
    load_document,
    write_document,
)
from planner.encode import schedule_of
from planner.predict import predict
from planner.profiles import Profile, load_profile
from planner.recompute import candidate_of
from planner.routing import load_trace
from planner.routing_sources import load_source
from profiler import speeds
from profiler.refine import refine
from tests.refusal import refusal

Json = Callable[..., Any]


@pytest.fixture(scope="module")
def trace(made: SimpleNamespace, command_json: Json, tmp_path_factory: Any) -> Path:
    """Of a run of the session's plan."""
    folder = tmp_path_factory.mktemp("run")
    file: Path = folder / "trace.json"
    command_json(
        "run", made.plan, "--prompts", made.prompts, "--trace", file, "--out", folder / "out.jsonl"
    )
    return file


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- corrected by a run --------------------------------------------------------------------------


def test_refining_writes_a_new_profile_and_keeps_the_old(
    made: SimpleNamespace,
    trace: Path,
    command_json: Json,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(made.profile)
    new = tmp_path / "new"
    told = command_json("profile", made.profile, "--refine", trace, "--out", new)
    assert contents(made.profile) == before
    old, loaded = load_profile(made.profile), load_profile(new)
    assert {"attention", "expert", "head", "copy"} <= {step["kind"] for step in told["steps"]}
    for step in told["steps"]:
        assert step["before_ratio"] == pytest.approx(step["measured_ns"] / step["before_ns"])
        assert step["after_ratio"] == pytest.approx(step["measured_ns"] / step["after_ns"])
    assert loaded.costs != old.costs
    assert loaded.costs.model_hash == old.costs.model_hash
    assert loaded.routing == old.routing
    assert "corrected" in loaded.index.notes[-1]
    # a plan made from it says so; a run of the old plan is not one of this profile
    plan = tmp_path / "plan.json"
    command_json(
        *("plan", new, "--memory", made.memory, "--requests", 4, "--prompt-tokens", 14),
        *("--new-tokens", 4, "--solver", "frequency", "--out", plan),
    )
    assert loaded.index.notes[-1] in load_document(Plan, plan).notes
    said = refusal(capsys, "profile", new, "--refine", trace, "--out", tmp_path / "third")
    assert "hardware document" in said
    assert not (tmp_path / "third").exists()
    said = refusal(capsys, "profile", made.profile, "--refine", plan, "--out", tmp_path / "third")
    assert "plan" in said


def test_refining_never_takes_the_old_ones_place(
    made: SimpleNamespace, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(made.profile)
    said = refusal(capsys, "profile", made.profile, "--refine", trace, "--out", made.profile)
    assert "is one of the inputs" in said
    assert contents(made.profile) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hardware-only"], "--threads has no effect with --hardware-only"),
        (["{checkpoint}", "--routing-only"], "--threads has no effect with --routing-only"),
        (["{checkpoint}", "--refine", "trace.json"], "--threads has no effect with --refine"),
        (["{checkpoint}", "--memory", "1GB", "--device", "cuda"], "no effect on what a GPU"),
    ],
)
def test_threads_are_refused_where_they_have_no_effect(
    options: list[str],
    words: str,
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [option.format(checkpoint=tiny) for option in options]
    out = tmp_path / ("new.json" if "--hardware-only" in options else "new")
    assert words in refusal(capsys, "profile", *given, "--threads", 1, "--out", out)
    assert not out.exists()


def test_more_threads_than_cores_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["profile", tiny, "--memory", "1GB", "--out", tmp_path / "new", "--threads"]
    for count in (0, 4097):
        assert f"{count:,} threads cannot compute here" in refusal(capsys, *argv, count)
    assert not (tmp_path / "new").exists()


def test_a_profile_that_was_changed_is_not_refined(
    made: SimpleNamespace, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "profile"
    shutil.copytree(made.profile, own)
    costs = load_document(CostProfile, own / "costs.json")
    changed = replace(costs, reference_ns=replace(costs.reference_ns, value=1.0))
    write_document(changed, own / "costs.json")
    said = refusal(capsys, "profile", own, "--refine", trace, "--out", tmp_path / "new")
    assert "costs document was changed" in said


def _undisturbed(profile: Profile, plan: Plan) -> tuple[Profile, Plan]:
    """Both as if copies and computation did not slow each other down: a plan states its share of
    that, which another machine would not have."""
    one = Figure(1.0, "measured", None, 1)
    costs = replace(
        profile.costs,
        copy_slowdown=one,
        compute_slowdown=one,
        slowdown_by_kind={},
        prefill_slowdown_by_kind={},
    )
    index = replace(profile.index, costs_hash=document_hash(costs))
    predicted = replace(plan.predicted, slowdown=Slowdown())
    inputs = replace(plan.inputs, costs=index.costs_hash)
    return replace(profile, costs=costs, index=index), replace(
        plan, predicted=predicted, inputs=inputs
    )


def test_a_corrected_profile_predicts_the_next_run_better(made: SimpleNamespace) -> None:
    """The machine is another than was measured: experts take twice as long, the disk half as fast
    again. Runs are replays with its costs, so nothing here depends on this machine's moods."""
    profile, plan = _undisturbed(load_profile(made.profile), load_document(Plan, made.plan))
    channel = profile.hardware.channels[0]
    slow = replace(
        channel.bandwidth_bytes_per_second, value=channel.bandwidth_bytes_per_second.value / 1.5
    )
    late = replace(channel.latency_ns, value=channel.latency_ns.value * 1.5)
    expert = profile.costs.curves["expert"]
    twice = replace(expert, duration_ns=tuple(2 * one for one in expert.duration_ns))
    machine = replace(
        profile,
        hardware=replace(
            profile.hardware,
            channels=(replace(channel, bandwidth_bytes_per_second=slow, latency_ns=late),),
        ),
        costs=replace(profile.costs, curves={**profile.costs.curves, "expert": twice}),
    )

    def ran(by: Profile, seed: int) -> Predicted:
        one = replace(plan, seed=seed)
        return predict(candidate_of(one, by).judged(), schedule_of(plan.policy))

    first = ran(machine, plan.seed).timeline
    totals = TraceTotals(*(0,) * 10, {}, {}, (), 0, 0, 0)
    chunk = plan.policy.chunk_bytes
    trace = Trace(document_hash(plan), "cpu", None, 4, totals, first, (), plan.inputs, chunk)
    found = refine(profile, trace)
    better = replace(profile, hardware=found.hardware, costs=found.costs)
    # other sequences than those that it was corrected by
    second = plan.seed + 1
    truth = ran(machine, second).totals
    before, after = ran(profile, second).totals, ran(better, second).totals
    assert abs(after.wall_ns - truth.wall_ns) < abs(before.wall_ns - truth.wall_ns) / 2
    expected = truth.duration_by_kind_ns["expert"]
    assert before.duration_by_kind_ns["expert"] == pytest.approx(expected / 2, rel=0.05)
    assert after.duration_by_kind_ns["expert"] == pytest.approx(expected, rel=0.15)


# --- the machine alone, and routing alone ---------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and few measurements."""
    monkeypatch.setattr(speeds, "_PRODUCT", {"cpu": 64})
    monkeypatch.setattr(speeds, "_COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(speeds, "_FILE_BYTES", 8 << 20)
    monkeypatch.setattr(speeds, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(speeds, "_SECONDS", 0.0)
    monkeypatch.setattr(speeds, "_LEAST", 1)


def test_machine_and_routing_alone_make_a_plan(
    made: SimpleNamespace, quick: None, command_json: Json, tmp_path: Path
) -> None:
    file, routing = tmp_path / "machine.json", tmp_path / "routing"
    command_json("profile", "--hardware-only", "--out", file)
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]
    machine = load_document(Machine, file)
    assert machine.device == "cpu"
    assert set(machine.compute_flops_per_second) == {"float32", "bfloat16", "float16"}
    disk = machine.disk_bytes_per_second
    assert disk is not None
    # two rounds of eight reads
    assert (disk.source, disk.samples) == ("measured", 16)
    told = command_json(
        *("profile", made.checkpoint, "--routing-only", "--memory", made.memory),
        *("--prompts", made.prompts, "--out", routing),
    )
    assert sorted(path.name for path in routing.iterdir()) == ["routing.json", "routing.npz"]
    trace, arrays = load_trace(Path(told["routing"]))
    # 13 + 14 + 14 + 12 prompt tokens, and 15 of 16 new ones are fed again
    assert (trace.sequences, trace.tokens) == (4, 53 + 4 * 15)
    assert int((arrays.phase == 0).sum()) == 53
    planned = command_json(
        *("plan", "--model", made.checkpoint / "config.json", "--hardware", file),
        *("--routing", told["routing"], "--memory", made.memory, "--requests", 4),
        *("--prompt-tokens", 14, "--new-tokens", 4, "--solver", "frequency"),
        *("--out", tmp_path / "plan.json"),
    )
    assert planned["predicted"]["tokens_per_second"]["value"] > 0
    # and what 'place' takes
    assert load_source(Path(told["routing"])).sequences["all"].shape == (4, 3, 8)


def test_options_without_effect_are_refused(
    made: SimpleNamespace, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ("--out", tmp_path / "new")
    for argv, word in (
        ((made.profile, "--refine", trace, "--memory", "1GiB"), "--memory has no effect"),
        ((made.profile, "--refine", trace, "--seed", 0), "--seed has no effect"),
        ((made.profile, "--refine", trace, "--hardware-only"), "different commands"),
        ((made.checkpoint, "--hardware-only"), "CHECKPOINT has no effect"),
        (("--hardware-only", "--store", made.store), "--store has no effect"),
        (("--hardware-only",), "name a FILE.json"),
        ((made.checkpoint, "--routing-only", "--memory", "1GiB", "--disk-bandwidth", "1GB/s"),
         "--disk-bandwidth has no effect"),
        ((made.checkpoint, "--routing-only"), "--memory is missing"),
        (("--refine", trace), "PROFILE_DIR"),
        (("--memory", "1GiB"), "CHECKPOINT is missing"),
        ((made.checkpoint, "--memory", "1GiB", "--device", "tpu"), "--device 'tpu'"),
    ):  # fmt: skip
        assert word in refusal(capsys, "profile", *argv, *new)
    assert not (tmp_path / "new").exists()
    said = refusal(
        capsys,
        *("profile", made.checkpoint, "--routing-only", "--memory", "1GiB"),
        *("--out", made.profile),
    )
    assert "profile" in said
