"""From sizes to the model document: one way for headers and for bare configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from planner.architectures import Architecture, LayerShape
from planner.documents import LayerSpec, ModelSpec

__all__ = ["DTYPES", "LayerSizes", "ModelSizes", "StorageType", "build_model", "main_dtype"]

StorageType = Literal["float32", "bfloat16", "float16", "float8"]

DTYPES: dict[str, tuple[StorageType, int]] = {
    "F32": ("float32", 4),
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "F8_E4M3": ("float8", 1),
    "F8_E5M2": ("float8", 1),
}
"""The types that weights may have, as safetensors headers name them: ours, and their width."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of each weight of a layer's dense part, in its order, and of one expert."""

    dense: tuple[int, ...]
    expert: int


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Bytes of every part of a model, and of each type that they are stored in."""

    layers: tuple[LayerSizes, ...]
    embedding: int
    final_norm: int
    head: int
    other: int
    by_dtype: Counter[str]


def main_dtype(by_dtype: Counter[str]) -> tuple[StorageType, int]:
    """The type of most bytes, packed 4-bit values aside, and its width."""
    floats = [dtype for dtype in sorted(by_dtype) if dtype in DTYPES]
    return DTYPES[max(floats, key=lambda dtype: by_dtype[dtype])]


def build_model(
    architecture: Architecture,
    sizes: ModelSizes,
    *,
    name: str,
    bytes_source: Literal["headers", "config"],
    fingerprint: str,
    synthetic: bool,
) -> ModelSpec:
    """The model document of an architecture whose parts have these sizes.

    Cached values are counted in the model's main type, as the document has it.
    """
    dtype, dtype_bytes = main_dtype(sizes.by_dtype)
    return ModelSpec(
        name=name,
        family=architecture.family,
        dtype=dtype,
        dtype_bytes=dtype_bytes,
        hidden_size=architecture.hidden_size,
        vocab_size=architecture.vocab_size,
        attention_heads=architecture.attention_heads,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_context=architecture.max_context,
        layers=_layers(architecture.stack, sizes.layers, dtype_bytes),
        embedding_bytes=sizes.embedding,
        head_bytes=sizes.head,
        final_norm_bytes=sizes.final_norm,
        other_bytes=sizes.other,
        tied=sizes.head == 0,
        parameters=architecture.parameters,
        active_parameters=architecture.active_parameters,
        bytes_source=bytes_source,
        fingerprint=fingerprint,
        synthetic=synthetic,
        encoder=len(architecture.encoder_layers) or None,
    )


def _layers(
    shapes: Iterable[LayerShape], sizes: Iterable[LayerSizes], dtype_bytes: int
) -> tuple[LayerSpec, ...]:
    return tuple(
        _layer(index, shape, size, dtype_bytes)
        for index, (shape, size) in enumerate(zip(shapes, sizes, strict=True))
    )


def _layer(index: int, shape: LayerShape, sizes: LayerSizes, dtype_bytes: int) -> LayerSpec:
    parts: Counter[str] = Counter()
    for weight, size in zip(shape.dense, sizes.dense, strict=True):
        parts[weight.part] += size
    return LayerSpec(
        index=index,
        attention_bytes=parts["attention"],
        router_bytes=parts["router"],
        norm_bytes=parts["norm"],
        shared_expert_bytes=parts["shared_expert"],
        mlp_bytes=parts["mlp"],
        experts=shape.experts,
        top_k=shape.top_k,
        expert_bytes=sizes.expert,
        expert_intermediate=shape.expert_intermediate,
        kv_bytes_per_token=shape.kv_values * dtype_bytes,
        window=shape.window,
        state_bytes=shape.state_values * dtype_bytes + 4 * shape.state_float32_values,
    )
