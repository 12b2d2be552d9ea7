"""A checkpoint folder as the executor needs it: where each tensor of each part lies."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner.architectures import Architecture, LayerShape, Weight, describe
from planner.documents import LayerSpec, ModelSpec
from planner.weight_files import StoredTensor, WeightFile, read_weight_file, sampled_digest
from solvers.errors import CheckpointError, UnsupportedError

__all__ = ["Checkpoint", "TensorEntry", "load_config", "read_checkpoint"]

Stored = Literal["float32", "bfloat16", "float16", "float8"]
_DTYPES: dict[str, tuple[Stored, int]] = {
    "F32": ("float32", 4),
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "F8_E4M3": ("float8", 1),
    "F8_E5M2": ("float8", 1),
}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor, or one expert's share of a tensor that holds several.

    Attributes
    ----------
    name
        As stored.
    role
        Its parameter's name inside the layer in transformers' module (``self_attn.q_proj.weight``,
        ``mlp.gate.weight``); for an expert ``gate_proj.weight``, ``up_proj.weight``,
        ``down_proj.weight``; outside the layers the full name.
    file
        Where it is stored.
    dtype
        As in the file's header: ``F32``, ``BF16``, ``F16``, ``F8_E4M3``.
    shape
        Of this entry.
    offset_bytes, size_bytes
        Its place, from the start of the file.
    """

    name: str
    role: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint whose files hold everything that its configuration asks for.

    Attributes
    ----------
    folder
        As given.
    config
        ``config.json``.
    model
        Exact bytes of each part.
    embedding, head, final_norm
        Outside the layers; a tied head is the embedding's entry.
    dense
        ``dense[layer]``: the dense part's tensors, in one order for all layers of a kind.
    experts
        ``experts[layer][expert]``: gate, up, down; no experts in a dense layer.
    """

    folder: Path
    config: dict[str, Any]
    model: ModelSpec
    embedding: TensorEntry
    head: TensorEntry
    final_norm: TensorEntry
    dense: tuple[tuple[TensorEntry, ...], ...]
    experts: tuple[tuple[tuple[TensorEntry, ...], ...], ...]


def load_config(path: Path) -> dict[str, Any]:
    """Read a ``config.json``.

    Raises
    ------
    CheckpointError
        If it is missing, unreadable or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _fault(path, "no such file; a checkpoint folder has a config.json") from None
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise _fault(path, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _fault(path, "not a JSON object")
    return value


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of a checkpoint's weight files and hold them against its configuration.

    Raises
    ------
    CheckpointError
        If something is missing, truncated or of another shape than the configuration says; the
        line names the file and the tensor.
    UnsupportedError
        If the model is of a kind that is not known, or has no experts.
    """
    if not folder.is_dir():
        raise _fault(folder, "no such folder; a checkpoint folder was expected")
    config = load_config(folder / "config.json")
    architecture = describe(config)
    files = _weight_files(folder)
    stored = {name: tensor for file in files for name, tensor in file.tensors.items()}
    finder = _Finder(folder, stored)
    embedding = finder.outside(architecture.embedding)
    final_norm = finder.outside(architecture.final_norm)
    head = _head(architecture, stored, finder, embedding)
    dense = []
    experts = []
    for layer in architecture.layers:
        dense.append(tuple(finder.dense(layer, weight) for weight in layer.dense))
        experts.append(
            tuple(
                tuple(finder.expert(layer, weight, index) for weight in layer.expert)
                for index in range(layer.experts)
            )
        )
    other_bytes = finder.rest(architecture)
    dtype, dtype_bytes = _main_dtype(folder, finder.used)
    tied = head is embedding
    model = ModelSpec(
        name=folder.resolve().name,
        family=architecture.family,
        dtype=dtype,
        dtype_bytes=dtype_bytes,
        hidden_size=architecture.hidden_size,
        vocab_size=architecture.vocab_size,
        attention_heads=architecture.attention_heads,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_context=architecture.max_context,
        layers=tuple(
            _layer_spec(folder, index, shape, dense[index], experts[index], dtype_bytes)
            for index, shape in enumerate(architecture.layers)
        ),
        embedding_bytes=embedding.size_bytes,
        head_bytes=0 if tied else head.size_bytes,
        final_norm_bytes=final_norm.size_bytes,
        other_bytes=other_bytes,
        tied=tied,
        parameters=architecture.parameters,
        active_parameters=architecture.active_parameters,
        bytes_source="headers",
        fingerprint=_fingerprint(folder, files),
        synthetic=bool(config.get("moeplan_synthetic")),
    )
    return Checkpoint(
        folder, config, model, embedding, head, final_norm, tuple(dense), tuple(experts)
    )


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(" ".join(f"{path}: {what}".split()))


def _weight_files(folder: Path) -> list[WeightFile]:
    """Headers of all weight files, in the order of their names."""
    index = folder / _INDEX
    if index.exists():
        return _sharded(folder, index)
    single = folder / _SINGLE
    if single.exists():
        return [read_weight_file(single)]
    loose = sorted(folder.glob("*.safetensors"))
    if len(loose) == 1:
        return [read_weight_file(loose[0])]
    if loose:
        raise _fault(folder, f"{len(loose)} safetensors files but no {_INDEX}")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise _fault(folder, "its weights are not safetensors; convert them first")
    raise _fault(folder, f"no weights: neither {_SINGLE} nor {_INDEX}")


def _sharded(folder: Path, index: Path) -> list[WeightFile]:
    table = load_config(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise _fault(index, "it has no weight_map")
    for name, shard in table.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise _fault(index, f"tensor {name!r}: {str(shard)[:60]!r} is not a file name")
    files = []
    for shard in sorted(set(table.values())):
        if not (folder / shard).exists():
            name = next(name for name, place in table.items() if place == shard)
            raise _fault(folder / shard, f"missing; {_INDEX} says that it holds tensor {name!r}")
        files.append(read_weight_file(folder / shard))
    by_name = {file.path.name: file for file in files}
    for name, shard in table.items():
        if name not in by_name[shard].tensors:
            raise _fault(
                folder / shard, f"tensor {name!r} is missing, though {_INDEX} puts it here"
            )
    seen: set[str] = set()
    for file in files:
        for name in file.tensors:
            if table.get(name) != file.path.name or name in seen:
                raise _fault(file.path, f"tensor {name!r} is not the one that {_INDEX} names")
            seen.add(name)
    return files


class _Finder:
    """Looks up weights by their stored names, checks their shapes, and remembers what was used."""

    def __init__(self, folder: Path, stored: dict[str, StoredTensor]) -> None:
        self.folder = folder
        self.stored = stored
        self.used: dict[str, StoredTensor] = {}

    def outside(self, weight: Weight) -> TensorEntry:
        """A tensor outside the layers."""
        return self._whole(weight.name, weight)

    def dense(self, layer: LayerShape, weight: Weight) -> TensorEntry:
        """A tensor of a layer's dense part."""
        return self._whole(layer.prefix + weight.name, weight)

    def expert(self, layer: LayerShape, weight: Weight, expert: int) -> TensorEntry:
        """An expert's tensor, or its share of a fused one."""
        name = layer.prefix + weight.name
        if "{e}" in name:
            return self._whole(name.replace("{e}", str(expert)), weight)
        rows = weight.rows or (0, weight.shape[0])
        tensor = self._get(name)
        whole = tensor.shape[1] if len(tensor.shape) > 1 else 0
        expected = (layer.experts, max(whole, rows[1]), *weight.shape[1:])
        self._check(tensor, expected)
        row_bytes = tensor.size_bytes // (layer.experts * whole)
        offset = tensor.offset_bytes + (expert * whole + rows[0]) * row_bytes
        return TensorEntry(
            name,
            weight.role,
            tensor.file,
            tensor.dtype,
            weight.shape,
            offset,
            (rows[1] - rows[0]) * row_bytes,
        )

    def rest(self, architecture: Architecture) -> int:
        """Bytes of the tensors that no layer uses."""
        size = 0
        known = {weight.name for weight in architecture.other}
        for name, tensor in self.stored.items():
            if name in self.used:
                continue
            if name not in known and not architecture.ignored(name):
                raise _fault(
                    tensor.file,
                    f"tensor {name!r} has no place in a {architecture.family} model of "
                    f"{len(architecture.layers)} layers",
                )
            size += tensor.size_bytes
        return size

    def _whole(self, name: str, weight: Weight) -> TensorEntry:
        tensor = self._get(name)
        self._check(tensor, weight.shape)
        return TensorEntry(
            name,
            weight.role,
            tensor.file,
            tensor.dtype,
            tensor.shape,
            tensor.offset_bytes,
            tensor.size_bytes,
        )

    def _get(self, name: str) -> StoredTensor:
        tensor = self.stored.get(name)
        if tensor is None:
            raise _fault(self.folder, f"tensor {name!r} is missing, though config.json asks for it")
        if tensor.dtype not in _DTYPES:
            raise _fault(tensor.file, f"tensor {name!r} is of type {tensor.dtype}, not a float")
        self.used[name] = tensor
        return tensor

    def _check(self, tensor: StoredTensor, expected: tuple[int, ...]) -> None:
        if tensor.shape != expected:
            raise _fault(
                tensor.file,
                f"tensor {tensor.name!r} is {_show(tensor.shape)}; "
                f"config.json asks for {_show(expected)}",
            )


def _show(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "a single number"


def _head(
    architecture: Architecture,
    stored: dict[str, StoredTensor],
    finder: _Finder,
    embedding: TensorEntry,
) -> TensorEntry:
    if architecture.head is not None:
        return finder.outside(architecture.head)
    # stored in spite of being tied: it may differ, and then it is the one that counts
    name = "lm_head.weight"
    if name in stored:
        return finder.outside(Weight(name, architecture.embedding.shape, "outside"))
    return embedding


def _main_dtype(folder: Path, used: dict[str, StoredTensor]) -> tuple[Stored, int]:
    sizes: Counter[str] = Counter()
    for tensor in used.values():
        sizes[tensor.dtype] += tensor.size_bytes
    if not sizes:
        raise _fault(folder, "no tensor is used")
    return _DTYPES[max(sorted(sizes), key=lambda dtype: sizes[dtype])]


def _layer_spec(
    folder: Path,
    index: int,
    shape: LayerShape,
    dense: tuple[TensorEntry, ...],
    experts: tuple[tuple[TensorEntry, ...], ...],
    dtype_bytes: int,
) -> LayerSpec:
    parts: Counter[str] = Counter()
    for weight, entry in zip(shape.dense, dense, strict=True):
        parts[weight.part] += entry.size_bytes
    sizes = {sum(entry.size_bytes for entry in expert) for expert in experts}
    if len(sizes) > 1:
        raise UnsupportedError(f"{folder}: the experts of layer {index} differ in bytes")
    return LayerSpec(
        index=index,
        attention_bytes=parts["attention"],
        router_bytes=parts["router"],
        norm_bytes=parts["norm"],
        shared_expert_bytes=parts["shared_expert"],
        mlp_bytes=parts["mlp"],
        experts=shape.experts,
        top_k=shape.top_k,
        expert_bytes=sizes.pop() if sizes else 0,
        expert_intermediate=shape.expert_intermediate,
        kv_bytes_per_token=shape.kv_values * dtype_bytes,
        window=shape.window,
    )


def _fingerprint(folder: Path, files: list[WeightFile]) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in files:
        digest.update(sampled_digest(file))
    return digest.hexdigest()
