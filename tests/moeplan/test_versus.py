"""Which distances from a bound a comparison may show."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from moeplan.commands.versus import _html_table, _table, best_row, over_best, over_bound
from planner.compare import BoundRow, ComparisonRow
from planner.documents import ExpertError, FormName, Plan


def row(plan: Plan, solver: str, value: float, n: int = 2, eviction: str = "none") -> ComparisonRow:
    policy = dataclasses.replace(plan.policy, n_batches=n, eviction=eviction)
    own = dataclasses.replace(
        plan, policy=policy, objective=value, gap=(value - 4_800_000.0) / value, solver=solver
    )
    return ComparisonRow(
        solver=solver,
        objective="throughput",
        objective_value=value,
        bound=own.bound,
        gap=own.gap,
        plan_bound=None,
        clairvoyant_bound=None,
        price_of_information=None,
        winner=solver,
        stop=own.stop,
        tokens_per_second=200.0,
        n_batches=n,
        batch_size=2,
        peak_bytes=900,
        solve_seconds=1.0,
        plan=own,
    )


def with_forms(plan: Plan, forms: tuple[FormName, ...]) -> Plan:
    layers = tuple(dataclasses.replace(layer, forms=forms) for layer in plan.policy.layers)
    error = ExpertError("weights", 20_000_000, 10_000_000)
    policy = dataclasses.replace(plan.policy, layers=layers)
    return dataclasses.replace(plan, policy=policy, expert_error=error)


@pytest.fixture
def rows(plan: Plan) -> list[ComparisonRow]:
    """In ms a token: the best 5 with a bound of 4.8 for 2 x 2; the others in every relation."""
    clairvoyant = dataclasses.replace(plan, bound_class="clairvoyant")
    return [
        row(clairvoyant, "flexgen", 6_000_000.0),
        row(clairvoyant, "cpsat", 5_000_000.0),
        row(clairvoyant, "klotski", 10_000_000.0, n=1),
        row(clairvoyant, "lru", 8_000_000.0, eviction="lru"),
    ]


def test_one_bound_for_all_rows_and_only_where_it_holds(rows: list[ComparisonRow]) -> None:
    best = best_row(rows)
    assert best.solver == "cpsat"
    flexgen, cpsat, klotski, lru = rows
    assert over_bound(cpsat, best) == pytest.approx(0.04)  # (5 - 4.8) / 5
    assert over_bound(flexgen, best) == pytest.approx(0.2)  # (6 - 4.8) / 6
    assert over_bound(klotski, best) is None  # another n
    formed = dataclasses.replace(
        flexgen, plan=with_forms(flexgen.plan, ("int8-1", "own", "own", "own"))
    )
    assert over_bound(formed, best) is None  # other forms of experts
    assert over_bound(lru, best) is None  # caches, and the bound is for plans that do not
    shares = [over_best(one, best) for one in rows]
    assert shares == pytest.approx([0.2, 0.0, 1.0, 0.6])


def test_a_physical_bound_holds_for_caching_plans_too(rows: list[ComparisonRow]) -> None:
    physical = [
        dataclasses.replace(one, plan=dataclasses.replace(one.plan, bound_class="physical"))
        for one in rows
    ]
    assert over_bound(physical[3], best_row(physical)) == pytest.approx(0.4)  # (8 - 4.8) / 8


def test_without_a_bound_there_is_no_distance(rows: list[ComparisonRow]) -> None:
    bare = [dataclasses.replace(one, bound=None, gap=None) for one in rows]
    assert over_bound(bare[0], best_row(bare)) is None


def test_the_table_says_what_the_bound_is_for(rows: list[ComparisonRow]) -> None:
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(_table("throughput", rows, []))
    text = console.export_text()
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "20.0%" in lines["flexgen"]
    assert "100.0%" in lines["klotski"]
    assert "–" in lines["klotski"]
    assert "best row's bound, which is for n x b = 2 x 2 (clairvoyant)" in " ".join(text.split())
    assert "forms" not in text


def test_no_word_and_no_number_is_cut_in_80_columns(rows: list[ComparisonRow]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    longest = dataclasses.replace(
        rows[0],
        solver="milp-cbc",
        winner="all-experts",
        n_batches=16,
        batch_size=16,
        peak_bytes=100 << 20,
        tokens_per_second=1234.5,
        plan=dataclasses.replace(rows[0].plan, objective=634_567_890.0),
    )
    console.print(_table("bytes", [longest, *rows[1:]], []))
    text = console.export_text()
    assert "…" not in text
    assert "bytes, a token" in text
    for word in ("milp-cbc", "(all-experts)", "klotski", "lru", "cpsat", "tokens/s", "took"):
        assert word in text
    # value, over best, over bound, tokens/s, n x b, memory and time of a row stand in one line
    (line,) = [line.split() for line in text.splitlines() if line.startswith("milp-cbc")]
    assert line[6:11] == ["16", "x", "16", "100.0", "MiB"]
    assert len(line) == 13


def test_bounds_are_said_to_be_for_the_chosen_forms(rows: list[ComparisonRow]) -> None:
    forms: tuple[FormName, ...] = ("int8-1", "own", "own", "own")
    formed = [dataclasses.replace(one, plan=with_forms(one.plan, forms)) for one in rows]
    bound = BoundRow("belady", "throughput", 4_000_000.0, 2, 2, 1.0, of_forms=True)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(_table("throughput", formed, [bound]))
    text = " ".join(console.export_text().split())
    assert "throughput, a token" in text
    assert "belady (bound, chosen forms) 4 ms" in text
    assert "for other n x b, other forms of experts, or a plan that caches" in text
    page = _html_table("throughput", formed, [bound])
    assert page.rows[0][:2] == ("belady", "bound, chosen forms")
    assert "with others within the allowed error a plan may go below them" in page.words
    plain = _html_table("throughput", rows, [dataclasses.replace(bound, of_forms=False)])
    assert plain.rows[0][:2] == ("belady", "bound")
    assert "forms" not in plain.words


def test_a_bound_of_a_cache_holds_for_what_it_knows(rows: list[ComparisonRow], plan: Plan) -> None:
    def cached(value: float, prefetch: tuple[int, ...], eviction: str = "lru") -> ComparisonRow:
        layers = [
            dataclasses.replace(one, prefetch=prefetch, predictor="plan")
            for one in plan.policy.layers
        ]
        policy = dataclasses.replace(plan.policy, layers=tuple(layers))
        own = dataclasses.replace(plan, policy=policy, bound_class="cache")
        return row(own, "cpsat", value, eviction=eviction)

    bare, listed, uncached = cached(5e6, ()), cached(6e6, (3,)), cached(6e6, (3,), "none")
    # nothing that was copied ahead lies in the best row's cache: of one where it does nothing is
    # known; of plans without a cache and with one like it (6 - 4.8) / 6 is
    assert over_bound(listed, bare) is None
    assert over_bound(uncached, bare) == pytest.approx(0.2)
    assert over_bound(cached(6e6, ()), bare) == pytest.approx(0.2)
    # and a bound of the most that caches may do holds for all
    best = cached(5e6, (3,))
    for one in (listed, uncached, cached(6e6, ())):
        assert over_bound(one, best) == pytest.approx(0.2)
