"""A checkpoint folder as the executor needs it: where each tensor of each part lies."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.architectures import Architecture, LayerShape, Weight, describe
from planner.architectures.base import Part
from planner.documents import ModelSpec
from planner.files import exists, is_dir, read_regular
from planner.model_bytes import DTYPES, LayerSizes, ModelSizes, build_model
from planner.weight_files import StoredTensor, WeightFile, read_weight_file, sampled_digest
from solvers.counting import counted
from solvers.errors import CheckpointError, UnsupportedError

__all__ = ["Checkpoint", "TensorEntry", "has_weights", "load_config", "read_checkpoint"]

Entries = tuple["TensorEntry", ...]
_QUANTIZED = ("F8_E4M3", "F8_E5M2", "U8")
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
    part
        What it belongs to.
    """

    name: str
    role: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    part: Part = "outside"


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
        ``dense[layer]``: the dense part's tensors, in one order for all layers of a kind; an
        encoder's layers come before the decoder's.
    experts
        ``experts[layer][expert]``: gate, up, down (one tensor for both where they alternate), then
        biases; with fp8 each weight's scales after it; no experts in a dense layer.
    extra
        Further tensors of the head or the final norm: their biases, in the few models with any,
        and an encoder's final norm.
    """

    folder: Path
    config: dict[str, Any]
    model: ModelSpec
    embedding: TensorEntry
    head: TensorEntry
    final_norm: TensorEntry
    dense: tuple[tuple[TensorEntry, ...], ...]
    experts: tuple[tuple[tuple[TensorEntry, ...], ...], ...]
    extra: tuple[TensorEntry, ...] = ()


def load_config(path: Path) -> dict[str, Any]:
    """Read a ``config.json``.

    Raises
    ------
    CheckpointError
        If it is missing, unreadable or not a JSON object.
    """
    try:
        value = json.loads(
            read_regular(path, "config.json of a checkpoint", error_class=CheckpointError).decode()
        )
    except (ValueError, RecursionError) as error:
        raise _fault(path, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _fault(path, "not a JSON object")
    return value


def has_weights(folder: Path) -> bool:
    """Whether ``folder`` holds weight files of any kind, or an index of them."""
    patterns = ("*.safetensors", _INDEX, "*.bin", "*.pt", "*.pth", "*.gguf")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


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
    if not is_dir(folder):
        what = "is no folder" if exists(folder) else "no such folder"
        raise _fault(folder, f"{what}; a checkpoint folder was expected")
    config = load_config(folder / "config.json")
    try:
        architecture = describe(config)
    except UnsupportedError as error:
        raise UnsupportedError(" ".join(f"{folder / 'config.json'}: {error}".split())) from error
    files = _weight_files(folder)
    stored = {name: tensor for file in files for name, tensor in file.tensors.items()}
    find = _Finder(folder, stored)
    embedding = find.whole(architecture.embedding)
    final_norm = find.whole(architecture.final_norm)
    head = _head(architecture, stored, find, embedding)
    extra = tuple(
        find.whole(weight) for weight in (*architecture.extra, *architecture.encoder_other)
    )
    layers = [find.layer(shape) for shape in architecture.stack]
    sizes = ModelSizes(
        layers=tuple(_sizes(*layer) for layer in layers),
        embedding=embedding.size_bytes,
        final_norm=final_norm.size_bytes
        + sum(entry.size_bytes for entry in extra if not entry.name.startswith("lm_head")),
        head=(0 if head is embedding else head.size_bytes)
        + sum(entry.size_bytes for entry in extra if entry.name.startswith("lm_head")),
        other=find.rest(architecture),
        by_dtype=find.by_dtype(),
    )
    model = build_model(
        architecture,
        sizes,
        name=folder.resolve().name,
        bytes_source="headers",
        fingerprint=_fingerprint(folder, files),
        synthetic=bool(config.get("moeplan_synthetic")),
    )
    return Checkpoint(
        folder,
        config,
        model,
        embedding,
        head,
        final_norm,
        tuple(dense for dense, _ in layers),
        tuple(experts for _, experts in layers),
        extra,
    )


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(" ".join(f"{path}: {what}".split()))


def _weight_files(folder: Path) -> list[WeightFile]:
    """Headers of all weight files, in the order of their names."""
    index = folder / _INDEX
    if exists(index):
        return _sharded(folder, index)
    single = folder / _SINGLE
    if exists(single):
        return [read_weight_file(single)]
    loose = sorted(folder.glob("*.safetensors"))
    if len(loose) == 1:
        return [read_weight_file(loose[0])]
    if loose:
        raise _fault(folder, f"{counted(len(loose), 'safetensors file')} but no {_INDEX}")
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
        if not exists(folder / shard):
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
        self.used: set[str] = set()

    def whole(self, weight: Weight, prefix: str = "", expert: int | None = None) -> TensorEntry:
        """A tensor that is one weight."""
        name = prefix + weight.name
        if expert is not None:
            name = name.replace("{e}", str(expert))
        tensor = self._get(name, weight, weight.shape)
        return TensorEntry(
            name,
            weight.role,
            tensor.file,
            tensor.dtype,
            tensor.shape,
            tensor.offset_bytes,
            tensor.size_bytes,
            weight.part,
        )

    def layer(self, shape: LayerShape) -> tuple[Entries, tuple[Entries, ...]]:
        """A layer's dense part, and each of its experts."""
        dense = tuple(self.whole(weight, shape.prefix) for weight in shape.dense)
        # one look-up for a fused tensor, however many experts share it
        fused = {
            weight: self._get(
                shape.prefix + weight.name,
                weight,
                (shape.experts, _rows(weight), *weight.shape[1:]),
            )
            for weight in shape.expert
            if "{e}" not in weight.name
        }
        experts = tuple(
            tuple(
                self._share(fused[weight], weight, shape.experts, index)
                if weight in fused
                else self.whole(weight, shape.prefix, index)
                for weight in shape.expert
            )
            for index in range(shape.experts)
        )
        return dense, experts

    @staticmethod
    def _share(tensor: StoredTensor, weight: Weight, experts: int, index: int) -> TensorEntry:
        """One expert's share of a tensor that holds all of them, whole or some of its rows."""
        share = tensor.size_bytes // experts
        begin, end, rows = weight.rows or (0, 1, 1)
        row = share // rows
        return TensorEntry(
            tensor.name,
            weight.role,
            tensor.file,
            tensor.dtype,
            weight.shape,
            tensor.offset_bytes + index * share + begin * row,
            (end - begin) * row,
            weight.part,
        )

    def rest(self, architecture: Architecture) -> int:
        """Bytes of the tensors that nothing used; each must be one that may be left alone."""
        size = 0
        for name, tensor in self.stored.items():
            if name in self.used:
                continue
            if not architecture.skipped(name):
                raise _fault(
                    tensor.file,
                    f"tensor {name!r} has no place in a {architecture.family} model of "
                    f"{counted(len(architecture.layers), 'layer')}, as config.json describes it",
                )
            size += tensor.size_bytes
        return size

    def by_dtype(self) -> Counter[str]:
        """Bytes of each type among the tensors used."""
        sizes: Counter[str] = Counter()
        for name in self.used:
            sizes[self.stored[name].dtype] += self.stored[name].size_bytes
        return sizes

    def _get(self, name: str, weight: Weight, expected: tuple[int, ...]) -> StoredTensor:
        tensor = self.stored.get(name)
        if tensor is None:
            raise _fault(self.folder, f"tensor {name!r} is missing, though config.json asks for it")
        if tensor.shape != expected:
            raise _fault(
                tensor.file,
                f"tensor {name!r} is {_show(tensor.shape)}; config.json asks for {_show(expected)}",
            )
        packed = weight.dtype if weight.dtype in _QUANTIZED else ""
        if (packed or tensor.dtype in _QUANTIZED) and tensor.dtype != packed:
            raise _fault(
                tensor.file,
                f"tensor {name!r} is of type {tensor.dtype}; config.json asks for "
                f"{packed or 'an unquantized one'}",
            )
        if not packed and tensor.dtype not in DTYPES:
            raise _fault(tensor.file, f"tensor {name!r} is of type {tensor.dtype}, not a float")
        self.used.add(name)
        return tensor


def _rows(weight: Weight) -> int:
    """Rows of one expert's share of the tensor that ``weight`` is stored in."""
    return weight.rows[2] if weight.rows else weight.shape[0]


def _sizes(dense: Entries, experts: tuple[Entries, ...]) -> LayerSizes:
    sizes = {sum(entry.size_bytes for entry in expert) for expert in experts}
    if len(sizes) > 1:
        name = experts[0][0].name
        raise UnsupportedError(f"the experts beside {name!r} differ in bytes")
    return LayerSizes(tuple(entry.size_bytes for entry in dense), next(iter(sizes)) if sizes else 0)


def _show(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "a single number"


def _head(
    architecture: Architecture,
    stored: dict[str, StoredTensor],
    find: _Finder,
    embedding: TensorEntry,
) -> TensorEntry:
    if architecture.head is not None:
        return find.whole(architecture.head)
    # stored in spite of being tied: it may differ, and then it is the one that counts
    name = "lm_head.weight"
    if name in stored and not architecture.encoder_layers:
        return find.whole(Weight(name, architecture.embedding.shape, "outside"))
    return embedding


def _fingerprint(folder: Path, files: list[WeightFile]) -> str:
    digest = hashlib.sha256(read_regular(folder / "config.json"))
    for file in files:
        digest.update(sampled_digest(file))
    return digest.hexdigest()
