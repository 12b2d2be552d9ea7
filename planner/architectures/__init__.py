"""Families of models: from a configuration to each weight's name, shape and part.

``base`` and ``blocks`` are what families share, ``reading`` checks a configuration's values;
``decoders``, ``latent``, ``hybrid``, ``fused``, ``translators`` and ``research`` are families,
``quantized`` says what becomes of a weight and its scales. The table below names them all.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.architectures import decoders, fused, hybrid, latent, research, translators
from planner.architectures.base import Architecture, Config, LayerShape, Weight
from planner.architectures.quantized import apply_quantization
from planner.architectures.reading import ConfigReader
from solvers.errors import UnsupportedError

__all__ = ["FAMILIES", "Architecture", "LayerShape", "Weight", "describe"]

FAMILIES: dict[str, Callable[[ConfigReader], Architecture]] = {
    "deepseek": decoders.deepseek_moe,
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": latent.deepseek_v3,
    "deepseek_v32": latent.deepseek_v32,
    "ernie4_5_moe": decoders.ernie,
    "glm4_moe": decoders.glm4_moe,
    "gpt_oss": fused.gpt_oss,
    "granitemoe": fused.granitemoe,
    "grinmoe": decoders.phimoe,
    "jetmoe": fused.jetmoe,
    "llama4_text": fused.llama4,
    "llama_moe": research.llama_moe,
    "minicpm": decoders.minicpm,
    "minimax": hybrid.minimax,
    "minimax_m1": hybrid.minimax_m1,
    "minimax_m2": decoders.minimax_m2,
    "mixtral": decoders.mixtral,
    "nllb-moe": translators.nllb_moe,
    "olmoe": decoders.olmoe,
    "openmoe": research.openmoe,
    "phimoe": decoders.phimoe,
    "qwen2_moe": decoders.qwen2_moe,
    "qwen3_5_moe_text": hybrid.qwen3_5_moe,
    "qwen3_moe": decoders.qwen3_moe,
    "qwen3_next": hybrid.qwen3_next,
    "switch_transformers": translators.switch,
    "xverse": decoders.xverse,
    "yuan": research.yuan,
}
"""By ``model_type``."""

_WRAPPERS = {"llama4": "llama4_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Multimodal models, and the family of their text part."""

_BY_CLASS = {
    "MiniCPMForCausalLM": "minicpm",
    "OpenMoeForCausalLM": "openmoe",
}
"""For configurations without a ``model_type``: by the class that they name."""


def describe(config: Config) -> Architecture:
    """Describe the model that ``config`` configures.

    Parameters
    ----------
    config
        A Hugging Face configuration (of a multimodal model: its text part is described), or one of
        DeepSeek's own inference code.

    Raises
    ------
    UnsupportedError
        If the family is unknown, or the configuration lacks something; the line names the model
        type and what is missing.
    """
    if config.get("model_type") is None and config.keys() >= latent.NATIVE_KEYS:
        config = latent.from_native(config)
    family = _family(config)
    if family in _WRAPPERS:
        config = _text_part(config, family)
        family = _WRAPPERS[family]
    if family not in FAMILIES:
        raise UnsupportedError(" ".join(_unknown(config, family).split()))
    read = ConfigReader(config, family)
    architecture = apply_quantization(read, FAMILIES[family](read))
    if not any(layer.experts for layer in architecture.layers):
        raise read.refuse("the configuration has no layer with experts")
    return architecture


def _family(config: Config) -> str:
    family = config.get("model_type")
    if family is None:
        classes = config.get("architectures")
        first = classes[0] if isinstance(classes, list) and classes else None
        family = _BY_CLASS.get(first) if isinstance(first, str) else None
        if family is None:
            raise UnsupportedError("the configuration has no model_type")
    if not isinstance(family, str):
        raise UnsupportedError(f"model_type is {str(family)[:40]}; a text is needed")
    return family


def _text_part(config: Config, family: str) -> Config:
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise UnsupportedError(f"model type {family!r}: the configuration has no text_config")
    outer = {
        key: config[key]
        for key in ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")
        if config.get(key) is not None
    }
    inner = {key: value for key, value in text.items() if value is not None}
    return {**outer, **inner, "moeplan_wrapped": True}


def _unknown(config: Config, family: str) -> str:
    if any("expert" in str(key) for key in config) or "text_config" in config:
        return f"model type {family[:60]!r} is not known; known are {', '.join(sorted(FAMILIES))}"
    return f"model type {family[:60]!r}: the configuration names no experts"
