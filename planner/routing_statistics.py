"""A routing trace in figures: who is chosen, how many at once, who together, how steadily.

All are of the tokens that were recorded; ``planner.routing`` has popularity and co-activation of
neighbouring layers.
"""

from __future__ import annotations

from math import lgamma

import numpy as np
import numpy.typing as npt

from planner.routing import TraceArrays, popularity

__all__ = ["activated", "coverage", "drift", "effective_experts", "information", "pairs"]

Floats = npt.NDArray[np.float64]


def coverage(shares: Floats) -> Floats:
    """Share of each layer's choices that its K most popular experts cover: [layers, experts], of
    K = 1, 2, ... in each row."""
    covered: Floats = np.cumsum(np.sort(shares, axis=1)[:, ::-1], axis=1)
    return covered


def effective_experts(shares: Floats) -> Floats:
    """[layers]: how many experts chosen alike would be as undecided, exp of the entropy."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    found: Floats = np.exp(-(shares * logs).sum(axis=1))
    return found


def activated(arrays: TraceArrays, expert_count: int, tokens: tuple[int, ...]) -> Floats:
    """Share of each layer's experts that N tokens choose, at least one of them.

    Parameters
    ----------
    arrays
        The trace; the N tokens are any N that met the layer's router, drawn without putting back.
    expert_count
        Experts of a layer.
    tokens
        The sizes N, none larger than the tokens that met a router.

    Returns
    -------
    float64 [sizes, layers]
        1 - C(T - c, N) / C(T, N) of an expert that c of T tokens chose, as a mean over experts.
    """
    layers = arrays.experts.shape[1]
    found = np.zeros((len(tokens), layers))
    for layer in range(layers):
        asked = arrays.chosen(layer)
        chosen = np.bincount(asked.ravel(), minlength=expert_count)
        for row, size in enumerate(tokens):
            missed = [_missed(len(asked), int(count), size) for count in chosen]
            found[row, layer] = 1 - sum(missed) / expert_count
    return found


def _missed(total: int, count: int, size: int) -> float:
    """Chance that ``size`` of ``total`` tokens hold none of ``count``."""
    if size > total - count:
        return 0.0
    logs = lgamma(total - count + 1) - lgamma(total - count - size + 1)
    return float(np.exp(logs - lgamma(total + 1) + lgamma(total - size + 1)))


def pairs(arrays: TraceArrays, expert_count: int, layer: int) -> Floats:
    """P(f chosen, too / e chosen) for one token in one layer: [experts, experts], 0 for e = f."""
    chosen = arrays.chosen(layer).astype(np.int64)
    keys = chosen[:, :, None] * expert_count + chosen[:, None, :]
    joint = np.bincount(keys.ravel(), minlength=expert_count**2)
    table = joint.reshape(expert_count, expert_count).astype(np.float64)
    own = table.diagonal().copy()
    np.fill_diagonal(table, 0.0)
    return table / np.maximum(own, 1)[:, None]


def information(following: Floats, shares: Floats, top_k: int) -> float:
    """How much one choice in a layer tells of one in the next, in bits.

    Parameters
    ----------
    following
        P(f chosen in the next layer / e chosen in this one), [experts, experts]; rows sum to top_k.
    shares
        Popularity in this layer, [experts].
    top_k
        Choices of a token.
    """
    joint = shares[:, None] * following / top_k
    alone = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    there = joint > 0
    return max(float((joint[there] * np.log2(joint[there] / alone[there])).sum()), 0.0)


def drift(arrays: TraceArrays, expert_count: int) -> Floats | None:
    """[layers]: total variation between popularity in prefill and in decode, from 0 (alike) to 1.

    None where one of the two is missing, or, as with an encoder, no layer has both.
    """
    if arrays.encoder:
        return None
    parts = []
    for phase in (0, 1):
        mask = arrays.phase == phase
        if not mask.any():
            return None
        parts.append(popularity(arrays.take(mask), expert_count))
    apart: Floats = np.abs(parts[0] - parts[1]).sum(axis=1) / 2
    return apart
