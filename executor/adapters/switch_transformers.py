"""Switch Transformers: modules of transformers."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch.nn import functional

from executor.adapters.base import ExpertWeights, Shapes, Tensors
from executor.adapters.encoder_decoder import EncoderDecoderAdapter
from planner.documents import ModelSpec

__all__ = ["SwitchTransformersAdapter"]


class SwitchTransformersAdapter(EncoderDecoderAdapter):
    """``switch_transformers``: T5 with one expert a token (arXiv 2101.03961).

    A side's first layer has the position biases of all its layers; they are kept once bound, as its
    slot may hold another layer by the time that they are needed.
    """

    family: ClassVar[str] = "switch_transformers"
    prefix: ClassVar[str] = "SwitchTransformers"
    layer_kind: ClassVar[str] = "Block"
    norm_kind: ClassVar[str] = "LayerNorm"
    encoder_norm_name: ClassVar[str] = "encoder.final_layer_norm"
    attention_kind: ClassVar[str] = "eager"
    gate: ClassVar[str] = "router"
    activation_key: ClassVar[str] = "dense_act_fn"
    activations: ClassVar[tuple[str, ...]] = ("relu",)
    epsilon_key: ClassVar[str] = "layer_norm_epsilon"

    def __init__(self, config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__(config, model, dtype)
        self._eager = import_module(type(self._final_norm).__module__).eager_attention_forward
        self._biases: dict[bool, torch.Tensor] = {}

    def check_config(self) -> None:
        """An expert takes some token, too."""
        super().check_config()
        if self.config.expert_capacity < 1:
            raise self.refuse(f"expert_capacity {self.config.expert_capacity} takes no token")

    def make_layers(self, kind: Any, count: int) -> list[Any]:
        """The encoder's, then the decoder's."""
        depth, layers = self.model.encoder_depth, list[Any]()
        for index, spec in enumerate(self.model.layers):
            config = copy.copy(self.config)
            config.is_decoder = index >= depth
            layers.append(kind(config, index in (0, depth), spec.experts > 0, layer_idx=index))
        return layers

    def capacity(self, tokens: int) -> int:
        """The same for all sequences."""
        result: int = self.config.expert_capacity
        return result

    def feed_forward(self, layer: int) -> Any:
        """The last part of a layer."""
        return self._layers[layer].layer[-1].mlp

    def bind(self, layer: int, tensors: Tensors) -> None:
        """Keep the position biases."""
        super().bind(layer, tensors)
        if layer in (0, self.model.encoder_depth):
            attention = self._layers[layer].layer[0].SelfAttention
            self._biases[layer > 0] = attention.relative_attention_bias.weight.clone()

    # --- what a pass computes -----------------------------------------------------------------

    def input_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before attention."""
        result: torch.Tensor = self._layers[layer].layer[0].layer_norm(hidden)
        return result

    def post_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before the experts or the dense feed-forward."""
        result: torch.Tensor = self._layers[layer].layer[-1].layer_norm(hidden)
        return result

    def self_attention(
        self,
        layer: int,
        normed: torch.Tensor,
        positions: torch.Tensor,
        seen: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """Scores have a bias by distance, and are not scaled."""
        attention = self._layers[layer].layer[0].SelfAttention
        keys, values = self._heads(attention.k(normed)), self._heads(attention.v(normed))
        if cache is not None:
            keys, values = cache.update(keys, values, layer)
        bias = self._bias(layer, positions, keys.shape[2])
        return self._attend(attention, normed, keys, values, seen, bias)

    def cross_keys_values(
        self, layer: int, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all heads."""
        attention = self._layers[layer].layer[1].EncDecAttention
        keys, values = (self._heads(one(rows[None]))[0] for one in (attention.k, attention.v))
        return keys, values

    def cross_attention(
        self,
        layer: int,
        hidden: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """Without position biases."""
        part = self._layers[layer].layer[1]
        normed = part.layer_norm(hidden)
        return self._attend(part.EncDecAttention, normed, keys, values, seen, None)

    def route(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest expert, and its probability."""
        classifier = self.router(layer).classifier
        chances = functional.softmax(classifier(rows), dim=-1)
        weights, experts = chances.max(dim=-1, keepdim=True)
        return weights, experts

    def expert_weights(self, unit: torch.Tensor, shapes: Shapes) -> ExpertWeights:
        """Two matrices, and no gate."""
        inner, hidden = shapes["wi.weight"]
        values = inner * hidden
        return ExpertWeights(
            unit[:values].view(inner, hidden), unit[values : 2 * values].view(hidden, inner)
        )

    def activate(self, both: torch.Tensor) -> torch.Tensor:
        """max(x, 0)."""
        return both.relu_()

    def dense_mlp(self, layer: int) -> ExpertWeights:
        """As an expert."""
        feed = self.feed_forward(layer)
        return ExpertWeights(feed.wi.weight, feed.wo.weight)

    def final_norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Norm before the head, which is tied, and its scale."""
        scale: float = self.model.hidden_size**-0.5
        return super().final_norm(rows) * scale

    # --- helpers ------------------------------------------------------------------------------

    def _heads(self, values: torch.Tensor) -> torch.Tensor:
        """[sequences, tokens, heads x size] as [sequences, heads, tokens, size]."""
        return values.view(*values.shape[:2], -1, self.config.d_kv).transpose(1, 2)

    def _attend(
        self,
        attention: Any,
        normed: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        seen: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        query = self._heads(attention.q(normed))
        mixed, _ = self._eager(
            attention, query, keys, values, self.mask(seen), scaling=1.0, position_bias=bias
        )
        result: torch.Tensor = attention.o(mixed.reshape(*normed.shape[:2], -1))
        return result

    def _bias(self, layer: int, positions: torch.Tensor, columns: int) -> torch.Tensor:
        """[sequences or 1, heads, tokens, columns], by each column's distance from the token."""
        attention = self._layers[layer].layer[0].SelfAttention
        decoder = layer >= self.model.encoder_depth
        apart = torch.arange(columns, device=positions.device) - positions[..., None]
        least, most = int(apart.min()), int(apart.max())
        buckets = attention._relative_position_bucket(
            torch.arange(least, most + 1, device=positions.device),
            bidirectional=not decoder,
            num_buckets=self.config.relative_attention_num_buckets,
            max_distance=self.config.relative_attention_max_distance,
        )
        by_distance = self._biases[decoder].index_select(0, buckets).t()
        return by_distance[:, apart - least].transpose(0, 1)
