"""How often each predictor is right: hit rates for each layer, on sequences not used to fit it.

A *step* is one decode position of a few sequences together, as a pass of a group meets it
(sequences without decode tokens lend those of their prompt). Before each MoE layer of a step every
predictor names K experts; the layer's *hit rate* is the share of the experts that the step's tokens
then choose which had been named, over all steps. Predictors go on learning while they are judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.documents import RoutingTrace
from planner.predictors import Predictor, PredictorName, Seen, Tables, best, make_predictor
from planner.routing import TraceArrays
from planner.scenarios import Sequences
from solvers.errors import OptionError, UnsupportedError

__all__ = [
    "JUDGED",
    "LayerRates",
    "Rate",
    "check_judgeable",
    "halves",
    "judge",
    "steps_of",
    "tables_of",
]

RowName = Literal["coactivation", "lookahead", "popularity", "uniform", "clairvoyant"]
JUDGED: tuple[RowName, ...] = ("coactivation", "lookahead", "popularity", "uniform", "clairvoyant")
"""In the order of the report; ``uniform`` is the expectation of a guess, not a draw."""

_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Rate:
    """What one predictor reached in one layer.

    Attributes
    ----------
    hit_rate
        Share of the experts needed that had been named.
    used
        Share of the experts named that were needed: of a prefetch's bytes, those not wasted.
    """

    hit_rate: float
    used: float


@dataclass(frozen=True, slots=True)
class LayerRates:
    """One MoE layer.

    Attributes
    ----------
    layer
        Its index among all layers of the model.
    needed
        Different experts that a step needs, on average.
    rates
        By predictor; None where the trace lacks what it looks at.
    """

    layer: int
    needed: float
    rates: dict[RowName, Rate | None]


def halves(sequences: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sequence numbers to fit on, and to judge on.

    Raises
    ------
    OptionError
        If there are fewer than two.
    """
    if sequences < 2:
        raise OptionError(
            "one half of the sequences fits the predictors and the other judges them: a trace of "
            f"{sequences} cannot be halved; profile with more prompts"
        )
    order = np.random.default_rng([seed, 2]).permutation(sequences)
    return np.sort(order[: sequences // 2]), np.sort(order[sequences // 2 :])


def check_judgeable(trace: RoutingTrace) -> None:
    """Refuse a trace that no predictor can be judged on.

    Raises
    ------
    UnsupportedError
        If its model has an encoder.
    """
    if trace.encoder:
        raise UnsupportedError(
            "predictors are neither judged nor followed with an encoder yet: prefetches go by the "
            "plan's lists there"
        )


def tables_of(arrays: TraceArrays, members: npt.NDArray[np.int64], experts: int) -> Tables:
    """Counts of some sequences of a trace, prompts and decode alike."""
    number = np.cumsum(np.diff(arrays.sequence, prepend=arrays.sequence[:1]) != 0)
    rows = np.isin(number, members)
    return Tables.of(arrays.take(rows), experts)


def judge(
    tables: Tables,
    arrays: TraceArrays,
    members: npt.NDArray[np.int64] | None,
    *,
    moe_layers: Sequence[int],
    count: int,
    group: int,
) -> tuple[LayerRates, ...]:
    """Hit rates of all predictors at ``count`` experts a layer.

    Parameters
    ----------
    tables
        What they were fitted on; is not changed.
    arrays, members
        The trace and the sequences of it to judge on (None: all); 4,096 steps at most.
    moe_layers
        Layers that the columns of the trace stand for.
    count
        Experts that each predictor names.
    group
        Sequences that are decoded together.
    """
    layers, experts = tables.chosen.shape
    names: tuple[PredictorName, ...] = ("coactivation", "lookahead", "popularity", "clairvoyant")
    predictors = {name: make_predictor(name, tables.copy()) for name in names}
    hits = {name: np.zeros(layers) for name in names}
    named = {name: np.zeros(layers) for name in names}
    needed: npt.NDArray[np.float64] = np.zeros(layers)
    steps = 0
    popularity = tables.copy()
    for rows in steps_of(arrays, experts, members, group):
        chosen = arrays.experts[rows]
        steps += 1
        for column in range(layers):
            actual = chosen[:, column]
            seen = Seen(
                chosen[:, column - 1] if column else None,
                None if arrays.ahead is None else arrays.ahead[rows, column],
                actual,
            )
            wanted = frozenset(actual.ravel().tolist())
            needed[column] += len(wanted)
            for name, predictor in predictors.items():
                picked = _pick(predictor, column, seen, popularity, count)
                named[name][column] += len(picked)
                hits[name][column] += len(wanted.intersection(picked))
            for predictor in predictors.values():
                predictor.observe(column, seen, actual)
            popularity.add(column, None, actual)
    found = []
    for column, layer in enumerate(moe_layers):
        rates: dict[RowName, Rate | None] = {}
        for row in JUDGED:
            if row == "uniform":
                share = min(count, experts) / experts
                rates[row] = Rate(share, float(needed[column]) / steps / experts)
            elif row == "lookahead" and (arrays.ahead is None or not column):
                rates[row] = None
            else:
                right, asked = float(hits[row][column]), float(named[row][column])
                rates[row] = Rate(right / float(needed[column]), right / max(asked, 1.0))
        found.append(LayerRates(layer, float(needed[column]) / steps, rates))
    return tuple(found)


def _pick(
    predictor: Predictor, column: int, seen: Seen, popularity: Tables, count: int
) -> tuple[int, ...]:
    return best(predictor.scores(column, seen), popularity.chosen[column], count)


def steps_of(
    arrays: TraceArrays, experts: int, members: npt.NDArray[np.int64] | None, group: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Rows of the trace that are decoded together, step by step; of some sequences, or of all."""
    sequences = Sequences.of(arrays, experts)
    if members is None:
        members = np.arange(sequences.count)
    made = 0
    for first in range(0, len(members), group):
        spans = [sequences.decode[member] for member in members[first : first + group]]
        for step in range(max(length for _, length in spans)):
            if made == _MOST_STEPS:
                return
            made += 1
            yield np.array([start + step for start, length in spans if step < length])
