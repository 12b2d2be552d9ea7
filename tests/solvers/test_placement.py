"""Placement: rules by hand, search and exact engines against brute force, bounds below both."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.errors import OptionError
from solvers.outcome import Stop
from solvers.placement.bounds import scenario_bounds, stage_bounds
from solvers.placement.choose import SEARCH, Origins, choose
from solvers.placement.exact import ENGINES, solve_exactly
from solvers.placement.problem import (
    Placement,
    PlacementProblem,
    balance,
    check_placement,
    device_loads,
)
from solvers.placement.rules import RULES, anti_correlation, contiguous, greedy, replicate
from solvers.placement.search import search
from solvers.placement.traffic import relabel, traffic
from solvers.registry import Limits


def problem_of(loads: list[list[int]], room: list[int], replicas: int = 0) -> PlacementProblem:
    """One stage: ``loads`` [scenarios][items]."""
    return PlacementProblem(np.array(loads)[:, None, :], np.array([room]), replicas)


def homes(placement: Placement) -> list[list[int]]:
    """Devices of each item of the only stage."""
    return [np.flatnonzero(row).tolist() for row in placement.held[0]]


def placement_of(devices: list[list[int]], count: int) -> Placement:
    held = np.zeros((1, len(devices), count), dtype=np.bool_)
    for item, there in enumerate(devices):
        held[0, item, there] = True
    return Placement(held)


def test_balance_by_hand() -> None:
    problem = problem_of([[6, 2, 1, 1], [1, 1, 4, 4], [0, 0, 0, 0]], [2, 2])
    # {0, 1} against {2, 3}: 8 of 10 and 2 of 10; then 2 and 8; a scenario without load counts not
    found = balance(problem, placement_of([[0], [0], [1], [1]], 2))
    assert found.average_max_load == pytest.approx(0.8)
    assert found.max_load == pytest.approx(0.8)
    assert found.worst_deviation == pytest.approx(0.3)
    # {0, 2} against {1, 3}: 7 and 3; 5 and 5
    found = balance(problem, placement_of([[0], [1], [0], [1]], 2))
    assert found.average_max_load == pytest.approx((0.7 + 0.5) / 2)
    assert found.worst_deviation == pytest.approx(0.2)


def test_copies_take_equal_parts() -> None:
    problem = problem_of([[6, 2, 2]], [2, 2], replicas=1)
    loads = device_loads(problem, placement_of([[0, 1], [0], [1]], 2))
    assert loads[0, 0].tolist() == pytest.approx([0.5, 0.5])


def test_contiguous_by_hand() -> None:
    # 5 items on 2 devices: 3 and 2; where the first has room for 2 only, the rest goes on
    assert homes(contiguous(problem_of([[1] * 5], [3, 3]))) == [[0], [0], [0], [1], [1]]
    assert homes(contiguous(problem_of([[1] * 5], [2, 3]))) == [[0], [0], [1], [1], [1]]
    assert homes(contiguous(problem_of([[1] * 5], [4, 1]))) == [[0], [0], [0], [0], [1]]


def test_greedy_by_hand() -> None:
    # means 8 7 6 5: 0 -> device 0, 1 -> 1, 2 -> 1 (8 against 7), 3 -> 0: both 13
    problem = problem_of([[8, 7, 6, 5]], [2, 2])
    assert homes(greedy(problem)) == [[0], [1], [1], [0]]
    # equal loads are dealt out in turn
    assert homes(greedy(problem_of([[1] * 4], [2, 2]))) == [[0], [1], [0], [1]]
    # a full device gets nothing, however empty it is: 9 alone, then room is on device 1 only
    assert homes(greedy(problem_of([[9, 1, 1, 1]], [1, 3]))) == [[0], [1], [1], [1]]


def test_anti_correlation_by_hand() -> None:
    # 0 and 1 rise and fall together, 2 and 3 the other way round; all means are equal (1/4).
    problem = problem_of([[3, 3, 1, 1], [1, 1, 3, 3]], [2, 2])
    # 0 -> device 0 (tie). 1: device 0 costs 1/4 + 1/2, device 1 costs 0. 2: device 0 and 1 both
    # cost 1/4 - 1/2: tie, device 0. 3: device 1.
    assert homes(anti_correlation(problem)) == [[0], [1], [0], [1]]
    assert balance(problem, anti_correlation(problem)).average_max_load == pytest.approx(0.5)
    # a constant load has no correlation, so equal loads are dealt out as greedy deals them
    flat = problem_of([[1] * 4, [1] * 4], [2, 2])
    assert homes(anti_correlation(flat)) == homes(greedy(flat))


def test_replicate_by_hand() -> None:
    # replicas go to 8 (8 -> 4 each), then to the next heaviest for each copy, 5 (2.5 each);
    # copies by weight: 4, 4 (item 0), 2.5, 2.5 (item 1), 2, 1
    problem = problem_of([[8, 5, 2, 1]], [3, 3], replicas=2)
    placed = replicate(problem)
    assert placed.copies[0].tolist() == [2, 2, 1, 1]
    assert homes(placed) == [[0, 1], [0, 1], [0], [1]]
    without = problem_of([[8, 5, 2, 1]], [3, 3])
    assert homes(replicate(without)) == homes(greedy(without))


def test_more_devices_than_items_with_replicas() -> None:
    problem = problem_of([[4, 2, 2]], [1, 1, 1, 1], replicas=1)
    assert balance(problem, replicate(problem)).average_max_load == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("loads", "room", "replicas", "words"),
    [
        ([[1, 1, 1]], [1, 1], 0, "do not fit"),
        ([[1, 1]], [2, 2], 3, "at most 2"),
        ([[1, -1]], [1, 1], 0, "negative"),
    ],
)
def test_impossible_problems(
    loads: list[list[int]], room: list[int], replicas: int, words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        problem_of(loads, room, replicas)


def every_placement(items: int, room: npt.NDArray[np.int64], replicas: int) -> list[Placement]:
    devices = len(room)
    homes = [
        list(chosen)
        for size in range(1, devices + 1)
        for chosen in combinations(range(devices), size)
        if size - 1 <= replicas
    ]
    found = []
    for choice in product(homes, repeat=items):
        placement = placement_of([list(one) for one in choice], devices)
        if (placement.held[0].sum(axis=0) <= room).all() and (
            placement.copies.sum() <= items + replicas
        ):
            found.append(placement)
    return found


@st.composite
def small_problems(draw: st.DrawFn) -> PlacementProblem:
    items = draw(st.integers(2, 5))
    devices = draw(st.integers(2, 3))
    replicas = draw(st.integers(0, 1 if items <= 4 else 0))
    least = -(-(items + replicas) // devices)
    room = draw(st.lists(st.integers(least, items), min_size=devices, max_size=devices))
    row = st.lists(st.integers(0, 9), min_size=items, max_size=items)
    loads = draw(st.lists(row, min_size=1, max_size=4))
    return problem_of(loads, room, replicas)


@settings(max_examples=40)
@given(small_problems())
def test_rules_search_and_engines_against_brute_force(problem: PlacementProblem) -> None:
    _, _, items = problem.load.shape
    every = every_placement(items, problem.room[0], problem.replicas)
    best = min(balance(problem, one).average_max_load for one in every)
    # no scenario by itself is below its own bound
    floors = scenario_bounds(problem)[:, 0]
    loads = np.stack([device_loads(problem, one)[:, 0].max(axis=1) for one in every])
    assert (loads.min(axis=0) >= floors - 1e-12).all()
    assert stage_bounds(problem)[0] <= best + 1e-12
    for rule in RULES.values():
        placed = rule(problem)
        assert check_placement(problem, placed) == []
        assert balance(problem, placed).average_max_load >= best - 1e-12
        found = search(problem, [placed], kicks=2)
        assert check_placement(problem, found) == []
        assert (
            best - 1e-12
            <= balance(problem, found).average_max_load
            <= balance(problem, placed).average_max_load + 1e-12
        )
    for engine in ENGINES:
        exact = solve_exactly(problem, engine, Limits(2.0, 20.0))
        assert check_placement(problem, exact.placement) == []
        value = balance(problem, exact.placement).average_max_load
        assert exact.bound <= best + 1e-9
        if exact.stop is Stop.OPTIMAL:
            # shares are counted in millionths
            assert value == pytest.approx(best, abs=1e-5)


def test_checker_names_each_fault() -> None:
    problem = problem_of([[3, 2, 1]], [2, 2], replicas=0)
    good = placement_of([[0], [1], [1]], 2)
    assert check_placement(problem, good) == []

    def reasons(devices: list[list[int]]) -> set[str]:
        return {fault.reason for fault in check_placement(problem, placement_of(devices, 2))}

    assert reasons([[], [1], [1]]) == {"missing"}
    assert reasons([[0, 1], [0], [1]]) == {"replicas"}
    assert reasons([[0], [0], [0]]) == {"room"}
    wrong = check_placement(problem, placement_of([[0], [1]], 2))
    assert [fault.reason for fault in wrong] == ["shape"]


def test_search_beats_greedy_where_loads_move_together() -> None:
    # means are equal; only pairs that take turns stay even: 0 with 2, 1 with 3
    problem = problem_of([[4, 4, 1, 1], [1, 1, 4, 4]] * 10, [2, 2])
    start = placement_of([[0], [0], [1], [1]], 2)
    assert balance(problem, start).average_max_load == pytest.approx(0.8)
    assert balance(problem, search(problem, [start])).average_max_load == pytest.approx(0.5)


def test_what_is_being_done_is_told() -> None:
    random = np.random.default_rng(2)
    problem = PlacementProblem(
        random.multinomial(64, np.full(4, 1 / 4), (20, 3)), np.full((3, 2), 2)
    )
    told: list[tuple[int, int, str]] = []
    solve_exactly(problem, "cpsat", Limits(0.1, 5.0), progress=lambda *one: told.append(one))
    assert told == [
        (0, 0, "choosing between rules and a search"),
        (0, 0, "local search"),
        *((stage, 3, "integer programs") for stage in range(3)),
    ]


def test_a_search_that_does_not_pay_is_not_used() -> None:
    # independent noise around equal means: nothing is to be learnt, so a rule's placement stays
    random = np.random.default_rng(5)
    noise = random.multinomial(64, np.full(16, 1 / 16), size=(64, 1))
    problem = PlacementProblem(noise, np.full((1, 4), 4))
    placed = solve_exactly(problem, "cpsat", Limits(0.01, 5.0)).placement
    rules = [rule(problem).held for rule in RULES.values()]
    assert any((placed.held == held).all() for held in rules)


def test_the_same_sequences_again_make_nothing_sure() -> None:
    # 0 and 2 rise together, 1 and 3 against them; all means are equal, so that greedy deals out
    # {0, 2} | {1, 3}: 0.8. In the items' order {0, 1} | {2, 3} has 0.5 in each scenario.
    problem = problem_of([[4, 1, 4, 1], [1, 4, 1, 4]] * 32, [2, 2])
    kinds = np.arange(64) // 2 % 2
    sure = choose(problem, Limits(1.0, 5.0), Origins(kinds))
    assert (sure.start.held == contiguous(problem).held).all()
    assert [one.stages for one in sure.candidates] == [1, 0, 0, 0, 0]
    # of two sequences one is learnt from and one chooses, however often they are drawn
    again = choose(problem, Limits(1.0, 5.0), Origins(kinds, batches=2))
    assert (again.start.held == replicate(problem).held).all()
    assert not again.searched.any()


def test_what_was_compared_is_told() -> None:
    # contiguous learns nothing: on the odd scenarios {0, 1} | {2, 3} has 8 of 10, then 5 of 10
    problem = problem_of([[9, 9, 9, 9], [6, 2, 1, 1], [9, 9, 9, 9], [1, 4, 3, 2]] * 8, [2, 2])
    told = choose(problem, Limits(1.0, 5.0), Origins()).candidates
    assert [one.name for one in told] == [*RULES, SEARCH]
    assert told[0].average_max_load == pytest.approx(0.65)
    assert sum(one.stages for one in told) == 1
    few = choose(problem, Limits(1.0, 5.0), Origins(np.arange(32) % 4)).candidates
    assert [one.name for one in few] == [*RULES, SEARCH]
    # each of four kinds alike: even, 0.8, even, 0.5
    assert few[0].average_max_load == pytest.approx((0.5 + 0.8 + 0.5 + 0.5) / 4)


def test_traffic_and_labels_by_hand() -> None:
    held = np.zeros((2, 2, 2), dtype=np.bool_)
    held[0, 0, 0] = held[0, 1, 1] = True
    held[1, 0, 1] = held[1, 1, 0] = True
    crossed = Placement(held)
    # 9 rows go from item 0 to item 0, 1 from 1 to 0
    joint = np.array([[[9.0, 0.0], [1.0, 0.0]]])
    link = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert traffic(crossed, joint, link) == 9.0
    problem = PlacementProblem(np.ones((1, 2, 2), dtype=np.int64), np.ones((2, 2), dtype=np.int64))
    better = relabel(problem, crossed, joint, link)
    assert traffic(better, joint, link) == 1.0
    assert check_placement(problem, better) == []


@pytest.mark.parametrize(
    ("of_a", "expected"), [(3, [[0], [0], [1], [1]]), (4, [[0], [1], [0], [1]])]
)
def test_of_few_kinds_each_is_left_out_in_turn(of_a: int, expected: list[list[int]]) -> None:
    # five kinds, like A or like B. Fullest device: {0, 1} | {2, 3} has 0.65 in both;
    # {0, 2} | {1, 3} has 0.5 in A and 0.85 in B; {0, 3} | {1, 2} has 0.85 in A and 0.5 in B.
    a, b = [50, 15, 0, 35], [50, 15, 35, 0]
    # 3 A and 2 B: the second is best on all, (3 x 0.5 + 2 x 0.85) / 5 = 0.64, but on what they have
    # not seen all others come to 0.73. Without an A they see A, A, B, B and take the first, 0.65
    # there; without a B they see A, A, A, B and take the second, 0.85 there. The items' order,
    # the first, is ahead of the search by 0, 0, 0, 0.2, 0.2: 0.08, with a standard error of 0.049.
    # 4 A and 1 B: without an A they take the second, 0.5, without the B as well, 0.85: 0.57.
    problem = problem_of(([a] * of_a + [b] * (5 - of_a)) * 4, [2, 2])
    origins = Origins(np.arange(20) % 5)
    placed = solve_exactly(problem, "cpsat", Limits(1.0, 5.0), origins).placement
    # the search may number devices the other way round
    assert homes(placed) in (expected, [[1 - one for one in there] for there in expected])
