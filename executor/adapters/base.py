"""What a model family gives the runtime: its modules from transformers, without weights.

The modules are built on the meta device, so that they own no memory; before a layer computes, its
parameters are set to views of the slot that its dense part lies in. Experts are no modules: an
adapter says how their tensors are laid out and what lies between their two products.
``docs/adding-an-architecture.md`` shows how one is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from executor.quantized import QuantizedMatrix
from planner.documents import ModelSpec
from planner.memory import EXPERT_TILE_ROWS
from solvers.errors import UnsupportedError

__all__ = ["Adapter", "CacheShape", "ExpertWeights", "FeedForward", "Tensors"]

Tensors = Mapping[str, torch.Tensor]
"""Tensors of a dense part by the parameter's name inside the layer's module."""

Shapes = Mapping[str, tuple[int, ...]]

_ACTIVATIONS = ("silu", "swish")


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


class Adapter:
    """One model's modules.

    Parameters
    ----------
    config
        ``config.json`` as read.
    model
        The model document.
    dtype
        Type to compute in.

    Attributes
    ----------
    family, prefix
        ``model_type`` that the class is for, and how transformers' names for it begin.
    layer_kind, norm_kind
        How its names for the class of a layer and of a norm end.
    attention_kind
        transformers' attention function; ``eager`` needs a mask of numbers always.
    block, gate, shared
        Names in transformers' modules: of the layer's feed-forward, of the router and of the
        shared experts in it.
    activation_key, epsilon_key
        The configuration's names for the experts' activation and for what norms add to a variance.
    activations
        Values of ``activation_key`` that the experts' activation stands for.
    norm
        Class of the final norm; None: the family's RMSNorm.
    float32_router
        The router computes in float32 whatever the model's type, and may be stored in it.
    longest_context
        Longest context that is computed as transformers does; None: as long as the model allows.
    embedding_scale, residual_scale, logits_scale
        Factors of embedding rows and of what each half of a layer adds; divisor of logits.
    head_bias
        Bias of the head [vocabulary], or None.
    """

    family: ClassVar[str]
    prefix: ClassVar[str]
    layer_kind: ClassVar[str] = "DecoderLayer"
    norm_kind: ClassVar[str] = "RMSNorm"
    attention_kind: ClassVar[str] = "sdpa"
    block: ClassVar[str] = "mlp"
    gate: ClassVar[str] = "gate"
    shared: ClassVar[str] = "shared_experts"
    activation_key: ClassVar[str] = "hidden_act"
    activations: ClassVar[Collection[str]] = _ACTIVATIONS
    epsilon_key: ClassVar[str] = "rms_norm_eps"
    float32_router: ClassVar[bool] = False
    norm: ClassVar[type[nn.Module] | None] = None

    def __init__(self, config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> None:
        classes = self.classes()
        self.model, self.dtype = model, dtype
        try:
            self.config = classes["config"].from_dict(config)
        except Exception as error:
            # of many kinds, but all about the configuration
            why = " ".join(str(error).split())[:200]
            raise self.refuse(f"transformers does not take its configuration: {why}") from error
        self.config._attn_implementation = self.attention_kind
        self.require(self.activation_key, self.activations, what="activation")
        self.check_config()
        self._check_windows()
        self.longest_context = self._longest_context()
        self.embedding_scale = self.residual_scale = self.logits_scale = 1.0
        self.head_bias: torch.Tensor | None = None
        with torch.device("meta"):
            self._layers = [
                layer.eval() for layer in self.make_layers(classes["layer"], len(model.layers))
            ]
            self._final_norm = self.make_norm(classes["norm"])
        self._rotary = classes["rotary"](self.config)
        for spec in model.layers:
            if spec.experts:
                # experts are ours: neither their memory nor their code is needed
                block = self.feed_forward(spec.index)
                if not hasattr(block, "experts"):
                    raise self.refuse(f"transformers' layer {spec.index} has no experts")
                del block.experts
        self._owners = [_owners(layer) for layer in self._layers]

    # --- what a family may say of itself ------------------------------------------------------

    @classmethod
    def classes(cls) -> dict[str, Any]:
        """``config``, ``layer``, ``norm`` and ``rotary`` classes of transformers; the last is one
        of torch that does nothing where there is none."""
        name = cls.family.replace("-", "_")
        package = f"transformers.models.{name}"
        configuration = import_module(f"{package}.configuration_{name}")
        modeling = import_module(f"{package}.modeling_{name}")
        return {
            "config": getattr(configuration, f"{cls.prefix}Config"),
            "layer": getattr(modeling, f"{cls.prefix}{cls.layer_kind}"),
            "norm": cls.norm or getattr(modeling, f"{cls.prefix}{cls.norm_kind}"),
            "rotary": getattr(modeling, f"{cls.prefix}RotaryEmbedding", nn.Identity),
        }

    def make_layers(self, kind: Any, count: int) -> list[Any]:
        """transformers' layers, of its class ``kind``."""
        return [kind(self.config, index) for index in range(count)]

    def make_norm(self, kind: Any) -> Any:
        """A norm outside the layers, of transformers' class ``kind``."""
        return kind(self.model.hidden_size, eps=getattr(self.config, self.epsilon_key))

    def feed_forward(self, layer: int) -> Any:
        """transformers' module of a layer's feed-forward, with experts or without."""
        return getattr(self._layers[layer], self.block)

    def check_config(self) -> None:
        """Refuse what the family's configuration may ask for and this adapter lacks.

        Raises
        ------
        UnsupportedError
            Naming the key and its value.
        """

    def cache_shape(self) -> CacheShape:
        """What attention hands to the cache; its values are the document's KV bytes."""
        heads, size = self.model.kv_heads, self.model.head_dim
        return CacheShape(heads, size, heads, size)

    def expert_weights(self, unit: torch.Tensor, shapes: Shapes) -> ExpertWeights:
        """An expert's matrices as views of its unit.

        Parameters
        ----------
        unit
            All its values, one dimension, in the order of ``shapes``.
        shapes
            Shape of each of its tensors by role, in the order in which they lie.
        """
        rows, hidden = shapes["gate_proj.weight"]
        values = 2 * rows * hidden
        return ExpertWeights(
            unit[:values].view(2 * rows, hidden),
            unit[values : values + hidden * rows].view(hidden, rows),
        )

    def activate(self, both: torch.Tensor) -> torch.Tensor:
        """What lies between an expert's two products; may overwrite ``both`` [rows, 2 x width]."""
        width = both.shape[1] // 2
        return functional.silu(both[:, :width], inplace=True).mul_(both[:, width:])

    def to(self, device: torch.device) -> None:
        """Compute on ``device``: tables that come with no checkpoint lie there."""
        self._rotary.to(device)

    # --- helpers ------------------------------------------------------------------------------

    def refuse(self, what: str) -> UnsupportedError:
        """The error that refuses this model."""
        return UnsupportedError(f"{self.model.name}: {what}")

    def require(self, key: str, allowed: Collection[Any], *, what: str = "") -> None:
        """Refuse a configuration whose ``key`` is none of ``allowed``."""
        value = getattr(self.config, key, None)
        if value not in allowed:
            known = ", ".join(sorted({str(choice) for choice in allowed} - {"None", "swish"}))
            raise self.refuse(f"{what or key} {value!r} is not supported (supported: {known})")

    def _check_windows(self) -> None:
        """transformers and the document agree on which layers have a window."""
        kinds = getattr(self.config, "layer_types", None)
        width = getattr(self.config, "sliding_window", None)
        for spec, kind in zip(self.model.layers, kinds or (), strict=False):
            window = width if kind == "sliding_attention" else None
            if window is not None and not 0 < window < self.model.max_context:
                window = None  # it hides nothing
            if kind not in ("full_attention", "sliding_attention") or window != spec.window:
                raise self.refuse(
                    f"layer {spec.index}: layer_types has {kind!r} where "
                    f"{'no window' if spec.window is None else f'one of {spec.window:,}'} was "
                    "expected; such a mixture is not supported"
                )

    def _longest_context(self) -> int | None:
        """Rotary embeddings that change with the context do so for a whole batch: up to here they
        do not."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            limit = rope.get("original_max_position_embeddings")
            return int(limit) if limit else None
        return None

    def check_roles(self, layer: int, roles: Mapping[str, torch.dtype]) -> None:
        """Refuse a layer whose tensors, with the types they are stored in, are not the module's.

        Raises
        ------
        UnsupportedError
            Naming the first tensor that is missing, unknown or of the wrong type.
        """
        have = set(roles)
        want = set(self._owners[layer])
        if have != want:
            missing, unknown = sorted(want - have), sorted(have - want)
            what = f"lacks {missing[0]}" if missing else f"has an unknown {unknown[0]}"
            raise self.refuse(f"layer {layer} {what}")
        for role, dtype in roles.items():
            if dtype != self.dtype and not self.float32_router:
                raise self.refuse(
                    f"layer {layer}: {role} is stored in float32, and {self.family} computes its "
                    f"router in {self.model.dtype}"
                )

    def bind(self, layer: int, tensors: Tensors) -> None:
        """Let a layer's modules compute from ``tensors``."""
        owners = self._owners[layer]
        for role, tensor in tensors.items():
            table, name = owners[role]
            # a plain view, not a Parameter: nothing is copied and no gradient is kept
            table[name] = tensor

    def bind_outside(self, tensors: Tensors) -> None:
        """Let the final norm and the head compute from ``tensors``, by their full names."""
        for role, tensor in tensors.items():
            if role == "lm_head.bias":
                self.head_bias = tensor
            else:
                self._final_norm._parameters[role.rsplit(".", 1)[1]] = tensor

    # --- what a pass computes -----------------------------------------------------------------

    def window(self, layer: int) -> int | None:
        """Sliding-window length of a layer's attention."""
        return self.model.layers[layer].window

    def rotary(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rotary embedding of ``positions``: tensors [sequences, tokens, ...]."""
        result: tuple[torch.Tensor, ...] = self._rotary(like, positions)
        return result

    def position_embeddings(self, rotary: tuple[torch.Tensor, ...]) -> Any:
        """``rotary`` as the family's attention takes it."""
        return rotary

    @property
    def needs_mask(self) -> bool:
        """Whether attention takes no causality for granted."""
        return self.attention_kind == "eager"

    def mask(self, seen: torch.Tensor) -> torch.Tensor:
        """The mask that attention takes for the columns that each row sees."""
        if not self.needs_mask:
            return seen
        hide = torch.finfo(self.dtype).min
        return torch.zeros(seen.shape, dtype=self.dtype, device=seen.device).masked_fill_(
            ~seen, hide
        )

    def input_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before attention."""
        result: torch.Tensor = self._layers[layer].input_layernorm(hidden)
        return result

    def attention(
        self,
        layer: int,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, ...],
        mask: torch.Tensor | None,
        cache: Any,
    ) -> torch.Tensor:
        """Attention of normed ``hidden`` [sequences, tokens, hidden]; writes keys and values."""
        result: torch.Tensor
        result, _ = self._layers[layer].self_attn(
            hidden_states=hidden,
            position_embeddings=self.position_embeddings(rotary),
            attention_mask=mask,
            cache=cache,
        )
        return result

    def post_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before the experts or the dense MLP."""
        result: torch.Tensor = self._layers[layer].post_attention_layernorm(hidden)
        return result

    def route(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and experts [rows, top_k] for normed ``rows`` [rows, hidden]."""
        router = self.router(layer)
        if not self.float32_router or len(rows) <= EXPERT_TILE_ROWS:
            _, weights, experts = router(rows)
            return weights, experts
        # its input is copied to float32: not all of it at once
        firsts = range(0, len(rows), EXPERT_TILE_ROWS)
        parts = [router(rows[first : first + EXPERT_TILE_ROWS])[1:] for first in firsts]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def router(self, layer: int) -> Any:
        """A layer's router: from rows to logits, weights and experts."""
        return getattr(self.feed_forward(layer), self.gate)

    def dense_mlp(self, layer: int) -> FeedForward | ExpertWeights:
        """The feed-forward of a layer without experts; one that is computed as an expert is, as
        its weights."""
        return _feed_forward(self.feed_forward(layer))

    def shared_experts(self, layer: int) -> FeedForward:
        """What every token passes beside the experts that it chose, in a layer that has them."""
        return _feed_forward(getattr(self.feed_forward(layer), self.shared))

    def final_norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Norm before the head."""
        result: torch.Tensor = self._final_norm(rows)
        return result


def _feed_forward(module: Any) -> FeedForward:
    return FeedForward(
        module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight, None
    )


def _owners(layer: nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
    """The table of its module that holds each parameter or saved buffer, and its name there."""
    owners: dict[str, tuple[dict[str, Any], str]] = {}
    for path, module in layer.named_modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, value in table.items():
                if value is not None and name not in module._non_persistent_buffers_set:
                    owners[f"{path}.{name}" if path else name] = (table, name)
    return owners
