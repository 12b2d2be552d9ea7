"""A second objective, the least memory, an interrupted search, and budgets that cannot work."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import planner.entries
import planner.solve
from planner.check import check_plan
from planner.documents import Workload
from planner.entries import Patience
from planner.memory import ALIGNMENT_BYTES, smallest_budget
from planner.overlap import overlap
from planner.smallest import smallest_account, smallest_budget_bytes
from planner.solve import make_plan, solve
from planner.too_small import PURPOSES
from solvers.errors import BudgetError, OptionError
from solvers.exact import ExactSolver

WORKLOAD = Workload(requests=8, prompt_tokens=16, new_tokens=8)


@pytest.fixture(scope="module")
def budget(small_profile: Any) -> int:
    smallest = smallest_budget_bytes(small_profile, WORKLOAD)
    return smallest + small_profile.model.expert_bytes // 2


@pytest.fixture(scope="module")
def less(profile_factory: Any) -> Any:
    """Smaller, where any search will do."""
    return profile_factory(layers=2, experts=4, sequences=6, prompt=4, new=4)


def room_in(profile: Any) -> int:
    return smallest_budget_bytes(profile, WORKLOAD) + profile.model.expert_bytes // 2


def test_the_second_objective_within_the_tolerance_of_the_first(less: Any) -> None:
    options: dict[str, Any] = {
        "memory_bytes": room_in(less),
        "solver": "cpsat",
        "objective": "throughput",
        "time_limit_seconds": 2,
        "cap_seconds": 600,
        "seed": 0,
    }
    plain, rivals = solve(less, WORKLOAD, **options)
    slim, _ = solve(less, WORKLOAD, then="peak-memory", tolerance=0.2, **options)
    peak = slim.candidate.peak_bytes(slim.schedule)
    assert peak < plain.candidate.peak_bytes(plain.schedule)
    assert slim.chosen_value <= 1.2 * plain.chosen_value
    assert any("best by peak-memory" in note for note in slim.notes)
    # no rival that is near enough needs less
    for rival in rivals:
        if rival.chosen_value <= 1.2 * plain.chosen_value:
            assert peak <= rival.candidate.peak_bytes(rival.schedule)


def test_the_least_memory_is_proven(small_profile: Any, budget: int) -> None:
    made = make_plan(
        small_profile,
        WORKLOAD,
        memory_bytes=budget,
        objective="peak-memory",
        time_limit_seconds=1,
    )
    assert made.objective == smallest_budget(small_profile.model, WORKLOAD, 4, "below")
    assert made.bound == made.objective
    assert made.memory["device"].peak_bytes == made.objective
    assert made.memory["device"].capacity_bytes == budget
    assert check_plan(made, small_profile) == []


def test_each_policy_is_priced_by_what_overlaps_in_it(
    profile_factory: Any,
) -> None:
    profile = profile_factory(copy_slowdown=1.5, compute_slowdown=1.3, bandwidth=4e8)
    budget = smallest_budget_bytes(profile, WORKLOAD) + profile.model.expert_bytes // 2
    # so short that only the first n and b is looked at: klotski chooses its own
    entry, rivals = solve(
        profile,
        WORKLOAD,
        memory_bytes=budget,
        solver="cpsat",
        objective="throughput",
        time_limit_seconds=1e-6,
        seed=0,
    )
    # each by what its own policy makes overlap, not by what the first look did
    for one in (entry, *rivals):
        own = one.candidate
        again = overlap(
            own.encoding,
            partial(own.problem, "fit", plain=True),
            own.shapes("fit"),
            one.schedule,
            own.factors,
        )
        assert again == pytest.approx(own.factors, rel=0.01), one.solver
    found = {one.solver: one.candidate.factors for one in (entry, *rivals)}
    assert found["all-experts"].decode > found["on-demand"].decode


def test_a_second_objective_that_can_have_no_effect_is_refused(
    small_profile: Any, budget: int
) -> None:
    for options, message in (
        ({"then": "throughput"}, "is the first one"),
        ({"then": "speed"}, "objective 'speed' is unknown"),
        ({"then": "bytes", "tolerance": 1.5}, "the tolerance is 1.5"),
        ({"then": "bytes", "solver": "lru"}, "lru follows a rule"),
    ):
        with pytest.raises(OptionError, match=message):
            make_plan(small_profile, WORKLOAD, memory_bytes=budget, **options)  # type: ignore[arg-type]


def test_a_baseline_that_wins_says_by_how_much(
    small_profile: Any, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a solver that finds no more than what copies on demand
    real = planner.entries.load
    monkeypatch.setattr(
        planner.entries, "load", lambda name: real("on-demand" if name == "cpsat" else name)
    )
    made = make_plan(
        small_profile, WORKLOAD, memory_bytes=budget, time_limit_seconds=1, cap_seconds=60.0
    )
    assert made.solver not in ("cpsat", "on-demand")
    (said,) = [note for note in made.notes if "it beats cpsat by" in note]
    assert said.startswith(f"{made.solver}: on the sequences that choose it beats cpsat by ")
    assert float(said.rpartition(" ")[2].rstrip("%")) > 0
    assert "cpsat" in made.chosen_over


@pytest.mark.parametrize("where", ["first looks", "solver", "baselines", "document"])
def test_an_interrupted_search_gives_the_best_so_far(
    less: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    pressed = []

    def pressing(real: Any, at: int) -> Any:
        def work(*arguments: Any, **options: Any) -> Any:
            pressed.append(where)
            if len(pressed) == at:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        return work

    module: Any
    module, name, at = {
        "first looks": (planner.entries, "_look", 2),
        "solver": (ExactSolver, "solve", 1),
        "baselines": (planner.entries, "run_strategy", 3),
        "document": (planner.solve, "document", 1),
    }[where]
    monkeypatch.setattr(module, name, pressing(getattr(module, name), at))
    # on a busy machine a second is over before all strategies have had their turn
    options: dict[str, Any] = {
        "memory_bytes": room_in(less),
        "time_limit_seconds": 1,
        "cap_seconds": 60.0,
    }
    made = make_plan(less, WORKLOAD, interruptible=True, **options)
    assert check_plan(made, less) == []
    # a search that had ended was not interrupted
    assert (made.stop == "interrupted") == (where != "document")
    assert made.bound is not None
    pressed.clear()
    with pytest.raises(KeyboardInterrupt):
        make_plan(less, WORKLOAD, **options)


def test_the_second_interrupt_ends_everything() -> None:
    patience = Patience(True)
    with patience.once():
        raise KeyboardInterrupt
    assert patience.interrupted
    with pytest.raises(KeyboardInterrupt), patience.once():
        raise KeyboardInterrupt


@settings(
    max_examples=8,
    # an instance takes a second or two: shrinking would take minutes
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    requests=st.integers(1, 40),
    prompt=st.integers(1, 300),
    new=st.integers(1, 40),
    layers=st.integers(1, 3),
    experts=st.sampled_from([2, 4, 8]),
    hidden=st.sampled_from([16, 64, 128]),
    shared=st.booleans(),
)
def test_the_smallest_budget_works_and_a_page_less_does_not(
    profile_factory: Any,
    alone: None,
    requests: int,
    prompt: int,
    new: int,
    layers: int,
    experts: int,
    hidden: int,
    shared: bool,
) -> None:
    profile = profile_factory(
        layers=layers, experts=experts, hidden=hidden, shared=shared, sequences=4
    )
    workload = Workload(requests, prompt, new)
    smallest, purposes = smallest_account(profile, workload)
    assert smallest == sum(purposes.values())
    assert smallest % ALIGNMENT_BYTES == 0
    with pytest.raises(BudgetError) as caught:
        make_plan(profile, workload, memory_bytes=smallest - ALIGNMENT_BYTES, solver="on-demand")
    assert caught.value.smallest_bytes == smallest
    largest = max(purposes, key=lambda name: (purposes[name], name))
    words = str(caught.value).partition("most of it is ")[2].split(",")[0]
    assert words.endswith(PURPOSES[largest])
    made = make_plan(profile, workload, memory_bytes=smallest, solver="on-demand")
    assert made.memory["device"].peak_bytes <= smallest
    assert check_plan(made, profile) == []
