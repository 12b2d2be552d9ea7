"""How many threads compute which operation of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import Engine, open_weights
from planner.documents import Plan, ThreadUse, Workload
from planner.memory import smallest_policy

USE = ThreadUse(2, {"expert": 3, "attention": 4, "head": 1})
PROMPTS = [[5, 9, 101, 7], [17, 4]]


@pytest.fixture(scope="module")
def plan(checkpoint_of: Callable[..., Path], helpers: Any) -> Plan:
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        policy = replace(smallest_policy(source.model, 4), batch_size=4)
    made: Plan = helpers.plan(checkpoint, policy, Workload(4, 8, 6))
    return made


def threaded(plan: Plan, use: ThreadUse | None) -> Plan:
    return replace(plan, policy=replace(plan.policy, threads=use))


def test_a_size_says_how_many() -> None:
    # at the named rows and above both, below one; a kind that is not named is one thread's
    assert [USE.of("expert", rows) for rows in (1, 2, 3, 900)] == [1, 1, 2, 2]
    assert [USE.of(kind, 900) for kind in ("router", "head")] == [1, 2]


@pytest.mark.parametrize("several", [(1, {"head": 1}), (2, {})])
def test_threads_that_compute_nothing_are_no_use(several: Any) -> None:
    with pytest.raises(ValueError, match="threads"):
        ThreadUse(*several)


def test_each_operation_has_its_threads(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.threads.usable_cores", lambda: 2)
    before = torch.get_num_threads()
    asked: list[int] = []
    really = torch.set_num_threads

    def note(count: int) -> None:
        asked.append(count)
        really(count)

    with Engine.from_plan(threaded(plan, USE)) as engine:
        monkeypatch.setattr(torch, "set_num_threads", note)
        ours = engine.generate(PROMPTS, 3)
        monkeypatch.undo()
        events = list(engine.trace().timeline.events())
    assert torch.get_num_threads() == before
    # around the run the reference, as large operations have it; around each pass what was before
    wanted = [2, before]
    for index in range(3):
        for event in events:
            if event.pass_index == index and event.channel == "compute":
                if event.kind == "attention":
                    wanted.append(2 if event.rows >= 4 else 1)
                elif event.kind == "expert":
                    wanted.append(2 if event.rows >= 3 else 1)
                elif event.kind == "head":
                    wanted.append(2)
                elif event.kind in ("router", "combine"):
                    wanted.append(1)
        wanted.append(before)
    assert asked == [*wanted, 2, before]
    assert {1, 2} <= set(asked)
    with Engine.from_plan(plan) as engine:
        theirs = engine.generate(PROMPTS, 3)
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]


def test_a_plan_that_says_nothing_leaves_threads_alone(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.from_plan(plan) as engine:
        monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("they were set"))
        assert len(engine.generate(PROMPTS, 2)) == 2


def test_fewer_cores_than_planned_are_told_and_not_exceeded(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use = ThreadUse(6, {"expert": 1})
    for module in ("checks", "threads"):
        monkeypatch.setattr(f"executor.{module}.usable_cores", lambda: 1)
    asked: list[int] = []
    before = torch.get_num_threads()
    with caplog.at_level(logging.WARNING), Engine.from_plan(threaded(plan, use)) as engine:
        monkeypatch.setattr(torch, "set_num_threads", asked.append)
        engine.generate(PROMPTS, 2)
    assert set(asked) == {1, before}
    told = [one.getMessage() for one in caplog.records if "threads" in one.getMessage()]
    assert told == [
        "moeplan: the plan computes with 6 threads, and this process may use 1 of the machine's "
        "cores, so it will be slower than predicted: profile and plan here anew"
    ]
