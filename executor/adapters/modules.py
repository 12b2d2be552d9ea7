"""The commonest decoder layer, in torch alone: grouped-query attention, RMS norms, softmax router.

What transformers' modules of the same families compute, operation for operation, with parameters of
the same names; the modules themselves come with much that no plan needs, in memory that experts
could have (docs/executor.md, Memory). Weights have no shape here: each layer's are bound before it
computes. As a layer's experts are the executor's, its feed-forward computes nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

__all__ = ["DecoderLayer", "LayerKind", "QueryNorm", "RMSNorm", "Rotary"]

QueryNorm = Literal["none", "all", "each"]

_SHARED_HEADS_WIDTH = 256
"""Up to so many values a head, torch's attention may share key heads among queries by itself."""


class LayerKind(NamedTuple):
    """What differs between families, and between their checkpoints.

    Attributes
    ----------
    kv_heads, head_dim
        Heads of keys and values, and values of each.
    epsilon
        What norms add to a variance.
    qkv_bias, output_bias
        Whether projections have biases.
    query_norm
        Norm of queries and of keys: of all heads together, or of each.
    clip
        Queries, keys and values are kept between its negative and it; None: as they are.
    normed_choice
        Whether the weights of a token's experts sum to 1.
    float32_choice
        Whether they stay in float32, or take the model's type.
    shared
        Whether tokens pass a shared expert with a switch, too.
    """

    kv_heads: int
    head_dim: int
    epsilon: float
    qkv_bias: bool = False
    output_bias: bool = False
    query_norm: QueryNorm = "none"
    clip: float | None = None
    normed_choice: bool = True
    float32_choice: bool = False
    shared: bool = False


class _Linear(nn.Module):
    """A product with a matrix that is bound later."""

    bias: torch.Tensor | None

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))
        self.register_parameter("bias", nn.Parameter(torch.empty(0)) if bias else None)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.weight, self.bias)


class RMSNorm(nn.Module):
    """Root mean square norm (arXiv 1910.07467), computed in float32.

    Parameters
    ----------
    size
        Not used: its weights are bound later.
    eps
        What is added to the mean square.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))
        self._epsilon = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``hidden`` [..., size], normed."""
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self.weight * wide.to(hidden.dtype)


class Rotary(nn.Module):
    """Rotary embedding (arXiv 2104.09864), its plain form: the same whatever the context.

    Parameters
    ----------
    theta
        Base of the frequencies.
    size
        Values of a head.
    """

    def __init__(self, theta: float, size: int) -> None:
        super().__init__()
        powers = torch.arange(0, size, 2, dtype=torch.float32) / size
        self._frequencies = nn.Buffer(1.0 / (theta**powers), persistent=False)

    def forward(
        self, like: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [sequences, tokens, size] of ``positions`` [sequences, tokens], of the
        type of ``like``."""
        angles = positions[..., None].float() * self._frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


class _Attention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245)."""

    def __init__(self, kind: LayerKind, layer: int) -> None:
        super().__init__()
        self._kind, self._layer = kind, layer
        self.q_proj = _Linear(bias=kind.qkv_bias)
        self.k_proj = _Linear(bias=kind.qkv_bias)
        self.v_proj = _Linear(bias=kind.qkv_bias)
        self.o_proj = _Linear(bias=kind.output_bias)
        if kind.query_norm != "none":
            self.q_norm = RMSNorm(0, kind.epsilon)
            self.k_norm = RMSNorm(0, kind.epsilon)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None,
        cache: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attention of ``hidden_states`` [sequences, tokens, hidden]; as transformers' it returns
        scores beside it, of which there are none."""
        kind = self._kind
        parts = [
            self.q_proj(hidden_states),
            self.k_proj(hidden_states),
            self.v_proj(hidden_states),
        ]
        if kind.query_norm == "all":
            parts[0], parts[1] = self.q_norm(parts[0]), self.k_norm(parts[1])
        if kind.clip is not None:
            for part in parts:
                part.clamp_(min=-kind.clip, max=kind.clip)
        queries, keys, values = (part.unflatten(-1, (-1, kind.head_dim)) for part in parts)
        if kind.query_norm == "each":
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        cosines, sines = (part.unsqueeze(1) for part in position_embeddings)
        queries = _rotated(queries.transpose(1, 2), cosines, sines)
        keys, values = _rotated(keys.transpose(1, 2), cosines, sines), values.transpose(1, 2)
        if cache is not None:
            keys, values = cache.update(keys, values, self._layer)
        mixed = _attend(queries, keys, values, attention_mask)
        return self.o_proj(mixed.flatten(2)), None


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosines + turned * sines


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Causal attention of ``queries`` [sequences, heads, tokens, size], or what ``mask`` says:
    [sequences, tokens, heads, size].

    torch shares key heads by itself only without a mask; else it takes a path that is 5 to 20
    times slower in bfloat16. Single tokens share them as if the queries of one were a sequence,
    and several have them repeated.
    """
    sequences, heads, tokens, size = queries.shape
    key_heads, shares = keys.shape[1], False
    if key_heads < heads:
        if mask is None and size <= _SHARED_HEADS_WIDTH:
            shares = True
        elif tokens == 1:
            # a mask has one row for all heads
            queries = queries.reshape(sequences, key_heads, heads // key_heads, size)
        else:
            keys, values = _repeated(keys, heads), _repeated(values, heads)
    mixed = functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None and tokens > 1,
        scale=size**-0.5,
        enable_gqa=shares,
    )
    return mixed.reshape(sequences, heads, tokens, size).transpose(1, 2).contiguous()


def _repeated(keys: torch.Tensor, heads: int) -> torch.Tensor:
    sequences, key_heads, tokens, size = keys.shape
    wide = keys[:, :, None].expand(sequences, key_heads, heads // key_heads, tokens, size)
    return wide.reshape(sequences, heads, tokens, size)


class _Router(nn.Module):
    """The likeliest experts by softmax over all."""

    def __init__(self, kind: LayerKind, top_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))
        self._kind, self._top_k = kind, top_k

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [rows, experts], weights and experts [rows, top_k]."""
        logits = functional.linear(rows, self.weight)
        scores = functional.softmax(logits, dim=-1, dtype=torch.float32)
        weights, experts = scores.topk(self._top_k, dim=-1)
        if self._kind.normed_choice:
            weights /= weights.sum(dim=-1, keepdim=True)
        return logits, weights if self._kind.float32_choice else weights.to(logits.dtype), experts


class _FeedForward(nn.Module):
    """Matrices of a gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = _Linear(), _Linear(), _Linear()


class _Sparse(nn.Module):
    """What a layer with experts has beside them."""

    def __init__(self, kind: LayerKind, top_k: int) -> None:
        super().__init__()
        self.gate = _Router(kind, top_k)
        if kind.shared:
            self.shared_expert = _FeedForward()
            self.shared_expert_gate = _Linear()


class DecoderLayer(nn.Module):
    """Norm, attention, norm, and the matrices of what follows.

    Parameters
    ----------
    kind
        The family's, as the checkpoint has it.
    layer
        Its index.
    top_k
        Experts that each token chooses; 0 in a layer without.
    """

    def __init__(self, kind: LayerKind, layer: int, top_k: int) -> None:
        super().__init__()
        self.self_attn = _Attention(kind, layer)
        self.mlp = _Sparse(kind, top_k) if top_k else _FeedForward()
        self.input_layernorm = RMSNorm(0, kind.epsilon)
        self.post_attention_layernorm = RMSNorm(0, kind.epsilon)
