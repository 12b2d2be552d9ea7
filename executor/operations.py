"""What a pass computes, operation by operation. The profiler measures these, the runtime runs them.

Dynamic gating as in "Towards MoE Deployment" (arXiv 2303.06182), section 5: tokens are sorted by
expert, each expert computes the tokens that chose it, however many; no capacity, no padding, no
dropped token.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from executor.adapters import Adapter, ExpertWeights, FeedForward
from executor.attention import Attention
from executor.embedding import Embedding
from executor.quantized import QuantizedMatrix
from executor.state import GroupState
from executor.threads import ComputeThreads
from planner.documents import ModelSpec, Policy
from planner.memory import (
    EXPERT_TILE_ROWS,
    ROUTER_TILE_ROWS,
    expert_tile_rows,
)

__all__ = ["Chooser", "ExpertWeights", "Operations", "feed_expert", "feed_rows", "tile_of"]

Chooser = Callable[[list[int], list[torch.Tensor]], list[int]]
"""From unfinished sequences and the logits of each, [vocabulary], to their next tokens."""

_FEW_VALUES = 16 << 10
"""Up to so many values, rows are added by one thread."""


def tile_of(rows: int, dtype_bytes: int) -> tuple[int, int]:
    """How many of ``rows`` the next tile takes, and how many rows it computes.

    Each row count that oneDNN has not met costs it a millisecond and 0.7 MiB of generated code.
    So in reduced precision only a few occur: from 128 rows a power of two, below it the next of
    ``planner.memory.ROW_BUCKETS``, with rows that are thrown away.
    """
    computed = expert_tile_rows(rows, dtype_bytes)
    return min(rows, computed), computed


class Operations:
    """The operations of one model on one group of sequences.

    Parameters
    ----------
    adapter
        The model's modules, bound to weights by whoever calls.
    state
        The group; ``state.begin`` comes before any operation of a pass.
    embedding
        Where embedding rows come from.
    policy
        Tiles of the head, and threads.

    Attributes
    ----------
    threads
        Around a pass; set before each operation.
    """

    def __init__(
        self, adapter: Adapter, state: GroupState, embedding: Embedding, policy: Policy
    ) -> None:
        self._adapter, self._state, self._embedding = adapter, state, embedding
        self._model: ModelSpec = adapter.model
        self._tile_rows = policy.head_tile_rows
        self.threads = ComputeThreads(policy.threads)
        self._attention = self._make_attention()
        self._bucketed = self._attention.bucketed
        self._order = torch.empty(0, dtype=torch.int64)
        self._weights = torch.empty(0)
        self._offsets: list[int] = []
        self._last = torch.empty(0)
        self._best = torch.empty(0)
        self._best_token = torch.empty(0, dtype=torch.int64)
        self._alive: list[int] = []
        self._logits: list[torch.Tensor] = []
        self.chooser: Chooser | None = None
        """Chooses the next tokens by whole rows of logits; None: the likeliest."""
        self.chosen = torch.empty(0, 0, dtype=torch.int64)
        """Experts that the last router chose: [tokens, top_k]."""

    def _make_attention(self) -> Attention:
        return Attention(self._adapter, self._state)

    def begin(self, counts: list[int], past: list[int], longest: int = 0) -> None:
        """Begin a pass: tokens of each sequence now and before.

        Where new sequences begin in reduced precision, their prompts are padded as one of
        ``longest`` tokens would be, so that few shapes occur.
        """
        self._state.begin(counts, past, longest if self._bucketed else 0)
        self._attention.begin()

    def reach(self, members: range) -> int:
        """Columns of keys and values that this pass looks at or writes, of any of these
        sequences."""
        return self._attention.reach(members)

    def embed(self, tokens: list[int]) -> None:
        """Embedding rows of the pass's ``tokens`` (packed) into the residual stream."""
        state = self._state
        ids = np.asarray(tokens, dtype=np.int64)
        if state.even:
            rows = state.hidden.view(state.tokens, -1)
            self._embedding.gather(ids, rows)
            self._scale(rows, self._adapter.embedding_scale)
            return
        # padded positions are never looked at, but must hold numbers
        state.hidden.zero_()
        self._embedding.gather(ids, state.normed)
        self._scale(state.normed, self._adapter.embedding_scale)
        for index, count in enumerate(state.counts):
            start = state.starts[index]
            state.hidden[index, :count] = state.normed[start : start + count]

    @staticmethod
    def _scale(rows: torch.Tensor, factor: float) -> torch.Tensor:
        return rows if factor == 1 else rows.mul_(factor)

    def attention(self, layer: int, batch: int) -> None:
        """Norm, attention and residual of one batch, and the norm behind it."""
        self.threads("attention", self._state.batch_tokens(batch))
        self._attention.run(layer, batch)

    def shared_expert(self, layer: int) -> None:
        """Begin the tokens' sums with what they pass beside the experts that they choose."""
        self.threads("shared_expert", self._state.tokens)
        self._feed_forward(self._adapter.shared_experts(layer))

    def choose(self, layer: int) -> torch.Tensor:
        """Choose experts for all tokens of the group (``chosen``); returns float32 weights, alike.

        Where no shared expert has done so, it begins the tokens' sums.
        """
        state = self._state
        normed = state.normed
        if not self._model.layers[layer].shared_expert_bytes:
            state.sums.zero_()
        scores, experts = [], []
        for first in range(0, state.tokens, ROUTER_TILE_ROWS):
            weights, chosen = self._adapter.route(layer, normed[first : first + ROUTER_TILE_ROWS])
            scores.append(weights.float())
            experts.append(chosen)
        self.chosen = experts[0] if len(experts) == 1 else torch.cat(experts)
        return scores[0] if len(scores) == 1 else torch.cat(scores)

    def look_ahead(self, layer: int) -> torch.Tensor:
        """What the router of ``layer``, a later one, says of the input of the last one's: experts
        [tokens, top_k]. Its dense part must be bound, and no attention have begun since."""
        normed = self._state.normed
        parts = [
            self._adapter.route(layer, normed[first : first + ROUTER_TILE_ROWS])[1]
            for first in range(0, self._state.tokens, ROUTER_TILE_ROWS)
        ]
        return torch.cat(parts)

    def router(self, layer: int) -> list[int]:
        """Choose experts for all tokens of the group; returns each expert's tokens."""
        self.threads("router", self._state.tokens)
        weights = self.choose(layer)
        flat = self.chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts: list[int] = torch.bincount(
            flat, minlength=self._model.layers[layer].experts
        ).tolist()
        self._weights = weights.reshape(-1).index_select(0, order)[:, None]
        order.div_(self._model.layers[layer].top_k, rounding_mode="floor")
        # the last expert's rows, too, may be padded: with token 0
        self._order = functional.pad(order, (0, EXPERT_TILE_ROWS)) if self._bucketed else order
        self._offsets = [0]
        for count in counts:
            self._offsets.append(self._offsets[-1] + count)
        return counts

    def expert(self, expert: int, weights: ExpertWeights) -> None:
        """Compute one expert for the tokens that chose it, and add it to their sums."""
        state = self._state
        normed, sums = state.normed, state.sums
        dtype_bytes = self._adapter.dtype.itemsize
        first, stop = self._offsets[expert], self._offsets[expert + 1]
        while first < stop:
            rows, computed = tile_of(stop - first, dtype_bytes)
            self.threads("expert", computed)
            # rows beyond those of this expert are other tokens' and thrown away
            tokens = self._order[first : first + computed]
            result = feed_expert(self._adapter, normed.index_select(0, tokens), weights)
            result = result[:rows].float()
            result.mul_(self._weights[first : first + rows])
            _add_rows(sums, tokens[:rows], result)
            first += rows

    def host_rows(self, expert: int) -> torch.Tensor:
        """The tokens that chose an expert, [rows, hidden], in host memory."""
        normed = self._state.normed
        first, stop = self._offsets[expert], self._offsets[expert + 1]
        spans = range(first, stop, EXPERT_TILE_ROWS)
        parts = [self._order[at : min(at + EXPERT_TILE_ROWS, stop)] for at in spans]
        return torch.cat([normed.index_select(0, part).cpu() for part in parts])

    def add_outputs(self, expert: int, outputs: torch.Tensor) -> None:
        """Add an expert's outputs, float32 [rows, hidden], to the sums of the tokens that chose it,
        by their weights."""
        sums, begin = self._state.sums, self._offsets[expert]
        for first in range(0, len(outputs), EXPERT_TILE_ROWS):
            part = outputs[first : first + EXPERT_TILE_ROWS].to(sums.device)
            at = begin + first
            part = part * self._weights[at : at + len(part)]
            _add_rows(sums, self._order[at : at + len(part)], part)

    def dense_mlp(self, layer: int) -> None:
        """Feed-forward of a layer without experts, and its residual."""
        self.threads("dense_mlp", self._state.tokens)
        self._feed_forward(self._adapter.dense_mlp(layer))
        self._combine()

    def _feed_forward(self, weights: FeedForward | ExpertWeights) -> None:
        """A feed-forward of all tokens, into their sums."""
        state = self._state
        normed = state.normed
        for first in range(0, state.tokens, EXPERT_TILE_ROWS):
            rows = normed[first : first + EXPERT_TILE_ROWS]
            if isinstance(weights, ExpertWeights):
                result = feed_expert(self._adapter, rows, weights)
                state.sums[first : first + EXPERT_TILE_ROWS] = result
                continue
            gate = functional.silu(functional.linear(rows, weights.gate), inplace=True)
            gate.mul_(functional.linear(rows, weights.up))
            result = functional.linear(gate, weights.down)
            if weights.switch is not None:
                result.mul_(functional.linear(rows, weights.switch).sigmoid_())
            state.sums[first : first + EXPERT_TILE_ROWS] = result

    def combine(self) -> None:
        """Close a layer: add the sums to the residual stream."""
        self.threads("combine", self._state.tokens)
        self._combine()

    def _combine(self) -> None:
        state = self._state
        sums = self._scale(state.sums, self._adapter.residual_scale)
        if state.even:
            hidden = state.hidden.view(state.tokens, -1)
            for first in range(0, state.tokens, EXPERT_TILE_ROWS):
                # cast first: an addition of two types is not vectorised
                part = sums[first : first + EXPERT_TILE_ROWS].to(hidden.dtype)
                hidden[first : first + EXPERT_TILE_ROWS].add_(part)
            return
        hidden = state.hidden
        for index, count in enumerate(state.counts):
            start = state.starts[index]
            for first in range(0, count, EXPERT_TILE_ROWS):
                stop = min(first + EXPERT_TILE_ROWS, count)
                part = sums[start + first : start + stop].to(hidden.dtype)
                hidden[index, first:stop].add_(part)

    def head_begin(self) -> list[int]:
        """Final norm of each unfinished sequence's last token; returns those sequences."""
        rows, alive = self._state.last_rows()
        self._last = self._adapter.final_norm(rows)
        device = self._last.device
        self._best = torch.full((len(alive),), -torch.inf, dtype=self._last.dtype, device=device)
        self._best_token = torch.zeros(len(alive), dtype=torch.int64, device=device)
        self._alive = alive
        if self.chooser is not None:
            self._logits = self._state.logits(len(alive), self._model.vocab_size)
        return alive

    def head_tile(self, tile: int, weight: torch.Tensor) -> torch.Tensor:
        """Logits of one tile of the vocabulary, [sequences, tile rows]; keeps the best so far."""
        self.threads("head", len(self._last))
        first = tile * self._tile_rows
        bias = self._adapter.head_bias
        if bias is not None:
            bias = bias[first : first + len(weight)]
        logits = functional.linear(self._last, weight, bias)
        if self._adapter.logits_scale != 1:
            logits.div_(self._adapter.logits_scale)
        best, token = logits.max(dim=1)
        token += first
        # of equal logits the lowest token wins, as in a search over all; tiles come in any order
        # NaN is larger than nothing, but must not get lost
        better = (
            best.isnan() | (best > self._best) | ((best == self._best) & (token < self._best_token))
        )
        self._best = torch.where(better, best, self._best)
        self._best_token = torch.where(better, token, self._best_token)
        if self.chooser is not None:
            row = 0
            for part in self._logits:
                part[:, first : first + len(weight)] = logits[row : row + len(part)]
                row += len(part)
        return logits

    def sample(self) -> list[int]:
        """The next token of each unfinished sequence: the likeliest, or what ``chooser`` says."""
        if self.chooser is not None and not self.not_finite():
            return self.chooser(self._alive, [row for part in self._logits for row in part])
        tokens: list[int] = self._best_token.tolist()
        return tokens

    def not_finite(self) -> list[int]:
        """Which of the unfinished sequences have logits that are no numbers to choose by."""
        found: list[int] = (~self._best.isfinite()).nonzero().flatten().tolist()
        return found


def feed_expert(adapter: Adapter, rows: torch.Tensor, weights: ExpertWeights) -> torch.Tensor:
    """An expert's output for ``rows`` [rows, hidden], not yet weighted."""
    both = _product(rows, weights.gate_up, weights.gate_up_bias)
    return _product(adapter.activate(both), weights.down, weights.down_bias)


def feed_rows(adapter: Adapter, rows: torch.Tensor, weights: ExpertWeights) -> torch.Tensor:
    """The same in float32, in the tiles of ``Operations.expert``."""
    dtype_bytes = rows.dtype.itemsize
    outputs, first = [], 0
    while first < len(rows):
        count, computed = tile_of(len(rows) - first, dtype_bytes)
        part = rows[first : first + count]
        if computed > count:
            part = functional.pad(part, (0, 0, 0, computed - count))
        outputs.append(feed_expert(adapter, part, weights)[:count].float())
        first += count
    return torch.cat(outputs)


def _product(
    rows: torch.Tensor, matrix: torch.Tensor | QuantizedMatrix, bias: torch.Tensor | None
) -> torch.Tensor:
    if isinstance(matrix, torch.Tensor):
        return functional.linear(rows, matrix, bias)
    result = matrix.product(rows)
    return result if bias is None else result.add_(bias)


def _add_rows(sums: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor) -> None:
    """``sums[tokens] += rows``; no token occurs twice, as a token chooses an expert once."""
    if rows.numel() > _FEW_VALUES:
        sums.index_add_(0, tokens, rows)
        return
    # for few rows waking the other threads, as index_add_ does, takes longer than adding
    sums.index_copy_(0, tokens, rows.add_(sums.index_select(0, tokens)))
