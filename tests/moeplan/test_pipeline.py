"""The commands one after another on a tiny real checkpoint: profile to show."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeplan import cli
from moeplan.output import Reporter
from planner import solve
from planner.documents import (
    CostProfile,
    Figure,
    Plan,
    ProfileIndex,
    Trace,
    document_hash,
    load_document,
    write_document,
)
from tests.refusal import refusal

Command = Callable[..., Any]


def call(*argv: Any) -> int:
    return cli.main([str(item) for item in argv])


def test_plan_json_has_what_scripts_rely_on(made: SimpleNamespace) -> None:
    document = made.plan_json
    plan = load_document(Plan, made.plan)
    assert document["n_batches"] == plan.policy.n_batches
    assert document["batch_size"] == plan.policy.batch_size
    assert document["solver"] == plan.solver
    assert document["stop"] == plan.stop
    assert document["objective"] == plan.objective
    assert document["bound"] == plan.bound
    assert document["gap"] == plan.gap
    speed = document["predicted"]["tokens_per_second"]
    assert 0 < speed["low"] <= speed["value"] <= speed["high"]
    peak = document["memory"]["device"]["peak_bytes"]
    assert peak == sum(plan.memory["device"].by_purpose.values())
    assert peak <= int(made.memory)
    assert document["hash"] == document_hash(plan)


def test_the_profile_is_made_from_this_checkpoint_and_store(made: SimpleNamespace) -> None:
    assert made.profile_json["store_fingerprint"] == made.packed_json["fingerprint"]
    assert made.profile_json["memory_bytes"] == int(made.memory)
    plan = load_document(Plan, made.plan)
    assert plan.inputs.checkpoint_fingerprint == made.profile_json["checkpoint_fingerprint"]
    assert plan.inputs.store_fingerprint == made.packed_json["fingerprint"]


def test_a_workload_of_many_groups(
    made: SimpleNamespace, command_json: Command, tmp_path: Path
) -> None:
    # far more requests than fit at once: passes of several groups make one period
    out = tmp_path / "plan.json"
    document = command_json(
        *("plan", made.profile, "--memory", int(made.memory) + 200_000, "--requests", 64),
        *("--prompt-tokens", 64, "--new-tokens", 16, "--time-limit", 2, "--out", out),
    )
    assert document["n_batches"] * document["batch_size"] < 64
    assert load_document(Plan, out).predicted.timeline.kind
    assert command_json("check", out)["violations"] == []


def test_a_new_plan_passes_the_checker(made: SimpleNamespace, command_json: Command) -> None:
    document = command_json("check", made.plan)
    assert document["violations"] == []
    assert document["profile"] == str(made.profile)


def test_run_verify_and_show(
    made: SimpleNamespace,
    command_json: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, trace_file = tmp_path / "out.jsonl", tmp_path / "trace.json"
    document = command_json(
        "run", made.plan, "--prompts", made.prompts, "--out", out, "--trace", trace_file
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == made.prompts.read_text().splitlines()
    assert all(set(line) == {"prompt", "text", "token_ids"} for line in lines)
    assert all(len(line["token_ids"]) == 4 for line in lines)  # the model knows no end token
    trace = load_document(Trace, trace_file)
    assert trace.plan_hash == document_hash(load_document(Plan, made.plan))
    assert trace.totals.device_peak_bytes <= int(made.memory)
    assert document["tokens_per_second"] == pytest.approx(16 / trace.totals.wall_ns * 1e9)

    found = command_json("verify", made.plan, trace_file)
    assert found["tokens_per_second"]["measured"] == pytest.approx(document["tokens_per_second"])
    assert found["within"] is True
    off = abs(found["tokens_per_second"]["error"])
    assert call("verify", made.plan, trace_file, "--max-error", off * 1.01) == 0
    capsys.readouterr()
    assert call("verify", made.plan, trace_file, "--max-error", off * 0.99) == 1
    err = capsys.readouterr().err
    assert "tokens/s is off by" in err
    assert len(err.splitlines()) == 1

    # one prompt of the four: nothing is judged
    (tmp_path / "one.txt").write_text("import os\n")
    other = tmp_path / "other.json"
    command_json("run", made.plan, "--prompts", tmp_path / "one.txt", "--trace", other)
    found = command_json("verify", made.plan, other)
    assert found["not_comparable"] is not None
    assert found["within"] is None
    refused(
        capsys,
        ["verify", made.plan, other, "--max-error", 1e9],
        "planned for 4 requests of 14+4 tokens, ran 1 of 9+4: not comparable",
    )
    assert call("verify", made.plan, other) == 0
    assert "measured / predicted" not in capsys.readouterr().out

    html = tmp_path / "report.html"
    assert call("show", made.plan, trace_file, "--html", html) == 0
    capsys.readouterr()
    assert call("show", made.plan, trace_file) == 0
    shown = capsys.readouterr().out
    assert "Experts, a row a layer" in shown
    assert "measured, pass 1" in shown
    assert html.stat().st_size > 10_000


def test_a_run_at_another_pace_warns_and_its_answers_stand_out(
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(Reporter, "show", lambda _, what: shown.append(what))
    trace = tmp_path / "trace.json"
    run = ["run", made.plan, "--prompts", made.prompts, "--trace", trace]
    assert call(*run, "--disk-bandwidth", "1GB/s") == 0
    said = "the plan was made for a disk at its own speed; its prediction is not for one paced to 1"
    assert said in capsys.readouterr().err
    first = shown[0]
    prompt = made.prompts.read_text().splitlines()[0]
    assert first.style == ""
    assert [(first.plain[s.start : s.end] == prompt, s.style) for s in first.spans] == [
        (True, "dim"),
        (False, "bold"),
    ]
    # the profile is at hand, so the verdict knows, too
    argv = ["verify", made.plan, trace, "--max-error", 1e9]
    refused(capsys, argv, "planned for a disk at its own speed, ran with one paced to 1 GB/s")
    assert call(*run) == 0
    assert "disk" not in capsys.readouterr().err


def test_run_gives_transformers_tokens(
    made: SimpleNamespace, command_json: Command, tmp_path: Path
) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    document = command_json("run", made.plan, "--prompts", made.prompts)
    tokenizer = Tokenizer.from_file(str(made.checkpoint / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(made.checkpoint, dtype=torch.float32)
    for line in document["outputs"]:
        ids = torch.tensor([tokenizer.encode(line["prompt"]).ids])
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False
            )
        assert line["token_ids"] == whole[0, ids.shape[1] :].tolist()


def test_the_same_plan_twice(
    made: SimpleNamespace,
    tmp_path: Path,
    command_json: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # its work alone ends a search: the clock's cap lies where a busy machine never comes
    monkeypatch.setattr(solve, "make_plan", functools.partial(solve.make_plan, cap_seconds=600))
    argv = ["plan", made.profile, "--memory", made.memory, "--requests", 4, "--prompt-tokens", 14]
    argv += ["--new-tokens", 4, "--time-limit", 2]
    paths = [tmp_path / "one.json", tmp_path / "again.json"]
    one, again = (command_json(*argv, "--out", path) for path in paths)
    assert again["hash"] == one["hash"]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_compare_has_a_row_for_every_solver_and_objective(
    made: SimpleNamespace, command_json: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compare", made.profile, "--memory", made.memory, "--requests", 4]
    argv += ["--prompt-tokens", 14, "--new-tokens", 4, "--time-limit", 0.3]
    every = ["--solvers", "cpsat,all-experts,klotski", "--objectives", "throughput,bytes"]
    rows = command_json(*argv, *every)["rows"]
    assert [(row["objective_name"], row["solver"]) for row in rows] == [
        (goal, name)
        for goal in ("throughput", "bytes")
        for name in ("cpsat", "all-experts", "klotski")
    ]
    assert all(row["predicted"]["tokens_per_second"]["value"] > 0 for row in rows)
    for objective in ("throughput", "bytes"):
        solver = "cpsat" if objective == "bytes" else "klotski"
        more = ["--solvers", solver, "--objectives", objective]
        assert call(*(argv if solver == "cpsat" else argv[:-2]), *more) == 0
        out = capsys.readouterr().out
        assert objective in out
        assert solver in out
    refused(capsys, [*argv, "--solvers", "magic"], "magic")
    argv = ["compare", made.profile, "--memory", "1KiB", "--solvers", "klotski"]
    refused(capsys, argv, "smallest that works")


# --- refusals ---------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], argv: list[Any], *said: str, code: int = 2) -> None:
    line = refusal(capsys, *argv, code=code)
    for text in said:
        assert text in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "100KiB"], ("smallest that works",)),
        (["--memory", "-1"], ("--memory",)),
        (["--requests", "-3"], ("--requests",)),
        (["--requests", "0"], ("--requests",)),
        (["--new-tokens", "1000"], ("context",)),
        (["--time-limit", "-1"], ("--time-limit",)),
        (["--time-limit", "nan"], ("--time-limit",)),
        (["--solver", "magic"], ("magic", "cpsat")),
        (["--solver", "klotski", "--time-limit", "3"], ("--time-limit", "klotski")),
        (["--objective", "beauty"], ("beauty", "throughput")),
        (["--seed", "-1"], ("--seed",)),
        (["--out", "/nowhere/plan.json"], ("--out", "/nowhere")),
        (["--colour"], ("--colour",)),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, list) else "",
)
def test_bad_plan_options(
    options: list[str],
    said: tuple[str, ...],
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["plan", made.profile, "--memory", made.memory, "--out", tmp_path / "p.json", *options]
    refused(capsys, argv, *said)
    assert list(tmp_path.iterdir()) == []


def test_the_smallest_budget_that_is_named_works(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--requests", 1, "--prompt-tokens", 14, "--new-tokens", 4]
    out = tmp_path / "p.json"
    assert call("plan", made.profile, "--memory", "1KiB", *common, "--out", out) == 2
    line = capsys.readouterr().err
    smallest = int(line.split("smallest that works is ")[1].split(" bytes")[0].replace(",", ""))
    assert call("plan", made.profile, "--memory", smallest - 1, *common, "--out", out) == 2
    assert not out.exists()
    assert call("plan", made.profile, "--memory", smallest, *common, "--out", out) == 0
    # and so does what is named in larger units, typed as it stands
    typed = line.split("(")[1].split(")")[0]
    assert call("plan", made.profile, "--memory", typed, *common, "--out", out) == 0
    # and the plan that it gives runs
    (tmp_path / "p.txt").write_text("import os\n")
    assert call("run", out, "--prompts", tmp_path / "p.txt") == 0


def test_a_profile_document_changed_by_hand(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile"
    for name in ("hardware", "model", "costs", "routing"):
        shutil.copytree(made.profile, profile)
        text = json.loads((profile / f"{name}.json").read_text())
        key = {"hardware": "name", "model": "name", "costs": "model_hash", "routing": "source"}[
            name
        ]
        text[key] = {"costs": "0" * 64, "routing": "synthetic"}.get(name, "another")
        (profile / f"{name}.json").write_text(json.dumps(text))
        argv = ["plan", profile, "--memory", made.memory, "--out", tmp_path / "p.json"]
        refused(capsys, argv, f"the {name} document")
        run = ["run", made.plan, "--prompts", made.prompts, "--profile", profile]
        refused(capsys, run, f"the {name} document")
        shutil.rmtree(profile)


def test_a_plan_refuses_what_it_was_not_made_from(
    made: SimpleNamespace,
    another_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command_json: Command,
) -> None:
    run = ["run", made.plan, "--prompts", made.prompts, "--out", tmp_path / "o.jsonl"]
    refused(capsys, [*run, "--checkpoint", another_checkpoint], "checkpoint")
    command_json("pack", another_checkpoint, tmp_path / "store")
    refused(capsys, [*run, "--store", tmp_path / "store"], "store")
    # a profile that is sound in itself, but not the one that was planned with
    profile = tmp_path / "profile"
    shutil.copytree(made.profile, profile)
    costs = load_document(CostProfile, profile / "costs.json")
    costs = dataclasses.replace(costs, reference_ns=Figure(1.0, "measured"))
    write_document(costs, profile / "costs.json")
    index = load_document(ProfileIndex, profile / "profile.json")
    write_document(
        dataclasses.replace(index, costs_hash=document_hash(costs)), profile / "profile.json"
    )
    refused(capsys, [*run, "--profile", profile], "costs document")
    assert not (tmp_path / "o.jsonl").exists()


def test_a_compressed_store(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], command_json: Command
) -> None:
    store = tmp_path / "store"
    document = command_json("pack", made.checkpoint, store, "--compress", "exact")
    assert document["compressed"] is True
    assert document["size_bytes"] < document["weights_bytes"]
    capsys.readouterr()
    assert call("pack", made.checkpoint, store, "--compress", "auto") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of the weights, exactly compressed), verified" in said
    refused(capsys, ["pack", made.checkpoint, store], "finished store with compression")
    assert call("pack", made.checkpoint, tmp_path / "both", "--compress", "both") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of the weights, exactly compressed, experts as they are, too), verified" in said
    refused(
        capsys,
        ["pack", made.checkpoint, tmp_path / "both", "--compress", "exact"],
        "finished store with compression and experts as they are",
    )
    # planned for the store as it is
    run = ["run", made.plan, "--prompts", made.prompts, "--out", tmp_path / "o.jsonl"]
    refused(capsys, [*run, "--store", store], "not the store that the plan was made for")


def test_a_plan_edited_into_overflow(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = load_document(Plan, made.plan)
    edited = dataclasses.replace(plan, policy=dataclasses.replace(plan.policy, slots=900))
    write_document(edited, tmp_path / "plan.json")
    run = ["run", tmp_path / "plan.json", "--prompts", made.prompts]
    refused(capsys, run, "budget", "at least")
    # check is asked for violations: it prints them on stdout and exits with 1
    assert call("check", tmp_path / "plan.json") == 1
    out, err = capsys.readouterr()
    assert "memory" in out
    assert err == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-new-tokens", "99"], "plan again with --new-tokens 99"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--store", "/nowhere"], "/nowhere"),
        (["--checkpoint", "/nowhere"], "/nowhere"),
        (["--profile", "/nowhere"], "/nowhere"),
        (["--out", "/nowhere/o.jsonl"], "/nowhere"),
        (["--trace", "/nowhere/t.json"], "/nowhere"),
        (["--disk-bandwidth", "fast"], "--disk-bandwidth"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, list) else "",
)
def test_bad_run_options(
    options: list[str],
    said: str,
    made: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused(capsys, ["run", made.plan, "--prompts", made.prompts, *options], said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.txt", "x" * 15 + "\n", "15 tokens"),  # one byte is one token; the plan is for 14
        ("p.txt", "a\n" * 5, "5 prompts"),
        ("p.jsonl", '{"token_ids": [999]}\n', "vocabulary"),
        ("p.jsonl", '{"token_ids": "abc"}\n', "line 1"),
    ],
)
def test_prompts_that_do_not_fit_the_plan(
    name: str,
    content: str,
    said: str,
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(content)
    refused(capsys, ["run", made.plan, "--prompts", tmp_path / name], said)


def test_outputs_do_not_replace_inputs(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", made.plan, "--prompts", made.prompts]
    refused(capsys, [*run, "--out", made.prompts], "one of the inputs")
    refused(capsys, [*run, "--trace", made.plan], "one of the inputs")
    same = tmp_path / "x.json"
    refused(capsys, [*run, "--out", same, "--trace", same], "both name")
    plan = ["plan", made.profile, "--memory", made.memory]
    refused(capsys, [*plan, "--out", made.profile / "model.json"], "which is read")
