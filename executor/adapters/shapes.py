"""What adapters hand over: an expert, a feed-forward, what attention keeps of a token."""

from __future__ import annotations

from typing import NamedTuple

import torch

from executor.quantized import QuantizedMatrix

__all__ = ["CacheShape", "ExpertWeights", "FeedForward"]


class ExpertWeights(NamedTuple):
    """One expert: ``gate_up`` [2 x intermediate, hidden], ``down`` [hidden, intermediate], and
    their biases."""

    gate_up: torch.Tensor | QuantizedMatrix
    down: torch.Tensor | QuantizedMatrix
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


class FeedForward(NamedTuple):
    """A feed-forward that every token passes: a dense MLP or shared experts.

    ``switch`` [1, hidden]: the result is multiplied by the sigmoid of its product with the input.
    """

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    switch: torch.Tensor | None = None


class CacheShape(NamedTuple):
    """What attention keeps of one token in each of two tensors: heads, and values of each."""

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
