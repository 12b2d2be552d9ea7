"""Routing of a synthetic checkpoint: which popularity and persistence, and how to get them.

The hidden state of a synthetic model is its token's embedding, nearly. Embeddings along the walk
that generation takes are a first-order autoregression, so that a router's scores of two
neighbouring tokens are Gaussians with a correlation ``rho``, whatever the router's rows are. An
offset for each expert then sets how often it is chosen, and ``rho`` how often it is chosen again.
Both are fitted here by simulating those Gaussians under the family's own rule of choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from planner.routing import load_trace, popularity
from solvers.errors import OptionError

__all__ = [
    "Choice",
    "Router",
    "Target",
    "fit_correlation",
    "fit_routers",
    "grouped_choice",
    "repeat_probability",
    "target_routing",
]

Floats = npt.NDArray[np.float64]
Choice = Callable[[Floats], npt.NDArray[np.intp]]
"""From scores [tokens, experts] to the experts chosen [tokens, top_k]."""

_TOKENS = 8192
_ROUNDS = 28
_MOST_CURVES = 8
_MOST_OFTEN = 0.95

_SKEW = ((8, 0.5), (64, 2.0), (128, 4.0))
_EXCESS = 0.1


@dataclass(frozen=True, eq=False)
class Target:
    """What routing should look like.

    Attributes
    ----------
    shares
        float64 [curves, experts], each row descending with sum 1: the shares of choices of a
        layer's experts, for so many groups of consecutive layers.
    persistence
        Probability that an expert chosen by one token is chosen again by the next.
    source
        Where it comes from, for the checkpoint's own record.
    """

    shares: Floats
    persistence: float
    source: str


@dataclass(frozen=True, eq=False)
class Router:
    """A layer's score offsets, in no order of popularity, and the shares that they give."""

    offsets: Floats
    shares: Floats


def target_routing(
    experts: int,
    top_k: int,
    *,
    skew: float | None,
    persistence: float | None,
    routing: Path | None,
) -> Target:
    """The routing to aim at: a recorded one, or one described by two numbers.

    Shares fall off as ``exp(-skew * rank / experts)``, which fits real models better than a power
    law. Real values: 0.5 for Mixtral-8x7B (8 experts; 14,042 MMLU prompts, median of 32 layers), 2
    for OLMoE (64; median over layers and text domains), 4 for Qwen3-30B-A3B (128; 75,773 decoded
    tokens, median of 48 layers). The default lies between them by the logarithm of the number of
    experts.

    Persistence is what popularity alone gives, p0, and a share of the rest. Mixtral's paper (arXiv
    2401.04088, table 5) finds that one of a token's two experts is chosen again for 48.0%, 63.7%
    and 50.9% of the tokens in layers 0, 15 and 31: 56.6% on average along the layers, so 34% an
    expert, where MMLU's popularity inside a prompt alone gives 26.8%. The default is that excess:
    p0 + 0.1 (1 - p0).

    Raises
    ------
    OptionError
        If a number is out of range or contradicts ``routing``.
    DocumentError
        If the routing document cannot be read.
    """
    if routing is not None:
        if skew is not None or persistence is not None:
            raise OptionError("a recorded routing sets skew and persistence: give one or the other")
        return _recorded(routing, experts, top_k)
    if skew is None:
        counts, values = zip(*_SKEW, strict=True)
        skew = float(np.interp(np.log2(experts), np.log2(counts), values))
    if not 0 <= skew <= 50:
        raise OptionError(f"skew is {skew}; from 0 (all alike) to 50 is possible")
    shares = _capped(np.exp(-skew * (np.arange(experts) + 0.5) / experts)[None], top_k)
    if persistence is None:
        base = _base(shares, top_k)
        persistence = base + _EXCESS * (1 - base)
    if not 0 < persistence < 1:
        raise OptionError(f"persistence is {persistence}; a probability between 0 and 1 is needed")
    return Target(shares, persistence, f"skew {skew:.4g}, persistence {persistence:.4g}")


def _recorded(path: Path, experts: int, top_k: int) -> Target:
    """Popularity and persistence of a trace, carried over to another number of experts.

    Shares are read off at the same relative rank; persistence keeps its excess over popularity.
    """
    trace, arrays = load_trace(path)
    if trace.tokens == 0:
        raise OptionError(f"{path}: holds no token")
    descending = -np.sort(-popularity(arrays, trace.experts), axis=1)
    groups = np.array_split(descending, min(_MOST_CURVES, len(descending)))
    rank = (np.arange(experts) + 0.5) / experts
    known = (np.arange(trace.experts) + 0.5) / trace.experts
    curves = np.stack([np.interp(rank, known, group.mean(axis=0)) for group in groups])
    shares = _capped(np.maximum(curves, 1e-6), top_k)
    here, following = arrays.experts[:-1], arrays.experts[1:]
    beside = (np.diff(arrays.sequence) == 0) & (np.diff(arrays.position) == 1)
    # [tokens, layers]: both of them met the layer's router
    met = np.stack([arrays.met(column) for column in range(arrays.experts.shape[1])], axis=1)
    both = met[:-1] & met[1:] & beside[:, None]
    base = _base(shares, top_k)
    persistence = base
    if both.any():
        same = here[both][..., :, None] == following[both][..., None, :]
        repeated = float(same.any(axis=-1).mean())
        own = _base(descending, trace.top_k)
        persistence = base + max(repeated - own, 0.0) / max(1 - own, 1e-9) * (1 - base)
    return Target(shares, min(persistence, 0.99), f"recorded routing {trace.arrays_hash[:16]}")


def _capped(weights: Floats, top_k: int) -> Floats:
    """Shares in proportion to ``weights``, none chosen by more than 95% of the tokens."""
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    most = max(_MOST_OFTEN / top_k, 1.0 / weights.shape[1])
    for _ in range(weights.shape[1]):
        over = shares > most
        if not (shares > most * (1 + 1e-9)).any():
            break
        rest = np.where(over, 0.0, shares)
        room = 1 - most * over.sum(axis=1, keepdims=True)
        shares = np.where(over, most, rest / rest.sum(axis=1, keepdims=True) * room)
    return shares


def _base(shares: Floats, top_k: int) -> float:
    """How often a chosen expert is chosen by an unrelated token."""
    return float((top_k * shares**2).sum(axis=1).mean())


def grouped_choice(top_k: int, groups: int, kept: int, best: int) -> Choice:
    """The top-k scores out of the ``kept`` groups whose ``best`` highest scores sum to most.

    One group: plain top-k. Scores count after a sigmoid, which only matters to sums.
    """

    def choose(scores: Floats) -> npt.NDArray[np.intp]:
        if groups > 1:
            tokens, experts = scores.shape
            grouped = scores.reshape(tokens, groups, -1)
            highest = np.partition(grouped, -best, axis=2)[:, :, -best:]
            highest = (1 / (1 + np.exp(-highest))).sum(axis=2)
            worst = np.argsort(highest, axis=1)[:, : groups - kept]
            mask = np.zeros((tokens, groups), dtype=bool)
            np.put_along_axis(mask, worst, True, axis=1)
            scores = np.where(mask[:, :, None], -np.inf, grouped)
            scores = scores.reshape(tokens, experts)
        return np.argpartition(scores, -top_k, axis=1)[:, -top_k:]

    return choose


def fit_routers(
    target: Target,
    layers: int,
    choice: Choice,
    groups: int,
    top_k: int,
    rng: np.random.Generator,
) -> list[Router]:
    """Offsets for each of ``layers`` routers, whose other scores are standard Gaussians."""
    experts = target.shares.shape[1]
    noise = rng.standard_normal((_TOKENS, experts))
    # popular experts are spread over the groups; layers differ by what keeps groups together
    arrangement = rng.permutation(experts)
    fitted = []
    for curve in target.shares:
        offsets = np.zeros(experts)
        asked = np.clip(curve[arrangement] * top_k, 1e-4, 1 - 1e-4)
        chosen = np.zeros(experts)
        for turn in range(_ROUNDS):
            picks = choice(noise + offsets)
            chosen = np.bincount(picks.ravel(), minlength=experts) / _TOKENS
            step = _odds(asked) - _odds(np.clip(chosen, 0.5 / _TOKENS, 1 - 0.5 / _TOKENS))
            # log odds move faster than a Gaussian's offset: damped, and more so towards the end
            offsets += (0.5 if turn < _ROUNDS // 2 else 0.25) * step
            offsets -= offsets.mean()
        fitted.append((offsets, chosen / top_k))
    routers = []
    for layer in range(layers):
        offsets, shares = fitted[layer * len(fitted) // layers]
        order = np.arange(experts).reshape(groups, -1)[rng.permutation(groups)]
        order = rng.permuted(order, axis=1).ravel()
        routers.append(Router(offsets[order], shares[order]))
    return routers


def _odds(probability: Floats) -> Floats:
    odds: Floats = np.log(probability / (1 - probability))
    return odds


def repeat_probability(
    routers: list[Router], rho: float, choice: Choice, rng: np.random.Generator
) -> float:
    """How often an expert is chosen again where neighbouring scores correlate by ``rho``."""
    # routers of one curve differ by a permutation only
    few = {tuple(np.sort(router.offsets)): router for router in routers}
    found = []
    for router in few.values():
        shape = (_TOKENS // 2, len(router.offsets))
        first = rng.standard_normal(shape)
        second = rho * first + np.sqrt(1 - rho**2) * rng.standard_normal(shape)
        here, following = choice(first + router.offsets), choice(second + router.offsets)
        chosen = np.zeros(shape, dtype=bool)
        np.put_along_axis(chosen, here, True, axis=1)
        found.append(np.take_along_axis(chosen, following, axis=1).mean())
    return float(np.mean(found))


def fit_correlation(
    routers: list[Router], persistence: float, choice: Choice, seed: int
) -> tuple[float, float]:
    """The correlation that gives ``persistence``, and what it gives; 0 where that is too much."""
    low, high = 0.0, 0.995

    def gives(rho: float) -> float:
        # the same draws each time, so that more correlation is never less persistence
        return repeat_probability(routers, rho, choice, np.random.default_rng(seed))

    if gives(low) >= persistence:
        return low, gives(low)
    for _ in range(12):
        middle = (low + high) / 2
        if gives(middle) < persistence:
            low = middle
        else:
            high = middle
    return high, gives(high)
