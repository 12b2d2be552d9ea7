"""Tensors over a unit's bytes, and an expert's matrices made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from executor.adapters import ExpertWeights
from executor.quantized import QuantizedMatrix
from planner.documents import LayerSpec, ModelSpec, QuantizedExperts
from planner.quantized import expert_matrices, group_of

__all__ = ["STORED", "TensorAt", "host_tensor", "quantized_expert"]

STORED = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I8": torch.int8,
    "U8": torch.uint8,
}

TensorAt = Callable[[int, tuple[int, ...], torch.dtype], torch.Tensor]
"""A tensor over the bytes at an offset."""


def host_tensor(
    held: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over bytes in host memory."""
    size = dtype.itemsize * math.prod(shape)
    return held[offset : offset + size].view(dtype).view(shape)


def quantized_expert(
    model: ModelSpec, layer: LayerSpec, how: QuantizedExperts, tensors: Mapping[str, torch.Tensor]
) -> ExpertWeights:
    """An expert that is quantized, out of its unit's tensors by role."""
    gate_up, down = (
        QuantizedMatrix(
            tensors[f"{role}.values"],
            tensors[f"{role}.scales"],
            rows,
            columns,
            group_of(how, columns),
        )
        for role, (rows, columns) in zip(
            ("gate_up", "down"), expert_matrices(model, layer), strict=True
        )
    )
    return ExpertWeights(gate_up, down, tensors.get("gate_up.bias"), tensors.get("down.bias"))
