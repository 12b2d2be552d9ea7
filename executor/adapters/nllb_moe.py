"""NLLB-MoE: modules of transformers, and its own account of what its router says."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from executor.adapters.base import ExpertWeights, Shapes
from executor.adapters.encoder_decoder import EncoderDecoderAdapter
from planner.documents import ModelSpec
from planner.memory import EXPERT_TILE_ROWS

__all__ = ["NllbMoeAdapter"]


class NllbMoeAdapter(EncoderDecoderAdapter):
    """``nllb-moe``: two experts a token in every n-th layer of both sides (arXiv 2207.04672).

    A token's result is its own and its sequence's: of transformers', that of a prompt alone. What
    an expert takes is counted over the whole batch there, padding too.
    """

    family: ClassVar[str] = "nllb-moe"
    prefix: ClassVar[str] = "NllbMoe"
    layer_kind: ClassVar[str] = "EncoderLayer"
    norm: ClassVar[type[nn.Module] | None] = nn.LayerNorm
    encoder_norm_name: ClassVar[str] = "model.encoder.layer_norm"
    block: ClassVar[str] = "ffn"
    gate: ClassVar[str] = "router"
    activation_key: ClassVar[str] = "activation_function"
    activations: ClassVar[tuple[str, ...]] = ("relu",)

    def __init__(self, config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__(config, model, dtype)
        if self.config.scale_embedding:
            self.embedding_scale = math.sqrt(model.hidden_size)
        masked: float = self.config.moe_token_dropout
        # training masks whole outputs of experts, and the rest is scaled down for it here
        self._expert_scale = 1 - masked if masked > 0 else 1.0

    def check_config(self) -> None:
        """No drawing of second experts, either."""
        super().check_config()
        self.require("second_expert_policy", ("all",))
        if self.config.pad_token_id is None:
            raise self.refuse("pad_token_id is null, from which its positions are counted")
        if self.config.d_model < 4:
            raise self.refuse(f"d_model {self.config.d_model} is too small for its positions")
        if self.config.moe_eval_capacity_token_fraction <= 0 and self.config.expert_capacity < 1:
            raise self.refuse(f"expert_capacity {self.config.expert_capacity} takes no token")

    def make_layers(self, kind: Any, count: int) -> list[Any]:
        """The encoder's, then the decoder's."""
        depth = self.model.encoder_depth
        decoder = import_module(kind.__module__).NllbMoeDecoderLayer
        kinds = [kind] * depth + [decoder] * (count - depth)
        return [
            made(self.config, spec.experts > 0, layer_idx=spec.index)
            for made, spec in zip(kinds, self.model.layers, strict=True)
        ]

    def make_norm(self, kind: Any) -> Any:
        """Layer norms of torch's own epsilon: the configuration names none."""
        return kind(self.model.hidden_size)

    # --- what a pass computes -----------------------------------------------------------------

    def place(self, rows: torch.Tensor, tokens: torch.Tensor, before: torch.Tensor) -> None:
        """Sinusoidal positions; a token that is the padding's id has none and is not counted."""
        padding, half = self.config.pad_token_id, rows.shape[-1] // 2
        counted = tokens.ne(padding).long()
        positions = (counted.cumsum(1) + before[:, None]) * counted + padding
        steps = torch.arange(half, device=rows.device).float()
        steps = torch.exp(steps * -(math.log(10000) / (half - 1)))
        flat, places, shown = (
            rows.view(-1, rows.shape[-1]),
            positions.view(-1, 1),
            counted.view(-1, 1),
        )
        for first in range(0, len(flat), EXPERT_TILE_ROWS):
            tile = slice(first, first + EXPERT_TILE_ROWS)
            angles = places[tile].float() * steps
            flat[tile, :half] += angles.sin() * shown[tile]
            flat[tile, half : 2 * half] += angles.cos_() * shown[tile]

    def input_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before attention."""
        result: torch.Tensor = self._layers[layer].self_attn_layer_norm(hidden)
        return result

    def post_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before the experts or the dense feed-forward."""
        result: torch.Tensor = self._layers[layer].ff_layer_norm(hidden)
        return result

    def self_attention(
        self,
        layer: int,
        normed: torch.Tensor,
        positions: torch.Tensor,
        seen: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """Positions are in the embedding already."""
        attention = self._layers[layer].self_attn
        keys = _heads(attention, attention.k_proj, normed)
        values = _heads(attention, attention.v_proj, normed)
        if cache is not None:
            keys, values = cache.update(keys, values, layer)
        return _attend(attention, normed, keys, values, seen)

    def cross_keys_values(
        self, layer: int, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all heads."""
        attention = self._layers[layer].cross_attention
        keys, values = (
            _heads(attention, one, rows[None])[0] for one in (attention.k_proj, attention.v_proj)
        )
        return keys, values

    def cross_attention(
        self,
        layer: int,
        hidden: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """With a norm of its own."""
        normed = self._layers[layer].cross_attention_layer_norm(hidden)
        return _attend(self._layers[layer].cross_attention, normed, keys, values, seen)

    def route(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two likeliest experts, and their probabilities; ``weigh`` makes weights of these."""
        logits = self.router(layer).classifier(rows)
        chances = functional.softmax(logits, dim=-1)
        first = chances.argmax(dim=-1, keepdim=True)
        second = logits.scatter_(1, first, -torch.inf).argmax(dim=-1, keepdim=True)
        experts = torch.cat([first, second], dim=1)
        return chances.gather(1, experts), experts

    def capacity(self, tokens: int) -> int:
        """A share of the tokens that are routed at once, or a number."""
        share: float = self.config.moe_eval_capacity_token_fraction
        result: int = self.config.expert_capacity
        return math.ceil(share * tokens) if share > 0 else result

    def order(self, weights: torch.Tensor) -> torch.Tensor | None:
        """Their own, or those first whose first choice is likeliest."""
        if not self.config.batch_prioritized_routing:
            return None
        return weights[:, 0].argsort(descending=True)

    def weigh(self, weights: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Both probabilities make one, before one that found no room is dropped or after."""
        before: bool = self.config.normalize_router_prob_before_dropping
        if not before:
            weights = weights.mul_(kept)
        whole = weights.sum(dim=1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).eps)
        weights = weights.div_(whole)
        if before:
            weights = weights.mul_(kept)
        return weights.mul_(self._expert_scale)

    def expert_weights(self, unit: torch.Tensor, shapes: Shapes) -> ExpertWeights:
        """Two matrices, each with its bias behind it, and no gate."""
        sizes = [math.prod(shape) for shape in shapes.values()]
        parts = torch.split(unit[: sum(sizes)], sizes)
        up, up_bias, down, down_bias = (
            part.view(shape) for part, shape in zip(parts, shapes.values(), strict=True)
        )
        return ExpertWeights(up, down, up_bias, down_bias)

    def activate(self, both: torch.Tensor) -> torch.Tensor:
        """max(x, 0)."""
        return both.relu_()

    def dense_mlp(self, layer: int) -> ExpertWeights:
        """As an expert, but not scaled."""
        feed = self.feed_forward(layer)
        return ExpertWeights(feed.fc1.weight, feed.fc2.weight, feed.fc1.bias, feed.fc2.bias)


def _heads(attention: Any, projection: Any, rows: torch.Tensor) -> torch.Tensor:
    """[sequences, tokens, hidden] as [sequences, heads, tokens, size]."""
    projected: torch.Tensor = projection(rows)
    return projected.view(*rows.shape[:2], -1, attention.head_dim).transpose(1, 2)


def _attend(
    attention: Any,
    normed: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    query = _heads(attention, attention.q_proj, normed)
    mixed = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=seen, scale=attention.scaling
    )
    result: torch.Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(normed.shape))
    return result
