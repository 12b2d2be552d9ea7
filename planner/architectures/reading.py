"""Values of a configuration, checked as they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from planner.architectures.base import Config
from solvers.counting import counted
from solvers.errors import UnsupportedError

__all__ = ["ConfigReader"]

_LARGEST = 1 << 40
_MOST_LAYERS = 4096
_MOST_EXPERTS = 1 << 16  # routing records have 16 bits for an expert
_TOP_K = ("num_experts_per_tok", "moe_top_k", "moe_k", "num_selects", "router_topk", "topk")


class ConfigReader:
    """Values of a configuration, checked as they are read.

    Parameters
    ----------
    config
        The configuration, or the text part of one.
    family
        Its model type.

    Raises
    ------
    UnsupportedError
        From every method, if a value is missing or is not what it must be; the line names the
        model type and the key.
    """

    def __init__(self, config: Config, family: str) -> None:
        self.config = config
        self.family = family

    def refuse(self, what: str) -> UnsupportedError:
        """The error that refuses this configuration."""
        return UnsupportedError(" ".join(f"model type {self.family!r}: {what}".split()))

    def positive(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is present: a whole number of at least 1."""
        value = self.natural(*keys, default=default)
        if value < 1:
            raise self.refuse(f"{keys[0]} is {value}; at least 1 is needed")
        return value

    def natural(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is present: a whole number of at least 0."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
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

    def word(self, key: str, default: str) -> str:
        """A text."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(f"{key} is {str(value)[:40]}; a text is needed")
        return value

    def layers(self, *keys: str, default: int | None = None) -> int:
        """How many layers there are; no more than a table of them has room for."""
        keys = keys or ("num_hidden_layers", "num_layers")
        count = self.natural(*keys, default=default)
        if count > _MOST_LAYERS:
            raise self.refuse(
                f"{counted(count, 'layer')} are more than the {_MOST_LAYERS} that moeplan reads"
            )
        if count < 1 and default != 0:
            raise self.refuse(f"{keys[0]} is {count}; at least 1 is needed")
        return count

    def per_layer(self, key: str, allowed: Collection[Any], count: int) -> list[Any] | None:
        """A list with one of ``allowed`` for each layer, or None where the key is absent."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count:
            raise self.refuse(
                f"{key} is not a list of {counted(count, 'value')}, one for each layer"
            )
        for item in value:
            if not isinstance(item, (str, int)) or item not in allowed:
                known = ", ".join(str(known) for known in allowed)
                raise self.refuse(f"{key} holds {str(item)[:40]!r}; known are {known}")
        return value

    def numbers(self, key: str) -> frozenset[int]:
        """A set of layer numbers, empty where the key is absent."""
        value = self.config.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.refuse(f"{key} is not a list of layer numbers")
        return frozenset(value)

    def part(self, key: str) -> ConfigReader:
        """The reader of a table inside this one."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            raise self.refuse(f"the configuration has no {key}")
        return ConfigReader(value, self.family)

    def experts(self, *keys: str) -> tuple[int, int]:
        """Number of experts (the first of ``keys``) and how many each token chooses."""
        return self.chosen(self.positive(*keys), self.positive(*_TOP_K))

    def chosen(self, experts: int, top_k: int) -> tuple[int, int]:
        """Both numbers, if they can be."""
        if experts > _MOST_EXPERTS:
            raise self.refuse(
                f"{counted(experts, 'expert')} are more than the {_MOST_EXPERTS} that moeplan reads"
            )
        if top_k > experts:
            raise self.refuse(f"each token chooses {top_k} of only {counted(experts, 'expert')}")
        return experts, top_k

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key and value heads, and a head's size."""
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        kv_heads = self.positive("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise self.refuse(
                f"{counted(heads, 'attention head')} cannot be divided among "
                f"{counted(kv_heads, 'key head')}"
            )
        head_dim = self.natural("head_dim", default=0)
        if not head_dim and hidden % heads:
            raise self.refuse(
                f"hidden_size {hidden} does not divide among {counted(heads, 'head')}"
            )
        return heads, kv_heads, head_dim or hidden // heads

    def window(self) -> int | None:
        """Sliding-window length; None where it is as long as the context or not used."""
        if not self.flag("use_sliding_window", True):
            return None
        window = self.natural("sliding_window", default=0)
        context = self.natural("max_position_embeddings", default=0)
        return window if window > 0 and (not context or window < context) else None
