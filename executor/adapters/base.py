"""What a model family gives the runtime: its modules from transformers, without weights.

The modules are built on the meta device, so that they own no memory; before a layer computes, its
parameters are set to views of the slot that its dense part lies in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from planner.documents import ModelSpec
from solvers.errors import UnsupportedError

__all__ = ["Adapter", "Tensors"]

Tensors = Mapping[str, torch.Tensor]
"""Tensors of a dense part by the parameter's name inside the layer's module."""

_ACTIVATIONS = ("silu", "swish")


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
    family
        ``model_type`` that the class is for.
    """

    family: ClassVar[str]

    def __init__(self, config: dict[str, Any], model: ModelSpec, dtype: torch.dtype) -> None:
        classes = self.classes()
        self.config = classes["config"].from_dict(config)
        self.config._attn_implementation = "sdpa"
        activation = getattr(self.config, "hidden_act", None)
        if activation not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{model.name}: activation {activation!r} is not supported (supported: silu)"
            )
        self.model = model
        self.dtype = dtype
        with torch.device("meta"):
            self._layers = [
                classes["layer"](self.config, index).eval() for index in range(len(model.layers))
            ]
            self._final_norm = classes["norm"](model.hidden_size, eps=self.config.rms_norm_eps)
        self.rotary = classes["rotary"](self.config)
        for layer, spec in zip(self._layers, model.layers, strict=True):
            if spec.experts:
                # experts are ours: neither their memory nor their code is needed
                del layer.mlp.experts
        self._owners: list[dict[str, tuple[nn.Module, str]]] = [
            _owners(layer) for layer in self._layers
        ]

    @classmethod
    def classes(cls) -> dict[str, Any]:
        """``config``, ``layer``, ``norm`` and ``rotary`` classes of transformers."""
        raise NotImplementedError

    def check_roles(self, layer: int, roles: Sequence[str]) -> None:
        """Refuse a layer whose tensors are not those of the module.

        Raises
        ------
        UnsupportedError
            Naming the first tensor that is missing or unknown.
        """
        have = set(roles)
        want = set(self._owners[layer])
        if have != want:
            missing, unknown = sorted(want - have), sorted(have - want)
            what = f"lacks {missing[0]}" if missing else f"has an unknown {unknown[0]}"
            raise UnsupportedError(f"{self.model.name}: layer {layer} {what}")

    def bind(self, layer: int, tensors: Tensors) -> None:
        """Let a layer's modules compute from ``tensors``."""
        owners = self._owners[layer]
        for role, tensor in tensors.items():
            module, name = owners[role]
            # a plain view, not a Parameter: nothing is copied and no gradient is kept
            module._parameters[name] = tensor  # type: ignore[assignment]

    def bind_final_norm(self, weight: torch.Tensor) -> None:
        """Let the final norm compute from ``weight``."""
        self._final_norm._parameters["weight"] = weight

    def window(self, layer: int) -> int | None:
        """Sliding-window length of a layer's attention."""
        return self.model.layers[layer].window

    def input_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before attention."""
        result: torch.Tensor = self._layers[layer].input_layernorm(hidden)
        return result

    def attention(
        self,
        layer: int,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: Any,
    ) -> torch.Tensor:
        """Attention of normed ``hidden`` [sequences, tokens, hidden]; writes keys and values."""
        result: torch.Tensor
        result, _ = self._layers[layer].self_attn(
            hidden_states=hidden, position_embeddings=rotary, attention_mask=mask, cache=cache
        )
        return result

    def post_norm(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Norm before the experts or the dense MLP."""
        result: torch.Tensor = self._layers[layer].post_attention_layernorm(hidden)
        return result

    def route(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and experts [rows, top_k] for normed ``rows`` [rows, hidden]."""
        _, weights, experts = self._layers[layer].mlp.gate(rows)
        return weights, experts

    def mlp_weights(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gate, up and down matrices of a layer's dense MLP."""
        mlp = self._layers[layer].mlp
        return mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight

    def final_norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Norm before the head."""
        result: torch.Tensor = self._final_norm(rows)
        return result


def _owners(layer: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    owners = {}
    for path, module in layer.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners[f"{path}.{name}" if path else name] = (module, name)
    return owners
