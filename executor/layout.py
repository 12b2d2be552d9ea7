"""Where each tensor lies inside its unit: one layout for stores and for slots.

An expert is ``gate | up | down`` without gaps, so that gate and up are one matrix. A dense part is
its tensors in the checkpoint's order, each at a multiple of 64 bytes. The embedding and
the head are one tensor each; biases of the final norm and of the head lie behind the final norm.
A quantized expert is what ``executor.quantized`` says of both its matrices, and its biases, each at
a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import get_args

from executor.families import check_family
from planner.checkpoint import Checkpoint, TensorEntry
from planner.documents import OWN, FormName, LayerSpec, ModelSpec, QuantizedExperts
from planner.memory import DENSE_TENSORS, TENSOR_ALIGNMENT_BYTES
from planner.quantized import LEAST_GROUP, expert_matrices, group_of, value_bytes
from solvers.counting import counted
from solvers.errors import UnsupportedError

__all__ = [
    "Place",
    "UnitLayout",
    "dense_name",
    "expert_name",
    "form_name",
    "form_of",
    "is_raw",
    "is_second",
    "quantized_layouts",
    "raw_name",
    "unit_layouts",
    "with_forms",
    "with_raw",
]

EMBEDDING, HEAD, FINAL_NORM = "embedding", "head", "final_norm"
_RAW = "raw."
_STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor inside a unit."""

    role: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """One unit: its tensors' places, and where the checkpoint has each of them."""

    name: str
    size_bytes: int
    places: tuple[Place, ...]
    sources: tuple[TensorEntry, ...]


def dense_name(layer: int) -> str:
    """Name of a layer's dense part."""
    return f"dense.{layer}"


def expert_name(layer: int, expert: int) -> str:
    """Name of an expert."""
    return f"expert.{layer}.{expert}"


def raw_name(name: str) -> str:
    """Name of the unit that has an expert as it is, beside its compressed one."""
    return _RAW + name


def is_raw(name: str) -> bool:
    """Whether a unit is such a second one."""
    return name.startswith(_RAW)


def with_raw(layouts: dict[str, UnitLayout]) -> dict[str, UnitLayout]:
    """The units of a store that has its experts compressed and as they are: the latter last."""
    experts = [unit for name, unit in layouts.items() if name.startswith("expert.")]
    return layouts | {raw_name(one.name): replace(one, name=raw_name(one.name)) for one in experts}


def form_name(name: str, form: FormName) -> str:
    """Name of the unit that has an expert in a form, of a store that has several."""
    return name if form == OWN else f"{form}.{name}"


def form_of(name: str) -> tuple[FormName, str]:
    """The form of a unit, and the expert's own name: the inverse of ``form_name``."""
    for form in get_args(FormName):
        if name.startswith(f"{form}."):
            return form, name.removeprefix(f"{form}.")
    return OWN, name


def is_second(name: str) -> bool:
    """Whether a unit has an expert once more, in whichever way."""
    return is_raw(name) or form_of(name)[0] != OWN


def with_forms(
    layouts: dict[str, UnitLayout], model: ModelSpec, forms: Iterable[QuantizedExperts]
) -> dict[str, UnitLayout]:
    """The units of a store that has its experts in several forms: the quantized ones last.

    Raises
    ------
    UnsupportedError
        As ``quantized_layouts``.
    """
    found = dict(layouts)
    for how in forms:
        for name, unit in quantized_layouts(layouts, model, how).items():
            if name.startswith("expert."):
                own = form_name(name, how.format)
                found[own] = replace(unit, name=own)
    return found


def unit_layouts(checkpoint: Checkpoint) -> dict[str, UnitLayout]:
    """Every unit of a checkpoint, in the order in which a store has them.

    A tied head has no unit of its own.

    Raises
    ------
    UnsupportedError
        If the model's family cannot be run, a dense part has more tensors than the memory account
        allows for, or a tensor is of another type than the model (a router may be in float32, as
        some families compute it).
    """
    check_family(checkpoint.model)
    own = _STORED.get(checkpoint.model.dtype)
    for entry in _entries(checkpoint):
        if entry.dtype != own and (entry.part, entry.dtype) != ("router", "F32"):
            raise UnsupportedError(
                f"{entry.file}: {entry.name} is of type {entry.dtype}, but the model computes in "
                f"{checkpoint.model.dtype}; mixed types and float8 cannot be run yet"
            )
    units = [_unit(EMBEDDING, (checkpoint.embedding,), 1)]
    for layer, dense in enumerate(checkpoint.dense):
        if len(dense) > DENSE_TENSORS:
            raise UnsupportedError(
                f"layer {layer} has {counted(len(dense), 'tensor')} besides its experts; "
                f"at most {DENSE_TENSORS} are supported"
            )
        units.append(_unit(dense_name(layer), dense, TENSOR_ALIGNMENT_BYTES))
        units += [
            _unit(expert_name(layer, index), expert, 1)
            for index, expert in enumerate(checkpoint.experts[layer])
        ]
    units.append(_unit(FINAL_NORM, (checkpoint.final_norm, *checkpoint.extra), 1))
    if not checkpoint.model.tied:
        units.append(_unit(HEAD, (checkpoint.head,), 1))
    return {unit.name: unit for unit in units}


def quantized_layouts(
    layouts: dict[str, UnitLayout], model: ModelSpec, how: QuantizedExperts
) -> dict[str, UnitLayout]:
    """The units of a store whose experts are quantized; ``sources`` stay the checkpoint's.

    Raises
    ------
    UnsupportedError
        If groups do not fit an expert's rows, or the model has an encoder.
    """
    if model.encoder:
        raise UnsupportedError(
            f"{model.name}: experts of an encoder-decoder cannot be quantized yet"
        )
    found = dict(layouts)
    for layer in model.layers:
        for expert in range(layer.experts):
            name = expert_name(layer.index, expert)
            found[name] = _quantized(layouts[name], model, layer, how)
    return found


def _groups(columns: int) -> str:
    """The sizes next to the usual ones that a row can be cut into."""
    fitting = [size for size in range(LEAST_GROUP, columns + 1) if columns % size == 0]
    return ", ".join(map(str, fitting[:4]))


def _quantized(
    unit: UnitLayout, model: ModelSpec, layer: LayerSpec, how: QuantizedExperts
) -> UnitLayout:
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    own, width = _STORED[model.dtype], model.dtype_bytes
    shapes = expert_matrices(model, layer)
    for role, (rows, columns) in zip(("gate_up", "down"), shapes, strict=True):
        group, fault = group_of(how, columns), None
        if not group:
            size = "" if how.group is None else f" of {how.group} (try {_groups(columns)})"
            fault = f"its {columns} columns cannot be cut into groups{size}"
        elif rows % 2 and how.format == "int4-1":
            fault = "odd rows"
        if fault is not None:
            raise UnsupportedError(
                f"{model.name}: {role} of layer {layer.index}'s experts is {rows} x {columns}: "
                f"{fault}, so it cannot be stored in {how.format}"
            )
        if how.format == "int8-1":
            tensors.append((f"{role}.values", "I8", (rows, columns)))
            tensors.append((f"{role}.scales", own, (rows, columns // group)))
        else:
            tensors.append((f"{role}.values", "U8", (value_bytes(how, rows, columns),)))
            tensors.append((f"{role}.scales", own, (columns // group, rows, 2)))
    biases = [place for place in unit.places if "bias" in place.role]
    tensors += [
        (f"{role}.bias", place.dtype, place.shape)
        for role, place in zip(("gate_up", "down"), biases, strict=False)
    ]
    sized = (
        (role, dtype, shape, prod(shape) * (width if dtype == own else 1))
        for role, dtype, shape in tensors
    )
    return _placed(unit.name, sized, TENSOR_ALIGNMENT_BYTES, unit.sources)


def _entries(checkpoint: Checkpoint) -> Iterator[TensorEntry]:
    yield from (checkpoint.embedding, checkpoint.head, checkpoint.final_norm, *checkpoint.extra)
    for dense, experts in zip(checkpoint.dense, checkpoint.experts, strict=True):
        yield from dense
        for expert in experts:
            yield from expert


def _unit(name: str, entries: Sequence[TensorEntry], alignment: int) -> UnitLayout:
    sized = ((entry.role, entry.dtype, tuple(entry.shape), entry.size_bytes) for entry in entries)
    return _placed(name, sized, alignment, tuple(entries))


def _placed(
    name: str,
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]],
    alignment: int,
    sources: tuple[TensorEntry, ...],
) -> UnitLayout:
    """Tensors (role, type, shape, bytes) one behind the other, each at a multiple."""
    places, offset = [], 0
    for role, dtype, shape, size_bytes in tensors:
        offset = -(-offset // alignment) * alignment
        places.append(Place(role, dtype, shape, offset, size_bytes))
        offset += size_bytes
    return UnitLayout(name, offset, tuple(places), sources)
