"""What a family of models says about itself: each weight's name, shape and part.

One description serves twice: a checkpoint's headers are held against it, and a bare configuration's
bytes are computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

__all__ = [
    "Architecture",
    "Change",
    "Config",
    "LayerShape",
    "Part",
    "Weight",
    "linear",
    "mlp",
    "norm",
]

Config = Mapping[str, Any]
Part = Literal["attention", "router", "norm", "shared_expert", "mlp", "expert", "outside"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter.

    Attributes
    ----------
    role
        Its name inside its layer (outside the layers: its full name) in transformers' module.
    shape
        As stored; of an expert's weight the share of one expert.
    part
        What it belongs to.
    stored
        Its name in the checkpoint's files, where that differs from ``role``. For an expert's
        weight ``{e}`` stands for the expert's number; without it the tensor holds all experts,
        one after another along its first dimension.
    rows
        First row, end and number of all rows, where each expert's share of the tensor holds more
        than this weight (gate and up in one); None: all of it.
    dtype
        The type it is stored in (as a safetensors header names it) where that is not the model's.
    quantized
        Stored in the quantized type, where the checkpoint has one.
    parameters
        How many parameters of the model it stands for, where that is not its number of values
        (packed values; scales stand for none).
    active
        How many of them one token touches, where that is not all.
    """

    role: str
    shape: tuple[int, ...]
    part: Part
    stored: str = ""
    rows: tuple[int, int, int] | None = None
    dtype: str = ""
    quantized: bool = False
    parameters: int | None = None
    active: int | None = None

    @property
    def name(self) -> str:
        """Its name in the files, inside its layer."""
        return self.stored or self.role

    @property
    def values(self) -> int:
        """How many parameters it holds."""
        return prod(self.shape) if self.parameters is None else self.parameters

    @property
    def active_values(self) -> int:
        """How many parameters of it one token touches."""
        return self.values if self.active is None else self.active


def linear(
    role: str,
    rows: int,
    columns: int,
    part: Part,
    *,
    bias: bool = False,
    stored: str = "",
    quantized: bool = True,
) -> tuple[Weight, ...]:
    """A projection from ``columns`` to ``rows`` values: its weight and, if it has one, its bias."""
    names = (f"{stored}.weight", f"{stored}.bias") if stored else ("", "")
    weight = Weight(f"{role}.weight", (rows, columns), part, names[0], quantized=quantized)
    return (weight, Weight(f"{role}.bias", (rows,), part, names[1])) if bias else (weight,)


def norm(role: str, size: int, *, bias: bool = False, part: Part = "norm") -> tuple[Weight, ...]:
    """A norm's weight and, for a layer norm, its bias."""
    weight = Weight(f"{role}.weight", (size,), part)
    return (weight, Weight(f"{role}.bias", (size,), part)) if bias else (weight,)


def mlp(role: str, inner: int, hidden: int, part: Part) -> tuple[Weight, ...]:
    """A gated feed-forward: gate, up, down."""
    return (
        *linear(f"{role}.gate_proj", inner, hidden, part),
        *linear(f"{role}.up_proj", inner, hidden, part),
        *linear(f"{role}.down_proj", hidden, inner, part),
    )


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer.

    Attributes
    ----------
    dense
        Weights of the dense part, in the order in which they are stored in a unit.
    prefix
        What stands before the layer's names in the files.
    kv_values
        Numbers that one token of one sequence adds to the cache.
    expert
        Weights of one expert: gate, up, down, then biases; empty for a layer without experts.
    experts, top_k, expert_intermediate
        0 for a layer without experts.
    state_values, state_float32_values
        Numbers of a state of fixed size that each sequence keeps (linear attention, convolutions):
        those kept in the model's type, and those kept in float32.
    window
        Sliding-window length in tokens, or None.
    """

    dense: tuple[Weight, ...]
    prefix: str
    kv_values: int
    expert: tuple[Weight, ...] = ()
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    state_values: int = 0
    state_float32_values: int = 0
    window: int | None = None

    @property
    def parameters(self) -> int:
        """All parameters of the layer."""
        one = sum(weight.values for weight in self.expert)
        return sum(weight.values for weight in self.dense) + self.experts * one

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches."""
        one = sum(weight.values for weight in self.expert)
        return sum(weight.active_values for weight in self.dense) + self.top_k * one

    def map(self, change: Change) -> LayerShape:
        """The layer with each weight replaced by what ``change`` makes of it and the prefix."""
        return replace(
            self,
            dense=tuple(new for weight in self.dense for new in change(weight, self.prefix)),
            expert=tuple(new for weight in self.expert for new in change(weight, self.prefix)),
        )


Change = Callable[[Weight, str], tuple[Weight, ...]]
"""What becomes of a weight in a layer with this prefix."""


def _buffers(name: str) -> bool:
    return name.endswith(".inv_freq")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A whole model.

    Attributes
    ----------
    layers
        The decoder's.
    head
        None where it is tied to the embedding.
    extra
        Further weights of the head or of the final norm: their biases.
    encoder_layers, encoder_other
        The encoder of an encoder-decoder model, and its weights outside its layers.
    spare
        Layers that only training or speculative decoding uses (multi-token prediction); no run
        needs them, and they are no part of the parameter count.
    skipped
        Whether a stored tensor that nothing here names may be left alone: buffers saved by
        mistake, ``spare`` layers, a vision tower.
    default_dtype
        The storage type where the configuration names none: that of the family's checkpoints.
    """

    family: str
    hidden_size: int
    vocab_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    layers: tuple[LayerShape, ...]
    embedding: Weight
    final_norm: Weight
    head: Weight | None
    extra: tuple[Weight, ...] = ()
    encoder_layers: tuple[LayerShape, ...] = ()
    encoder_other: tuple[Weight, ...] = ()
    spare: tuple[LayerShape, ...] = ()
    skipped: Callable[[str], bool] = _buffers
    default_dtype: str = "bfloat16"

    @property
    def stack(self) -> tuple[LayerShape, ...]:
        """All layers that a run needs, in the order in which a pass goes through them."""
        return (*self.encoder_layers, *self.layers)

    @property
    def outside(self) -> tuple[Weight, ...]:
        """Weights outside the layers, those of an encoder aside."""
        head = (self.head,) if self.head else ()
        return (self.embedding, self.final_norm, *head, *self.extra)

    @property
    def parameters(self) -> int:
        """All parameters, ``spare`` layers aside."""
        return sum(layer.parameters for layer in self.stack) + sum(
            weight.values for weight in (*self.outside, *self.encoder_other)
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches on its way through the decoder and, where there is
        one, the encoder; the embedding counted once."""
        return sum(layer.active_parameters for layer in self.stack) + sum(
            weight.values for weight in (*self.outside, *self.encoder_other)
        )
