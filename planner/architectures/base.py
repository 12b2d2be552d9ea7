"""What a family of models says about itself: each weight's name, shape and part.

One description serves twice: a checkpoint's headers are held against it, and a bare configuration's
bytes are computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from solvers.errors import UnsupportedError

__all__ = ["Architecture", "Config", "ConfigReader", "LayerShape", "Part", "Weight", "linear"]

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
        As stored.
    part
        What it belongs to.
    stored
        Its name in the checkpoint's files, where that differs from ``role``. For an expert's
        weight ``{e}`` stands for the expert's number; without it the tensor holds all experts,
        one after another along its first dimension.
    rows
        First row and end of this weight inside each expert of a tensor that holds more
        (gate and up in one); None: all of it.
    float32
        Kept in float32 whatever the model's type.
    quantized
        Stored in the quantized type, where the checkpoint has one.
    """

    role: str
    shape: tuple[int, ...]
    part: Part
    stored: str = ""
    rows: tuple[int, int] | None = None
    float32: bool = False
    quantized: bool = False

    @property
    def name(self) -> str:
        """Its name in the files, inside its layer."""
        return self.stored or self.role

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


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
    names = [f"{stored}.weight", f"{stored}.bias"] if stored else ["", ""]
    weight = Weight(f"{role}.weight", (rows, columns), part, names[0], quantized=quantized)
    return (weight, Weight(f"{role}.bias", (rows,), part, names[1])) if bias else (weight,)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer.

    Attributes
    ----------
    dense
        Weights of the dense part, in the order in which they are stored in a unit.
    expert
        Weights of one expert: gate, up, down, then biases; empty for a layer without experts.
    experts, top_k, expert_intermediate
        0 for a layer without experts.
    kv_values
        Numbers that one token of one sequence adds to the cache.
    state_values
        Numbers of a state of fixed size for each sequence (linear attention), else 0.
    window
        Sliding-window length in tokens, or None.
    prefix
        What stands before the layer's names in the files.
    """

    dense: tuple[Weight, ...]
    prefix: str
    kv_values: int
    expert: tuple[Weight, ...] = ()
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    state_values: int = 0
    window: int | None = None

    @property
    def dense_values(self) -> int:
        """Parameters of the dense part."""
        return sum(weight.values for weight in self.dense)

    @property
    def expert_values(self) -> int:
        """Parameters of one expert."""
        return sum(weight.values for weight in self.expert)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A whole model.

    Attributes
    ----------
    head
        None where it is tied to the embedding.
    other
        Weights outside the decoder's layers that no run of it needs on the device, and those of
        layers that only training uses (multi-token prediction).
    ignored
        Whether a stored tensor's name is one that may be skipped (buffers saved by mistake).
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
    other: tuple[Weight, ...] = ()
    ignored: Callable[[str], bool] = lambda name: name.endswith(".inv_freq")

    @property
    def parameters(self) -> int:
        """All parameters."""
        outside = (self.embedding, self.final_norm, *self.other)
        return (
            sum(layer.dense_values + layer.experts * layer.expert_values for layer in self.layers)
            + sum(weight.values for weight in outside)
            + (self.head.values if self.head else 0)
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches; the embedding counted once, ``other`` not at all."""
        return (
            sum(layer.dense_values + layer.top_k * layer.expert_values for layer in self.layers)
            + self.embedding.values
            + self.final_norm.values
            + (self.head.values if self.head else 0)
        )


class ConfigReader:
    """Values of a configuration, checked as they are read.

    Raises
    ------
    UnsupportedError
        From every method, if a value is missing or is not what it must be; the line names the
        model type and the key.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.family = str(config.get("model_type"))

    def refuse(self, what: str) -> UnsupportedError:
        """The error that refuses this configuration."""
        return UnsupportedError(" ".join(f"model type {self.family!r}: {what}".split()))

    def positive(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is present, a whole number of at least 1."""
        value = self.natural(*keys, default=default)
        if value < 1:
            raise self.refuse(f"{keys[0]} is {value}; at least 1 is needed")
        return value

    def natural(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is present, a whole number of at least 0."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value >> 48:
                raise self.refuse(f"{key} is {str(value)[:40]}; a whole number is needed")
            return value
        if default is None:
            raise self.refuse(f"the configuration has no {' or '.join(keys)}")
        return default

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(f"{key} is {str(value)[:40]}; true or false is needed")
        return value

    def names(self, key: str, allowed: Iterable[str], length: int) -> tuple[str, ...] | None:
        """A list of ``length`` names out of ``allowed``, or None where the key is absent."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            raise self.refuse(f"{key} is not a list of {length} names, one for each layer")
        for name in value:
            if name not in allowed:
                raise self.refuse(f"{key} holds {str(name)[:40]!r}; {', '.join(allowed)} are known")
        return tuple(value)
