"""The benchmark of rankings: Kendall's tau and the choice of strategies."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


@pytest.fixture(scope="module")
def ranking() -> Any:
    return importlib.import_module("benchmarks.ranking")


@pytest.mark.parametrize(
    ("pairs", "tau"),
    [
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(1, 30), (2, 20), (3, 10)], -1.0),
        # of 6 pairs (1,2)<->(2,1) disagrees: (5 - 1) / 6
        ([(1, 2), (2, 1), (3, 3), (4, 4)], 2 / 3),
        # x ties once: 2 of 3 pairs agree, 2 differ in x, 3 in y: 2 / sqrt(6)
        ([(1, 1), (1, 2), (3, 3)], 2 / 6**0.5),
        ([(1, 1), (1, 2)], None),
    ],
)
def test_kendalls_tau(ranking: Any, pairs: list[tuple[float, float]], tau: float | None) -> None:
    found = ranking.kendall_tau(pairs)
    assert found is None if tau is None else found == pytest.approx(tau)


def test_strategies_run_and_do_not_search(ranking: Any) -> None:
    names = ranking.strategies()
    assert {"all-experts", "on-demand", "klotski", "flexgen"} <= set(names)
    assert not {"cpsat", "milp", "belady"} & set(names)


def test_an_order_takes_two(ranking: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        ranking.main(["x", "--solvers", "lru", "lru"])
    assert left.value.code == 2
    assert "two or more" in capsys.readouterr().err
