"""Predictors and their hit rates, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.predictor_report import JUDGED, halves, judge, tables_of
from planner.predictors import PREDICTORS, Seen, Tables, best, make_predictor
from planner.routing import TraceArrays, coactivation
from solvers.errors import OptionError

# Two MoE layers, top-2 of 3 experts, three tokens.
EXPERTS = np.array([[[0, 1], [1, 2]], [[0, 2], [1, 0]], [[0, 1], [2, 1]]], dtype=np.uint16)
ARRAYS = TraceArrays(
    EXPERTS,
    np.array([0, 0, 1], dtype=np.int32),
    np.array([0, 1, 0], dtype=np.int32),
    np.zeros(3, dtype=np.uint8),
)


def test_tables_by_hand() -> None:
    tables = Tables.of(ARRAYS, 3)
    assert tables.chosen.tolist() == [[3, 2, 1], [1, 3, 2]]
    # 0 was chosen by all three, who then chose 1, 2; 1, 0; 2, 1. 1 by the first and the last.
    assert tables.joint.tolist() == [[[1, 3, 2], [0, 2, 2], [1, 1, 0]]]
    # the statistic that plans are made from says the same
    given = tables.joint[0] / tables.chosen[0][:, None]
    np.testing.assert_allclose(given, coactivation(ARRAYS, 3)[0])


def test_scores_by_hand() -> None:
    before = np.array([[0, 1], [0, 2]])
    ahead = np.array([[2, 1], [2, 0]])
    recorded = np.array([[0, 1], [0, 1]])
    seen = Seen(before, ahead, recorded)
    scores = {
        name: make_predictor(name, Tables.of(ARRAYS, 3)).scores(1, seen).tolist()
        for name in PREDICTORS
    }
    # Klotski: two choices of 0, one of 1, one of 2: 2 (1, 3, 2) / 3 + (0, 2, 2) / 2 + (1, 1, 0)
    assert scores.pop("coactivation") == pytest.approx([5 / 3, 4, 7 / 3])
    assert scores == {
        "lookahead": [1, 1, 2],
        "popularity": [1, 3, 2],
        "clairvoyant": [2, 2, 0],
        "none": [0, 0, 0],
    }


@pytest.mark.parametrize("name", ["coactivation", "lookahead", "popularity"])
def test_the_first_layer_has_popularity_only(name: str) -> None:
    predictor = make_predictor(name, Tables.of(ARRAYS, 3))  # type: ignore[arg-type]
    assert predictor.scores(0, Seen()).tolist() == [3, 2, 1]


def test_a_table_learns_while_it_is_used() -> None:
    predictor = make_predictor("coactivation", Tables.empty(2, 3))
    before = np.array([[1, 2]])
    assert predictor.scores(1, Seen(before)).tolist() == [0, 0, 0]
    predictor.observe(0, Seen(), before)
    predictor.observe(1, Seen(before), np.array([[0, 2]]))
    # the one token that chose 1 and 2 went on to 0 and 2, from each of them
    assert predictor.scores(1, Seen(np.array([[1, 0]]))).tolist() == [1, 0, 1]


def test_the_best_experts_in_order() -> None:
    scores = np.array([2.0, 5.0, 2.0, 0.0, 2.0])
    popularity = np.array([1, 1, 7, 9, 1])
    # 5 first; of the 2s the more popular, then the lower index; never one with score 0
    assert best(scores, popularity, 9) == (1, 2, 0, 4)
    assert best(scores, popularity, 2, without={1}) == (2, 0)


def test_hit_rates_by_hand() -> None:
    """Fitted on a trace in which layer 1 follows layer 0 (e -> e + 1 mod 3) and 0 is popular;
    judged on three steps of one sequence: choices 1, 2, 2 in layer 0, and 2, 0, 1 in layer 1.

    Layer 0 names the most popular, 0, thrice: no hit (counts 4, 1, 1; then 4, 2, 1; 4, 2, 2).
    Layer 1 by coactivation: 1 -> 2 (hit), 2 -> 0 (hit), 2 -> 0 (1 was chosen: no hit). By
    popularity (1, 4, 1 at first): 1 each time, a hit in the last step. The router looked ahead
    0, 0, 1: hits in the last two steps.
    """
    fit = np.array([[0, 1]] * 4 + [[1, 2], [2, 0]], dtype=np.uint16)[:, :, None]
    chosen = np.array([[1, 2], [2, 0], [2, 1]], dtype=np.uint16)[:, :, None]
    ahead = np.array([[0, 0], [0, 0], [0, 1]], dtype=np.uint16)[:, :, None]
    zeros = np.zeros(6, dtype=np.int32)
    steps = np.arange(6, dtype=np.int32)
    tables = Tables.of(TraceArrays(fit, zeros, steps, zeros.astype(np.uint8)), 3)
    judged = TraceArrays(chosen, zeros[:3], steps[:3], zeros[:3].astype(np.uint8), ahead)
    first, second = judge(tables, judged, None, moe_layers=(0, 2), count=1, group=1)
    assert (first.layer, second.layer, first.needed, second.needed) == (0, 2, 1.0, 1.0)
    assert tuple(second.rates) == JUDGED
    hits = {name: rate and rate.hit_rate for name, rate in first.rates.items()}
    assert hits.pop("uniform") == pytest.approx(1 / 3)
    assert hits == {"coactivation": 0, "lookahead": None, "popularity": 0, "clairvoyant": 1}
    hits = {name: rate and rate.hit_rate for name, rate in second.rates.items()}
    assert list(hits.values()) == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3, 1])
    # the tables that were handed over are as before
    assert tables.chosen.tolist() == [[4, 1, 1], [1, 4, 1]]


def test_hit_rates_of_a_group() -> None:
    """Two sequences decoded together choose 0 and 1: of two experts needed, one can be named; the
    longer sequence then goes on alone."""
    chosen = np.array([0, 2, 1], dtype=np.uint16)[:, None, None]
    sequence = np.array([0, 0, 1], dtype=np.int32)
    position = np.array([0, 1, 0], dtype=np.int32)
    arrays = TraceArrays(chosen, sequence, position, np.ones(3, dtype=np.uint8))
    (layer,) = judge(Tables.empty(1, 4), arrays, None, moe_layers=(0,), count=1, group=2)
    assert layer.needed == 1.5
    rate, guess = layer.rates["clairvoyant"], layer.rates["uniform"]
    assert rate is not None
    assert guess is not None
    assert (rate.hit_rate, rate.used) == (pytest.approx(2 / 3), 1)
    # a guess of one of four: finds a quarter, and 1.5 of 4 are needed
    assert (guess.hit_rate, guess.used) == (0.25, pytest.approx(1.5 / 4))


def test_halves_share_no_sequence() -> None:
    fitted, judged = halves(7, seed=3)
    assert sorted([*fitted, *judged]) == list(range(7))
    assert (len(fitted), len(judged)) == (3, 4)
    with pytest.raises(OptionError, match="a trace of 1 cannot be halved"):
        halves(1, seed=0)


def test_tables_of_some_sequences() -> None:
    # sequence 1 is the last token alone: 0, 1 then 2, 1
    tables = tables_of(ARRAYS, np.array([1]), 3)
    assert tables.chosen.tolist() == [[1, 1, 0], [0, 1, 1]]
