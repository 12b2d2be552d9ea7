"""Families of models: from a configuration to each weight's name, shape and part."""

from __future__ import annotations

from collections.abc import Callable

from planner.architectures import llama_like
from planner.architectures.base import Architecture, Config, LayerShape, Weight
from solvers.errors import UnsupportedError

__all__ = ["FAMILIES", "Architecture", "LayerShape", "Weight", "describe"]

FAMILIES: dict[str, Callable[[Config], Architecture]] = {
    "mixtral": llama_like.mixtral,
    "olmoe": llama_like.olmoe,
    "qwen3_moe": llama_like.qwen3_moe,
}
"""By ``model_type``."""


def describe(config: Config) -> Architecture:
    """Describe the model that ``config`` (a Hugging Face configuration) configures.

    Raises
    ------
    UnsupportedError
        If the family is unknown, or the configuration lacks something; the line names the model
        type and what is missing.
    """
    family = config.get("model_type")
    if not isinstance(family, str):
        raise UnsupportedError("the configuration has no model_type")
    if family not in FAMILIES:
        raise UnsupportedError(
            f"model type {family[:60]!r} is not known; known are {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[family](config)
