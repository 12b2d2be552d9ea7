"""The model document of a checkpoint folder or of a bare configuration."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from planner.architectures import Architecture, LayerShape, Weight, describe
from planner.checkpoint import has_weights, load_config, read_checkpoint
from planner.documents import ModelSpec
from planner.files import is_dir, read_regular
from planner.model_bytes import DTYPES, LayerSizes, ModelSizes, build_model
from planner.weight_files import DTYPE_BITS
from solvers.errors import CheckpointError, UnsupportedError

__all__ = ["read_model"]

_STORED = {name: stored for stored, (name, _) in DTYPES.items() if name != "float8"}


def read_model(path: Path) -> ModelSpec:
    """Exact bytes of each part of each layer.

    Parameters
    ----------
    path
        A checkpoint folder (bytes from its safetensors headers), a folder with a ``config.json``
        alone, or such a file itself (bytes computed from it). A configuration that names no type
        is taken to be stored in the type of its family's checkpoints: float32 for Switch, NLLB-MoE
        and OpenMoE, bfloat16 for all others.

    Raises
    ------
    CheckpointError
        If something is missing, unreadable, or contradicts the configuration.
    UnsupportedError
        If the model is of a kind that is not known; the line names it and what is missing.
    """
    if is_dir(path):
        if has_weights(path):
            return read_checkpoint(path).model
        name, file = path.resolve().name, path / "config.json"
    else:
        name, file = path.stem, path
        if path.name == "config.json":
            name = path.resolve().parent.name
    config = load_config(file)
    try:
        architecture = describe(config)
        dtype = _dtype(config, architecture)
    except UnsupportedError as error:
        raise UnsupportedError(" ".join(f"{file}: {error}".split())) from error
    data = read_regular(file, error_class=CheckpointError)
    return build_model(
        architecture,
        _sizes(architecture, dtype),
        name=name,
        bytes_source="config",
        fingerprint=hashlib.sha256(data).hexdigest(),
        synthetic=bool(config.get("moeplan_synthetic")),
    )


def _dtype(config: Mapping[str, Any], architecture: Architecture) -> str:
    """The type that weights are stored in, as a safetensors header would name it."""
    inner = config.get("text_config")
    name = None
    for table in (config, inner if isinstance(inner, dict) else {}):
        name = name or table.get("torch_dtype") or table.get("dtype")
    if name == "fp8" and config.get("model_type") is None:
        name = None  # DeepSeek's own configuration: the rest is stored in bfloat16
    name = str(name or architecture.default_dtype).removeprefix("torch.")
    name = {"bf16": "bfloat16"}.get(name, name)
    if name not in _STORED:
        known = ", ".join(sorted(_STORED))
        raise UnsupportedError(
            f"model type {architecture.family!r}: dtype {name[:40]!r} is not known (only {known})"
        )
    return _STORED[name]


def _sizes(architecture: Architecture, dtype: str) -> ModelSizes:
    """Bytes of every part, computed from shapes."""
    by_dtype: Counter[str] = Counter()

    def size(weight: Weight, times: int = 1) -> int:
        stored = weight.dtype or dtype
        one = prod(weight.shape) * DTYPE_BITS[stored] // 8
        by_dtype[stored] += one * times
        return one

    def layers(shapes: Iterable[LayerShape]) -> tuple[LayerSizes, ...]:
        return tuple(
            LayerSizes(
                tuple(size(weight) for weight in shape.dense),
                sum(size(weight, shape.experts) for weight in shape.expert),
            )
            for shape in shapes
        )

    def whole(shape: LayerShape) -> int:
        one = sum(size(weight, shape.experts) for weight in shape.expert)
        return sum(size(weight) for weight in shape.dense) + shape.experts * one

    extra = Counter[str]()
    for weight in (*architecture.extra, *architecture.encoder_other):
        extra["head" if weight.role.startswith("lm_head") else "norm"] += size(weight)
    return ModelSizes(
        layers=layers(architecture.stack),
        embedding=size(architecture.embedding),
        final_norm=size(architecture.final_norm) + extra["norm"],
        head=(size(architecture.head) if architecture.head else 0) + extra["head"],
        other=sum(whole(shape) for shape in architecture.spare),
        by_dtype=by_dtype,
    )
