"""Families whose layers are of the commonest kind: computed without transformers where they can be.

Its modules would do, and do where a checkpoint asks for a rotary embedding that depends on the
context; but loading them takes more memory than torch itself (docs/executor.md, Memory).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from executor.adapters.base import Adapter
from executor.adapters.modules import DecoderLayer, LayerKind, QueryNorm, RMSNorm, Rotary
from executor.families import own_modules
from planner.architectures.reading import ConfigReader

__all__ = ["PlainAdapter", "PlainConfig"]


@dataclass(frozen=True, slots=True)
class PlainConfig:
    """What is computed by of a configuration, by transformers' names, with its defaults."""

    kind: LayerKind
    theta: float
    hidden_act: str
    rms_norm_eps: float
    layer_types: Sequence[str] | None
    sliding_window: int | None
    rope_parameters: dict[str, Any] = field(default_factory=dict)


class PlainAdapter(Adapter):
    """A family that ``executor.families.own_modules`` knows.

    Attributes
    ----------
    theta, epsilon
        What a configuration means that does not say ``rope_theta`` or ``rms_norm_eps``.
    bias_key, bias, output_bias
        The configuration's name for projections with biases (None: there are none), what it means
        where that is missing, and whether it is said of the output's projection, too.
    query_norm
        As of ``LayerKind``.
    normed_choice
        Whether weights of a token's experts sum to 1 always, not where ``norm_topk_prob`` says so;
        they are then left in float32.
    shared_expert
        As ``shared`` of ``LayerKind``.
    clips, slides
        Whether ``clip_qkv`` counts, and ``sliding_window`` where ``use_sliding_window`` is missing.
    """

    theta: ClassVar[float] = 10_000.0
    epsilon: ClassVar[float] = 1e-6
    bias_key: ClassVar[str | None] = None
    bias: ClassVar[bool] = False
    output_bias: ClassVar[bool] = False
    query_norm: ClassVar[QueryNorm] = "none"
    normed_choice: ClassVar[bool] = False
    shared_expert: ClassVar[bool] = False
    clips: ClassVar[bool] = False
    slides: ClassVar[bool] = False

    @classmethod
    def classes(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Of this package, where they compute what the configuration asks for."""
        if not own_modules(cls.family, config):
            return super().classes(config)
        return {"config": PlainConfig, "layer": DecoderLayer, "norm": RMSNorm, "rotary": Rotary}

    def read_config(self, kind: Any, config: dict[str, Any]) -> Any:
        """As transformers would read it.

        Raises
        ------
        UnsupportedError
            If a value is not what it must be.
        """
        if kind is not PlainConfig:
            return super().read_config(kind, config)
        read = ConfigReader(config, self.family)
        _, kv_heads, head_dim = read.heads()
        biased = self.bias_key is not None and read.flag(self.bias_key, self.bias)
        epsilon = _number(read, "rms_norm_eps", self.epsilon) or self.epsilon
        layer = LayerKind(
            kv_heads,
            head_dim,
            epsilon,
            qkv_bias=biased,
            output_bias=biased and self.output_bias,
            query_norm=self.query_norm,
            clip=_number(read, "clip_qkv", None) if self.clips else None,
            normed_choice=self.normed_choice or read.flag("norm_topk_prob", False),
            float32_choice=self.normed_choice,
            shared=self.shared_expert,
        )
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        return PlainConfig(
            layer,
            float(rope.get("rope_theta", config.get("rope_theta", self.theta))),
            read.word(self.activation_key, "silu"),
            epsilon,
            config.get("layer_types"),
            config.get("sliding_window") if read.flag("use_sliding_window", self.slides) else None,
        )

    def make_layers(self, kind: Any, count: int) -> list[Any]:
        """Layers, of this package's class or of transformers'."""
        if kind is not DecoderLayer:
            return super().make_layers(kind, count)
        layers = self.model.layers[:count]
        return [DecoderLayer(self.config.kind, spec.index, spec.top_k) for spec in layers]

    def make_rotary(self, kind: Any) -> Any:
        """The rotary embedding, likewise."""
        if kind is not Rotary:
            return super().make_rotary(kind)
        return Rotary(self.config.theta, self.config.kind.head_dim)

    def drop_experts(self, layer: int) -> None:
        """Nothing where there are none."""
        if not isinstance(self._layers[layer], DecoderLayer):
            super().drop_experts(layer)


def _number(read: ConfigReader, key: str, default: float | None) -> float | None:
    """A number above 0."""
    value = read.config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise read.refuse(f"{key} is {str(value)[:40]}; a number above 0 is needed")
    return float(value)
