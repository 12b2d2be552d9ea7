"""Held-out loss, simple language models to compare with, and statistics of expert usage.

Losses are in nats; every token after a document's opening end-of-text token is predicted once,
including the closing one. Usage counts are shaped ``[layers, experts]``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from corpus import Document
from numpy.typing import NDArray
from transformers import Qwen3MoeForCausalLM

__all__ = [
    "BigramModel",
    "DocumentScore",
    "half_split_distances",
    "jensen_shannon_bits",
    "repeat_shares",
    "sample_rank",
    "score_document",
    "shares",
    "total_usage",
    "total_variation",
]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


class BigramModel:
    """Unigram with add-one smoothing, and Witten-Bell interpolation of bigram and unigram.

    p(b | a) = (count(a, b) + types(a) * p(b)) / (count(a) + types(a)), where types(a) is how many
    different tokens followed a (Witten and Bell 1991): an interpolation whose weight needs no
    tuning.
    """

    def __init__(self, tokens: Counts, vocabulary_size: int) -> None:
        """``tokens``: one stream of ids, shape ``[n]``, documents divided by end-of-text."""
        ones = np.bincount(tokens, minlength=vocabulary_size) + 1.0
        self.unigram: Floats = ones / ones.sum()
        pairs = np.bincount(
            tokens[:-1] * vocabulary_size + tokens[1:], minlength=vocabulary_size**2
        ).reshape(vocabulary_size, vocabulary_size)
        types = (pairs > 0).sum(axis=1, keepdims=True).astype(np.float64)
        total = pairs.sum(axis=1, keepdims=True) + types
        smoothed = pairs + types * self.unigram
        self.bigram: Floats = np.where(
            total > 0, smoothed / np.maximum(total, 1.0), self.unigram[None, :]
        )

    def nats(self, tokens: Counts) -> tuple[float, float]:
        """Total loss of ``tokens[1:]`` under the unigram and under the bigram model."""
        unigram = -np.log(self.unigram[tokens[1:]]).sum()
        bigram = -np.log(self.bigram[tokens[:-1], tokens[1:]]).sum()
        return float(unigram), float(bigram)


@dataclass(frozen=True)
class DocumentScore:
    """What one pass over a document yields."""

    document: Document
    predicted_tokens: int
    model_nats: float
    usage: Counts
    """Router choices, shape ``[layers, experts]``; sums to top-k x tokens in each layer."""
    repeats: Counts
    """Choices that the token before, in the same window, also made, shape ``[layers]``."""
    adjacent_tokens: int
    """Tokens that have a token before them in their window."""


@torch.inference_mode()
def score_document(
    model: Qwen3MoeForCausalLM, document: Document, tokens: Counts, window_tokens: int
) -> DocumentScore:
    """Loss and routing of one document, read in windows that do not see each other.

    ``tokens`` has shape ``[n]`` and opens and closes with end-of-text.
    """
    top_k = model.config.num_experts_per_tok
    experts = model.config.num_experts
    usage = np.zeros((model.config.num_hidden_layers, experts), dtype=np.int64)
    repeats = np.zeros(model.config.num_hidden_layers, dtype=np.int64)
    nats, adjacent = 0.0, 0
    ids = torch.from_numpy(tokens)
    for start in range(0, len(ids) - 1, window_tokens):
        window = ids[start : start + window_tokens + 1]
        output = model(input_ids=window[None, :-1], output_router_logits=True, use_cache=False)
        loss = torch.nn.functional.cross_entropy(output.logits[0], window[1:], reduction="sum")
        nats += float(loss)
        adjacent += len(window) - 2
        for layer, logits in enumerate(output.router_logits):
            chosen = torch.zeros_like(logits, dtype=torch.bool)
            chosen.scatter_(1, logits.topk(top_k, dim=-1).indices, True)
            usage[layer] += chosen.sum(dim=0).numpy()
            repeats[layer] += int((chosen[1:] & chosen[:-1]).sum())
    return DocumentScore(document, len(ids) - 1, nats, usage, repeats, adjacent)


def total_usage(scores: Sequence[DocumentScore]) -> Counts:
    """Summed usage of several documents, shape ``[layers, experts]``."""
    return np.asarray(np.sum([score.usage for score in scores], axis=0), dtype=np.int64)


def shares(usage: Counts) -> Floats:
    """Usage as a distribution over experts in each layer."""
    return np.asarray(usage / usage.sum(axis=-1, keepdims=True), dtype=np.float64)


def total_variation(p: Floats, q: Floats) -> Floats:
    """Half the L1 distance over the last axis: 0 for equal, 1 for disjoint distributions."""
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2, dtype=np.float64)


def jensen_shannon_bits(p: Floats, q: Floats) -> Floats:
    """Jensen-Shannon divergence over the last axis: 0 for equal, 1 for disjoint distributions."""
    middle = (p + q) / 2

    def divergence(a: Floats) -> Floats:
        ratio = np.where(a > 0, a / np.where(middle > 0, middle, 1.0), 1.0)
        return np.asarray((a * np.log(ratio)).sum(axis=-1) / math.log(2), dtype=np.float64)

    return (divergence(p) + divergence(q)) / 2


def half_split_distances(scores: Sequence[DocumentScore], splits: int, seed: int) -> Floats:
    """The null reference: total variation between random halves of one domain's documents.

    Whole documents are split, not tokens, since tokens of one document resemble each other.

    Returns
    -------
    Distances of shape ``[splits, layers]``.
    """
    rng = np.random.default_rng(seed)
    distances = []
    for _ in range(splits):
        order = rng.permutation(len(scores))
        half = len(order) // 2
        left = shares(total_usage([scores[i] for i in order[:half]]))
        right = shares(total_usage([scores[i] for i in order[half:]]))
        distances.append(total_variation(left, right))
    return np.stack(distances)


def repeat_shares(scores: Sequence[DocumentScore], top_k: int) -> tuple[Floats, Floats]:
    """How persistent routing is: the share of choices that the token before made too.

    Returns
    -------
    That share, and what it would be if tokens chose independently of each other with the same
    overall usage; both of shape ``[layers]``.
    """
    choices = top_k * sum(score.adjacent_tokens for score in scores)
    repeated = np.sum([score.repeats for score in scores], axis=0) / choices
    independent = top_k * (shares(total_usage(scores)) ** 2).sum(axis=-1)
    return np.asarray(repeated, dtype=np.float64), np.asarray(independent, dtype=np.float64)


def sample_rank(document: Document) -> str:
    """Order in which documents are drawn for the sample that the log lists one by one."""
    return hashlib.sha256(f"sample/{document.domain}/{document.key}".encode()).hexdigest()
