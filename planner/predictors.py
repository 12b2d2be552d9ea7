"""Predictors of the experts that a layer will need, before its router has spoken.

All answer the same question with one signature: given what is known when the MoE layer before has
been routed (``Seen``), a score for each expert of the next; the experts with the highest scores are
what a prefetch would bring. They learn while they are used (``observe``).

``coactivation``
    Klotski (arXiv 2502.06888), the correlation-aware expert prefetcher: a table of how often f
    was chosen in a layer by tokens that chose e in the one before; a pass's score of f is the sum
    of P(f / e) over the choices e of all its tokens.
``lookahead``
    Eliseev and Mazur (arXiv 2312.17238), speculative loading: the next layer's router applied to
    this layer's hidden state; the score is the number of tokens for which it names the expert.
``popularity``
    How often the expert was chosen so far: what a fixed prefetch list knows.
``clairvoyant``
    The choices themselves, from a recorded trace: the limit of all others.
``none``
    Nothing.

The first MoE layer has none before it: ``coactivation`` and ``lookahead`` take popularity there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from planner.routing import TraceArrays

__all__ = [
    "PREDICTORS",
    "Predictor",
    "PredictorName",
    "Seen",
    "Tables",
    "best",
    "make_predictor",
]

PredictorName = Literal["coactivation", "lookahead", "popularity", "clairvoyant", "none"]
PREDICTORS: tuple[PredictorName, ...] = get_args(PredictorName)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Choices = npt.NDArray[np.integer]


class Seen(NamedTuple):
    """What is known of one pass when a layer's experts are predicted; each [tokens, top_k].

    Attributes
    ----------
    before
        Choices in the MoE layer before; None for the first.
    ahead
        What the layer's own router says of the hidden state of the MoE layer before; None where
        nobody asked it.
    recorded
        The layer's choices in a recorded trace; None without one.
    """

    before: Choices | None = None
    ahead: Choices | None = None
    recorded: Choices | None = None


@dataclass(frozen=True, eq=False)
class Tables:
    """Counts of a routing trace, which go on counting.

    Attributes
    ----------
    chosen
        int64 [moe_layers, experts]: tokens that chose each expert.
    joint
        int64 [moe_layers - 1, experts, experts]: tokens that chose e in a layer and f in the next.
    """

    chosen: Counts
    joint: Counts

    @classmethod
    def empty(cls, layers: int, experts: int) -> Tables:
        """Of nothing."""
        return cls(
            np.zeros((layers, experts), np.int64),
            np.zeros((max(layers - 1, 0), experts, experts), np.int64),
        )

    @classmethod
    def of(cls, arrays: TraceArrays, experts: int) -> Tables:
        """Of a whole trace."""
        tables = cls.empty(arrays.experts.shape[1], experts)
        for column in range(arrays.experts.shape[1]):
            before, chosen = None, arrays.chosen(column)
            if column and column != arrays.encoder:
                before, chosen = arrays.successive(column - 1)
            tables.add(column, before, chosen)
        return tables

    def add(self, column: int, before: Choices | None, chosen: Choices) -> None:
        """Count ``chosen`` [tokens, top_k] of MoE layer ``column``, and pairs with ``before``."""
        experts = self.chosen.shape[1]
        self.chosen[column] += _count(chosen, experts)
        if column and before is not None:
            pairs = before.astype(np.int64)[:, :, None] * experts + chosen[:, None, :]
            self.joint[column - 1] += _count(pairs, experts**2).reshape(experts, experts)

    def copy(self) -> Tables:
        """A table of its own."""
        return Tables(self.chosen.copy(), self.joint.copy())


class Predictor(Protocol):
    """See the module."""

    name: PredictorName

    def scores(self, column: int, seen: Seen) -> Floats:
        """Scores of the experts of MoE layer ``column`` [experts]; 0: nothing speaks for it."""
        ...

    def observe(self, column: int, seen: Seen, chosen: Choices) -> None:
        """The layer's router has spoken: ``chosen`` [tokens, top_k]."""
        ...


class _Popularity:
    name: PredictorName = "popularity"

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def scores(self, column: int, seen: Seen) -> Floats:
        counts: Floats = self._tables.chosen[column].astype(np.float64)
        return counts

    def observe(self, column: int, seen: Seen, chosen: Choices) -> None:
        self._tables.add(column, seen.before, chosen)


class _Coactivation(_Popularity):
    name: PredictorName = "coactivation"

    def scores(self, column: int, seen: Seen) -> Floats:
        if not column or seen.before is None:
            return super().scores(column, seen)
        tables = self._tables
        given = np.maximum(tables.chosen[column - 1], 1)
        weight = _count(seen.before, len(given)) / given
        scores: Floats = weight @ tables.joint[column - 1]
        return scores


class _Lookahead(_Popularity):
    name: PredictorName = "lookahead"

    def scores(self, column: int, seen: Seen) -> Floats:
        if not column or seen.ahead is None:
            return super().scores(column, seen)
        return _count(seen.ahead, self._tables.chosen.shape[1]).astype(np.float64)


class _Clairvoyant(_Popularity):
    name: PredictorName = "clairvoyant"

    def scores(self, column: int, seen: Seen) -> Floats:
        if seen.recorded is None:
            return np.zeros(self._tables.chosen.shape[1])
        return _count(seen.recorded, self._tables.chosen.shape[1]).astype(np.float64)


class _Nothing(_Popularity):
    name: PredictorName = "none"

    def scores(self, column: int, seen: Seen) -> Floats:
        return np.zeros(self._tables.chosen.shape[1])


_CLASSES: dict[PredictorName, type[_Popularity]] = {
    one.name: one for one in (_Coactivation, _Lookahead, _Popularity, _Clairvoyant, _Nothing)
}


def make_predictor(name: PredictorName, tables: Tables) -> Predictor:
    """A predictor that begins with ``tables``, which are its own from now on."""
    return _CLASSES[name](tables)


def best(
    scores: Floats, popularity: Counts, count: int, without: Collection[int] = ()
) -> tuple[int, ...]:
    """The ``count`` experts with the highest scores above 0, best first.

    Parameters
    ----------
    scores, popularity
        [experts]; of equal scores the more popular expert comes first, then the lower index.
    count
        At most so many.
    without
        Experts that need no prefetch.
    """
    order = np.lexsort((-popularity, -scores))
    wanted = (int(expert) for expert in order if scores[expert] > 0)
    return tuple(expert for expert in wanted if expert not in without)[:count]


def _count(chosen: Choices, kinds: int) -> Counts:
    return np.bincount(chosen.ravel().astype(np.int64), minlength=kinds).astype(np.int64)
