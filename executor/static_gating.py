"""Static gating: each expert computes a fixed number of rows, whoever chose it.

The baseline of "Towards MoE Deployment" (arXiv 2303.06182), section 5, after GShard
(arXiv 2006.16668), section 2.2: a mask [tokens, experts, capacity] moves tokens to their experts'
rows by a product; rows that nobody takes are padding, tokens that find none are dropped. No plan
uses it: what a run computes is ``executor.operations``, which drops nothing.
``benchmarks/gating.py`` measures one against the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from executor.adapters import Adapter, ExpertWeights
from executor.operations import feed_expert
from planner.memory import EXPERT_TILE_ROWS
from solvers.errors import OptionError

__all__ = [
    "Dispatch",
    "dispatch",
    "dispatch_bytes",
    "expert_capacity",
    "static_experts",
    "waste_factor",
]


class Dispatch(NamedTuple):
    """Where each choice of an expert goes.

    Attributes
    ----------
    mask
        [tokens, experts, capacity] in the type that is computed in: 1 where a token takes a row of
        an expert.
    combine
        Likewise, the token's weight for the expert, in float32.
    dropped
        Choices that found no row.
    """

    mask: torch.Tensor
    combine: torch.Tensor
    dropped: int


def expert_capacity(tokens: int, top_k: int, experts: int, factor: float) -> int:
    """Rows of each expert: ``factor`` times its fair share of the choices, rounded up, and no more
    than there are tokens.

    Raises
    ------
    OptionError
        If ``factor`` is no positive number.
    """
    if not 0 < factor < math.inf:
        raise OptionError(f"a capacity factor of {factor:g} is not a positive number")
    return min(math.ceil(factor * tokens * top_k / experts), tokens)


def waste_factor(capacity: int, tokens: int, top_k: int, experts: int) -> float:
    """Rows that are computed, for each that was asked for: E C / (S k)."""
    return experts * capacity / (tokens * top_k)


def dispatch_bytes(tokens: int, experts: int, capacity: int, dtype_bytes: int) -> int:
    """Bytes of the mask and of the weights beside it."""
    return tokens * experts * capacity * (dtype_bytes + 4)


def dispatch(
    chosen: torch.Tensor, weights: torch.Tensor, experts: int, capacity: int, dtype: torch.dtype
) -> Dispatch:
    """Deal out the rows: first all tokens' first choices, then their second ones, and so on, in the
    order of the tokens.

    Parameters
    ----------
    chosen, weights
        Experts of each token and their weights: [tokens, top_k].
    experts, capacity
        How many there are, and rows of each.
    dtype
        Type of the mask.
    """
    tokens, top_k = chosen.shape
    flat = chosen.t().reshape(-1)
    asked = functional.one_hot(flat, experts)
    row = asked.cumsum(0).gather(1, flat[:, None])[:, 0] - 1
    kept = row < capacity
    token = torch.arange(tokens, device=chosen.device).repeat(top_k)
    place = (token[kept], flat[kept], row[kept])
    mask = torch.zeros((tokens, experts, capacity), dtype=dtype, device=chosen.device)
    mask[place] = 1
    combine = torch.zeros(mask.shape, dtype=torch.float32, device=chosen.device)
    combine[place] = weights.t().reshape(-1)[kept].float()
    return Dispatch(mask, combine, len(flat) - len(place[0]))


def static_experts(
    adapter: Adapter,
    rows: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    experts: Sequence[ExpertWeights],
    capacity: int,
    sums: torch.Tensor,
) -> int:
    """All experts of a layer, with ``capacity`` rows each, added to the tokens' sums.

    Parameters
    ----------
    adapter
        What lies between an expert's two products.
    rows
        Input of the router: [tokens, hidden].
    chosen, weights
        Its answer: [tokens, top_k].
    experts
        All of the layer's, in order.
    capacity
        Rows of each.
    sums
        [tokens, hidden] in float32.

    Returns
    -------
    int
        Choices that were dropped: they add nothing.
    """
    dealt = dispatch(chosen, weights, len(experts), capacity, rows.dtype)
    padded = dealt.mask.flatten(1).t() @ rows
    for expert, own in enumerate(experts):
        stop = (expert + 1) * capacity
        for first in range(expert * capacity, stop, EXPERT_TILE_ROWS):
            tile = padded[first : min(first + EXPERT_TILE_ROWS, stop)]
            tile.copy_(feed_expert(adapter, tile, own))
    sums.addmm_(dealt.combine.flatten(1), padded.float())
    return dealt.dropped
