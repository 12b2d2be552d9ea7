"""A plan's time: what is held back for what comes after a search, and what then is cut short."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import planner.budget
import planner.entries
from planner.budget import Budget
from planner.candidate import Candidate
from planner.check import check_plan
from planner.documents import Workload, to_json
from planner.entries import BASELINES
from planner.profiles import Profile
from planner.smallest import smallest_budget_bytes
from planner.solve import make_plan

WORKLOAD = Workload(requests=4, prompt_tokens=8, new_tokens=4)
SECONDS = {"fit": 1.0, "choose": 2.0, "judge": 3.0}
"""What replays take in these tests."""


class Clock:
    now = 100.0
    own = 5.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.own


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(planner.budget, "time", made)
    return made


def candidate(factor: float = 1.0) -> Any:
    return cast(Any, SimpleNamespace(seconds=lambda which: factor * SECONDS[which]))


def test_judging_is_held_back_and_half_of_the_rest_for_comparing(clock: Clock) -> None:
    budget = Budget(100.0, whole=True)
    budget.hold(candidate(), baselines=7, tried=6)
    # judging and checking are 10 replays of 3 s, 30 of 100 s; comparing 7 x (6 x 1 + 2 + 3) = 77,
    # but half of the 70 s that are left at most
    assert budget.end == pytest.approx(170.0)
    assert budget.deadline == pytest.approx(135.0)
    clock.now = 135.0
    # 35 / 7 = 5 s each are for one that is chosen and judged, on one n and b at least
    assert budget.tries(6, 7) == 1
    assert budget.end == pytest.approx(167.0)  # its judging comes later
    clock.now = 153.0
    assert budget.tries(6, 2) == 2  # 7 s each
    assert budget.tries(6, 1) == 6  # 11 s to 164
    assert budget.end == pytest.approx(161.0)
    clock.now = 157.0
    assert budget.tries(6, 1) == 0  # 4 s, one takes 1 + 2 + 3
    assert budget.end == pytest.approx(161.0)
    # unless it is compared in any case: then its judging comes later, too
    assert budget.tries(6, 1, least=1) == 1
    assert budget.end == pytest.approx(158.0)
    budget.compared()
    assert budget.deadline == budget.end


def test_a_busy_machine_takes_longer(clock: Clock) -> None:
    budget = Budget(1000.0, whole=True)
    # 4 s of the clock, 2 of the processor: all takes twice as long
    clock.now, clock.own = 104.0, 7.0
    budget.hold(candidate(), baselines=7, tried=6)
    assert budget.end == pytest.approx(1040.0)  # 1100 - 2 x 30
    assert budget.deadline == pytest.approx(886.0)  # - 2 x 77
    clock.now = 1029.0
    assert budget.tries(6, 1) == 0  # 11 s are 5.5 of the processor, one takes 6
    clock.now = 1027.0
    assert budget.tries(6, 1) == 1


def test_comparing_takes_no_more_than_it_needs(clock: Clock) -> None:
    budget = Budget(1000.0, whole=True)
    budget.hold(candidate(), baselines=7, tried=6)
    assert budget.end == pytest.approx(1070.0)
    assert budget.deadline == pytest.approx(993.0)
    assert budget.tries(6, 7) == 6


@pytest.mark.parametrize(("whole", "factor"), [(False, 1.0), (True, 0.01)])
def test_nothing_is_held_back_where_it_is_little_or_not_asked(
    clock: Clock, whole: bool, factor: float
) -> None:
    # a hundredth of 30 + 77 s is less than two seconds
    budget = Budget(5.0, whole=whole)
    budget.hold(candidate(factor), baselines=7, tried=6)
    assert budget.deadline == budget.end == 105.0
    clock.now = 1e6
    assert budget.tries(6, 7) == 6


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays that are said to take seconds."""
    monkeypatch.setattr(Candidate, "seconds", lambda self, which: SECONDS[which])


def memory(profile: Profile) -> int:
    return smallest_budget_bytes(profile, WORKLOAD) + 3 * profile.model.layers[0].expert_bytes


def test_what_was_cut_short_is_said(small_profile: Profile, slow: None) -> None:
    # judging alone would take 30 of 20 s: one n and b is searched, and compared with the two rules
    # that need no time, on the one that looked best
    plan = make_plan(
        small_profile, WORKLOAD, memory_bytes=memory(small_profile), time_limit_seconds=20.0
    )
    (said,) = [note for note in plan.notes if "cut short" in note]
    assert said.startswith("cpsat: the time limit of 20 s cut short: ")
    assert "searched 1 of the 2 best n and b" in said
    first, second, *others = BASELINES
    assert [first, second] == ["all-experts", "on-demand"]
    assert f"compared on fewer n and b: {first}, {second}" in said
    assert f"compared not at all: {', '.join(others)}" in said
    assert plan.stop == "time_limit"
    assert {plan.solver, *plan.chosen_over} == {"cpsat", first, second}
    # it is as whole as any other
    assert check_plan(plan, small_profile) == []
    assert plan.bound is not None
    assert plan.gap is not None


def test_with_time_to_spare_nothing_is_cut(
    small_profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {
        "memory_bytes": memory(small_profile), "time_limit_seconds": 0.5, "cap_seconds": 1e6,
    }  # fmt: skip
    free = make_plan(small_profile, WORKLOAD, **asked)
    monkeypatch.setattr(Candidate, "seconds", lambda self, which: SECONDS[which])
    assert to_json(make_plan(small_profile, WORKLOAD, **asked)) == to_json(free)
    assert set(free.chosen_over) == set(BASELINES)


def test_baselines_may_be_tried_on_fewer_n_and_b(
    small_profile: Profile, monkeypatch: pytest.MonkeyPatch, slow: None
) -> None:
    tried: list[tuple[str, int]] = []
    original = planner.entries.run_strategy

    def one_each(name: str, profile: Any, found: Any, ranked: Any, seed: int, most: int) -> Any:
        tried.append((name, most))
        return original(name, profile, found, ranked, seed, most)

    monkeypatch.setattr(planner.entries, "run_strategy", one_each)
    monkeypatch.setattr(Budget, "tries", lambda self, wanted, baselines, least: 1)
    plan = make_plan(
        small_profile, WORKLOAD, memory_bytes=memory(small_profile), time_limit_seconds=0.5,
        cap_seconds=1e6,
    )  # fmt: skip
    assert tried == [(name, 1) for name in BASELINES]
    (said,) = [note for note in plan.notes if "cut short" in note]
    assert f"compared on fewer n and b: {', '.join(BASELINES)}" in said
    assert set(plan.chosen_over) >= set(BASELINES) - {plan.solver}
    assert check_plan(plan, small_profile) == []


def test_rules_ask_no_clock(small_profile: Profile, slow: None) -> None:
    plan = make_plan(
        small_profile, WORKLOAD, memory_bytes=memory(small_profile), solver="lru",
        time_limit_seconds=1e-3,
    )  # fmt: skip
    assert not any("cut short" in note for note in plan.notes)
    assert set(plan.chosen_over) == set(BASELINES) - {"lru"}
