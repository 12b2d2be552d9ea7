"""Plans of a link with credit: which of their numbers count it is said, and ranks go by those."""

from __future__ import annotations

import dataclasses
import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from moeplan.commands.common import plan_summary
from moeplan.commands.explain import sentences
from moeplan.commands.versus import _html_table, _table, best_row, over_best, over_bound
from moeplan.service.pages.comparisons import _matrix
from moeplan.words import explain_plan
from planner.compare import ComparisonRow
from planner.documents import Plan
from planner.explain import Explanation, Price


def credited(plan: Plan, objective: float, promised: float) -> Plan:
    predicted = dataclasses.replace(plan.predicted, credit_ns=5_000_000, objective=promised)
    return dataclasses.replace(plan, objective=objective, predicted=predicted)


def row(plan: Plan, solver: str) -> ComparisonRow:
    return ComparisonRow(
        solver=solver, objective="throughput", objective_value=plan.objective, bound=plan.bound,
        gap=plan.gap, plan_bound=None, clairvoyant_bound=None, price_of_information=None,
        winner=solver, stop=plan.stop, tokens_per_second=1e9 / plan.promised, n_batches=2,
        batch_size=2, peak_bytes=900, solve_seconds=1.0, plan=plan,
    )  # fmt: skip


@pytest.fixture
def rows(plan: Plan) -> list[ComparisonRow]:
    """In ms a token, at the lasting rate and with credit: 6 and 4.5, 5 and 4.8; a bound of 4.8."""
    bound = dataclasses.replace(plan, bound=4_800_000.0, bound_class="clairvoyant")
    return [
        row(credited(bound, 6_000_000.0, 4_500_000.0), "flexgen"),
        row(credited(bound, 5_000_000.0, 4_800_000.0), "cpsat"),
    ]


def test_ranks_go_by_what_is_promised(rows: list[ComparisonRow]) -> None:
    flexgen, cpsat = rows
    best = best_row(rows)
    assert best is flexgen
    assert over_best(cpsat, best) == pytest.approx(4.8 / 4.5 - 1)
    # a bound is of the lasting rate, and so is what is held against it
    assert over_bound(cpsat, best) == pytest.approx(0.04)  # (5 - 4.8) / 5
    out = io.StringIO()
    Console(file=out, width=200).print(_table("throughput", rows, []))
    lines = [line.split() for line in out.getvalue().splitlines()]
    shown = [words for words in lines if words[:1] in (["flexgen"], ["cpsat"])]
    assert [words[0] for words in shown] == ["flexgen", "cpsat"]
    assert [words[1] for words in shown] == ["4.5", "4.8"]
    assert [cells[0] for cells in _html_table("throughput", rows, []).rows] == ["flexgen", "cpsat"]


def test_pages_rank_alike(rows: list[ComparisonRow]) -> None:
    inputs = {"workload": {"requests": 4, "prompt_tokens": 4, "new_tokens": 2}}
    kept = [
        {
            "solver": one.solver, "winner": one.winner, "objective": one.objective,
            "objective_value": one.objective_value, "promised": one.promised, "gap": one.gap,
            "plan": one.solver,
        }
        for one in rows
    ]  # fmt: skip
    cells = _matrix(inputs, kept)
    assert cells["flexgen"]["throughput"].best
    assert cells["cpsat"]["throughput"].times == pytest.approx(4.8 / 4.5)
    for one in kept:
        del one["promised"]
    cells = _matrix(inputs, kept)
    assert cells["cpsat"]["throughput"].best
    assert cells["flexgen"]["throughput"].times == pytest.approx(6 / 5)


def test_words_and_summaries_say_which(plan: Plan) -> None:
    ahead = dataclasses.replace(
        credited(plan, 5_000_000.0, 4_000_000.0), chosen_over={"lru": 8_000_000.0}
    )
    (said,) = [text for text in explain_plan(ahead) if text.startswith("Objective throughput")]
    assert "5 ms a token on sequences kept apart" in said
    assert "With that credit, by which plans are compared, it takes 4 ms a token" in said
    assert "lru 2.00 times that" in said
    told = plan_summary(ahead)["predicted"]
    assert (told["objective"], told["credit_ns"]) == (4_000_000.0, 5_000_000)
    assert {"objective", "credit_ns"}.isdisjoint(plan_summary(plan)["predicted"])
    (said,) = [text for text in explain_plan(plan) if text.startswith("Objective throughput")]
    assert "credit" not in said


def test_an_explanation_says_which(plan: Plan) -> None:
    """A price in credited times, beside a bound without: 5.5 before, 4.4 with a tenth more."""
    ahead = credited(plan, 6_000_000.0, 5_500_000.0)
    price = Price(1e5, 4_800_000.0, 4_700_000.0, 5_500_000.0, 4_400_000.0, 2, 2, 0.0)
    found = Explanation((), None, None, 0, 0, 0.5, 0.5, "compute", {}, 0, price, price, None)
    told = " ".join(sentences(ahead, found))
    assert "4.4 ms a token (n x b = 2 x 2), 20.0% less than this plan's" in told
    assert "bound, which does not count what a link is ahead" in told
    assert "What counts: times here are with what the link is ahead" in told
    assert "What counts" not in " ".join(sentences(plan, found))


def test_offload_says_when_it_counts() -> None:
    from moeplan.commands.offload import _ahead

    def offload(credit_ns: int | None) -> Any:
        predicted = SimpleNamespace(credit_ns=credit_ns)
        return cast(Any, SimpleNamespace(devices=[SimpleNamespace(predicted=predicted)]))

    assert _ahead(offload(None)) == ""
    assert "ahead after a rest counts" in _ahead(offload(5))
