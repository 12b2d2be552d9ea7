"""Plans that were edited after they were made, with and without a forged seal."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeplan import cli
from planner.documents import MemoryAccount, Plan, load_document, write_document

Change = Callable[[dict[str, Any]], object]

EDITS: dict[str, Change] = {
    "budget raised": lambda v: v["memory"]["device"].update(capacity_bytes=1 << 40),
    "KV for nothing": lambda v: v["memory"]["device"]["by_purpose"].update(kv=0),
    "other batches": lambda v: v["policy"].update(n_batches=1000),
    "more requests": lambda v: v["workload"].update(requests=5000),
    "a note": lambda v: v["notes"].append("trust me"),
    "a row": lambda v: v["predicted"]["timeline"]["layer"].__setitem__(0, 99_999),
    "another place": lambda v: v["locations"].update(profile="/nowhere"),
    "no seal": lambda v: v.pop("content_hash"),
    "another seal": lambda v: v.update(content_hash="0" * 64),
    "a seal of another type": lambda v: v.update(content_hash=7),
}


def call(*argv: Any) -> int:
    return cli.main([str(item) for item in argv])


def edited(made: SimpleNamespace, here: Path, change: Change) -> Path:
    value = json.loads(made.plan.read_text())
    change(value)
    path = here / "edited.json"
    path.write_text(json.dumps(value))
    return path


def forged(made: SimpleNamespace, here: Path, change: Callable[[Plan], Plan]) -> Path:
    """Edited, with the seal made anew."""
    write_document(change(load_document(Plan, made.plan)), here / "forged.json")
    return here / "forged.json"


def policy(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, policy=dataclasses.replace(plan.policy, **changes))


@pytest.mark.parametrize("name", EDITS)
def test_every_reader_refuses_an_edit(
    name: str, made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(made, tmp_path, EDITS[name])
    out = tmp_path / "out.jsonl"
    for argv in (
        ["run", path, "--prompts", made.prompts, "--out", out],
        ["verify", path, path],
        ["show", path],
    ):
        assert call(*argv) == 2
        shown, said = capsys.readouterr()
        assert shown == ""
        assert len(said.splitlines()) == 1
        assert "content_hash" in said if name == "no seal" else "edited by hand" in said
    assert not out.exists()


def test_check_reports_the_edit_and_goes_on(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(made, tmp_path, EDITS["KV for nothing"])
    assert call("check", path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    reasons = [violation["reason"] for violation in found["violations"]]
    assert reasons[0] == "edited"
    assert "memory_account" in reasons
    assert found["not_recomputed"] is None


def test_layout_is_no_edit(made: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(made.plan.read_text()), sort_keys=True, indent=4))
    assert call("check", path) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: policy(p, n_batches=10**6), "never filled"),
        (lambda p: policy(p, dense_slots=99_999), "could ever be used"),
        (lambda p: policy(p, layers=p.policy.layers[1:]), "in layer"),
        (lambda p: dataclasses.replace(p, solver="magic"), "no solver"),
    ],
)
def test_a_forged_seal_does_not_help_a_plan_that_contradicts_itself(
    change: Callable[[Plan], Plan],
    said: str,
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = forged(made, tmp_path, change)
    for argv in (["run", path, "--prompts", made.prompts], ["show", path]):
        assert call(*argv) == 2
        # which fault is the first depends on what the plan keeps where
        assert "moeplan check" in capsys.readouterr().err
    assert call("check", path) == 1
    assert said in " ".join(capsys.readouterr().out.split())


def test_run_holds_the_account_against_the_checkpoint(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def less(plan: Plan) -> Plan:
        account = plan.memory["device"]
        by_purpose = {**account.by_purpose, "kv": account.by_purpose["kv"] - 4096}
        return dataclasses.replace(
            plan, memory={"device": MemoryAccount(account.capacity_bytes, by_purpose)}
        )

    path = forged(made, tmp_path, less)
    assert call("run", path, "--prompts", made.prompts) == 2
    assert "memory.device: kv takes" in capsys.readouterr().err


def test_a_plan_travels_without_its_profile_and_says_so(
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def moved(plan: Plan) -> Plan:
        locations = dataclasses.replace(plan.locations, profile=str(tmp_path / "none"))
        return dataclasses.replace(plan, locations=locations)

    path = forged(made, tmp_path, moved)
    assert call("check", path, "--json") == 0
    shown, said = capsys.readouterr()
    assert "no such folder" in json.loads(shown)["not_recomputed"]
    assert "not recomputed, because" in said
    assert call("run", path, "--prompts", made.prompts, "--out", tmp_path / "o.jsonl") == 0
    assert caplog.text.count("was not compared") == 1
    # the same place, by name: then it must be there
    assert call("check", path, "--profile", tmp_path / "none") == 2


def test_a_store_that_the_plan_does_not_place(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(plan: Plan) -> Plan:
        locations = dataclasses.replace(plan.locations, store=None)
        return dataclasses.replace(plan, locations=locations)

    path = forged(made, tmp_path, lost)
    assert call("run", path, "--prompts", made.prompts) == 2
    assert "one is there without the other" in capsys.readouterr().err


def test_the_seal_is_no_part_of_what_it_seals(made: SimpleNamespace, tmp_path: Path) -> None:
    shutil.copy(made.plan, tmp_path / "plan.json")
    write_document(load_document(Plan, tmp_path / "plan.json"), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == made.plan.read_bytes()
