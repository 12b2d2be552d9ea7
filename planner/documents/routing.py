"""Routing documents: which experts each token chose, and statistics of it.

Bulk arrays live in an ``.npz`` beside the JSON; the JSON holds the array file's SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from planner.documents.base import Added, Count, Document, Hash, Positive, Source
from solvers.counting import counted

__all__ = ["RoutingStats", "RoutingTrace"]


@dataclass(frozen=True)
class RoutingTrace(Document):
    """A routing trace. Arrays (``load_trace`` in ``planner.routing``):

    ``experts``  uint16 [tokens, moe_layers, top_k], ``sequence`` int32 [tokens],
    ``position`` int32 [tokens] (0-based in its sequence), ``phase`` uint8 [tokens] (0 prefill,
    1 decode). Rows are sorted by sequence, then position. ``ahead``, alike ``experts``, may be
    there, too: what each layer's router says of the hidden state of the MoE layer before.

    Of a model with an encoder, ``encoder`` says how many of ``moe_layers`` are that one's, the
    first ones. A prompt's token (phase 0) met their routers alone, a decoder's (phase 1; its start
    token is the first, behind the prompt) the others alone; what it did not meet is 0.
    """

    kind: ClassVar[str] = "routing"

    model_hash: Hash
    source: Source
    tokens: Count
    sequences: Count
    moe_layers: tuple[Count, ...]
    experts: Positive
    top_k: Positive
    arrays_file: str
    arrays_hash: Hash
    encoder: Added[Positive] = None

    def __post_init__(self) -> None:
        _check_shape(self.moe_layers, self.experts, self.top_k)
        if self.sequences > self.tokens:
            raise ValueError(
                f"{counted(self.sequences, 'sequence')} of only {counted(self.tokens, 'token')}"
            )
        if self.encoder is not None and self.encoder >= len(self.moe_layers):
            raise ValueError("encoder: no MoE layer is left to the decoder")


@dataclass(frozen=True)
class RoutingStats(Document):
    """Statistics of a trace. Arrays: ``popularity`` float64 [moe_layers, experts] (share of
    choices, each row sums to 1) and ``coactivation`` float64 [moe_layers - 1, experts, experts]
    (row e: P(f chosen in the next MoE layer / e chosen in this one); a row's sum is top_k).
    """

    kind: ClassVar[str] = "routing-stats"

    trace_hash: Hash
    source: Source
    tokens: Count
    moe_layers: tuple[Count, ...]
    experts: Positive
    top_k: Positive
    arrays_file: str
    arrays_hash: Hash

    def __post_init__(self) -> None:
        _check_shape(self.moe_layers, self.experts, self.top_k)


def _check_shape(moe_layers: tuple[int, ...], experts: int, top_k: int) -> None:
    """What a trace and its statistics share."""
    if any(left >= right for left, right in pairwise(moe_layers)):
        raise ValueError("moe_layers does not ascend")
    if top_k > experts:
        raise ValueError(f"top_k is {top_k} of only {counted(experts, 'expert')}")
