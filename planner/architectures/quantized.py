"""Quantized checkpoints: what becomes of each weight, and the scales that come with it.

fp8 with a scale for each block (DeepSeek-V3, section 3.3, and many since), and MXFP4 with a scale
for each 32 values (gpt-oss). Other methods are refused by name.
"""

from __future__ import annotations

from dataclasses import replace

from planner.architectures.base import Architecture, Change, Weight
from planner.architectures.reading import ConfigReader

__all__ = ["apply_quantization"]

_MXFP4_GROUP = 32  # values that share one scale


def apply_quantization(read: ConfigReader, architecture: Architecture) -> Architecture:
    """The architecture as a checkpoint with this configuration stores it.

    Raises
    ------
    UnsupportedError
        If the quantization is of a kind that is not known.
    """
    if read.config.get("quantization_config") is None:
        return architecture
    settings = read.part("quantization_config")
    method = settings.word("quant_method", "none")
    if method == "fp8":
        return _each_layer(architecture, _Fp8(settings))
    if method == "mxfp4" and read.family == "gpt_oss":
        return _each_layer(architecture, _mxfp4)
    raise read.refuse(
        f"quantization method {method[:40]!r} is not known; known are fp8 and, for gpt_oss, "
        "mxfp4: use the unquantized checkpoint"
    )


class _Fp8:
    """Block-wise fp8: one byte a value, one float32 scale a block."""

    def __init__(self, settings: ConfigReader) -> None:
        self.settings = settings
        block = settings.config.get("weight_block_size")
        if (
            not isinstance(block, list)
            or len(block) != 2
            or not all(type(size) is int and size > 0 for size in block)
        ):
            raise settings.refuse("fp8 without weight_block_size (a pair of sizes) is not known")
        self.rows, self.columns = block
        kept = settings.config.get("modules_to_not_convert") or []
        if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
            raise settings.refuse("modules_to_not_convert is not a list of names")
        self.kept = tuple(f".{name.strip('.')}." for name in kept)

    def __call__(self, weight: Weight, prefix: str) -> tuple[Weight, ...]:
        name = f".{prefix}{weight.name}."
        if not weight.quantized or any(kept in name for kept in self.kept):
            return (weight,)
        if weight.rows is not None or len(weight.shape) != 2 or not name.endswith(".weight."):
            raise self.settings.refuse(f"fp8 is not known for {weight.name}")
        blocks = (-(-weight.shape[0] // self.rows), -(-weight.shape[1] // self.columns))
        scale = Weight(
            f"{weight.role}_scale_inv",
            blocks,
            weight.part,
            f"{weight.name}_scale_inv",
            dtype="F32",
            parameters=0,
        )
        return replace(weight, dtype="F8_E4M3"), scale


def _mxfp4(weight: Weight, prefix: str) -> tuple[Weight, ...]:
    """gpt-oss: an expert's matrices are stored with outputs first, two values a byte."""
    del prefix
    if not weight.quantized or weight.part != "expert":
        return (weight,)
    inputs, outputs = weight.shape
    groups = inputs // _MXFP4_GROUP
    return (
        Weight(
            f"{weight.role}_blocks",
            (outputs, groups, _MXFP4_GROUP // 2),
            weight.part,
            f"{weight.name}_blocks",
            dtype="U8",
            parameters=weight.values,
        ),
        Weight(
            f"{weight.role}_scales",
            (outputs, groups),
            weight.part,
            f"{weight.name}_scales",
            dtype="U8",
            parameters=0,
        ),
    )


def _each_layer(architecture: Architecture, change: Change) -> Architecture:
    return replace(
        architecture,
        layers=tuple(layer.map(change) for layer in architecture.layers),
        encoder_layers=tuple(layer.map(change) for layer in architecture.encoder_layers),
        spare=tuple(layer.map(change) for layer in architecture.spare),
    )
