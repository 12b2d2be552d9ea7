"""What a searching solver is given: times corrected for what few passes demand by chance."""

from __future__ import annotations

from typing import Any

import pytest

import planner.entries
from planner.documents import Workload
from planner.entries import run_solver
from planner.groups import candidates
from planner.objectives import objective_named
from planner.smallest import smallest_budget_bytes
from solvers.outcome import Outcome, Schedule, Stop
from solvers.problem import Problem
from solvers.registry import Limits, load

WORKLOAD = Workload(requests=2, prompt_tokens=8, new_tokens=4)


class Recorder:
    """A back end that keeps what it is asked, and follows a rule."""

    def __init__(self) -> None:
        self.asked: list[Problem] = []

    def solve(
        self, problem: Problem, limits: Limits, hint: Schedule | None, progress: Any
    ) -> Outcome:
        self.asked.append(problem)
        return load("on-demand").solve(problem, limits)


def test_a_search_is_by_corrected_times(
    small_profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, given = Recorder(), []
    monkeypatch.setattr(planner.entries, "load", lambda name: recorder)

    def seven_more(problem: Problem) -> Problem:
        given.append(problem)
        return problem.replace(correction_ns=7 * (problem.copy_ns > 0))

    monkeypatch.setattr(planner.entries, "corrected", seven_more)
    memory = smallest_budget_bytes(small_profile, WORKLOAD) + small_profile.model.expert_bytes // 2
    goal = objective_named("throughput", WORKLOAD)
    one = candidates(small_profile, WORKLOAD, memory, 0, goal)[-1]
    entry = run_solver("recorder", one, Limits())
    assert entry.stop is Stop.RULE
    assert given[0].scenarios.mean_demanded is not None
    assert recorder.asked[0].correction.max() == 7
    # what is compared and told afterwards is the plain time on other sequences
    assert entry.chosen_value == one.score("choose", entry.schedule)
    assert one.problem("choose").correction_ns is None
