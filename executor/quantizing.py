"""Quantizing experts as they are packed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from executor.adapters import Adapter, make_adapter
from executor.compressing import contents
from executor.layout import UnitLayout, form_of, quantized_layouts, with_forms
from executor.quantized import quantize
from planner.checkpoint import Checkpoint
from planner.documents import OWN, FormName, QuantizedExperts
from planner.quantized import group_of
from solvers.errors import CheckpointError

__all__ = ["FormMaker", "Quantizer"]


class Quantizer:
    """Makes quantized experts of a checkpoint's.

    Parameters
    ----------
    source
        The checkpoint.
    layouts
        Its units.
    how
        Format and group.

    Attributes
    ----------
    layouts
        Units with quantized experts.
    errors_ppb
        By expert made so far: the root of its squared errors' sum over that of its weights, in
        thousand-millionths, rounded up.

    Raises
    ------
    UnsupportedError
        If the family, or something that its configuration asks for, is not supported, or groups do
        not fit an expert's rows.
    """

    def __init__(
        self, source: Checkpoint, layouts: dict[str, UnitLayout], how: QuantizedExperts
    ) -> None:
        self._how, self._plain = how, layouts
        # not by the device's table: devices read stores, which are held against what is made here
        self._dtype: torch.dtype = getattr(torch, source.model.dtype)
        self.layouts = quantized_layouts(layouts, source.model, how)
        self._adapter: Adapter = make_adapter(source.config, source.model, self._dtype)
        self._error = self._whole = 0.0
        self.errors_ppb: dict[str, int] = {}

    @property
    def relative_error(self) -> float:
        """Root of the squared errors' sum over that of the experts' weights, of what was made."""
        return math.sqrt(self._error / self._whole) if self._whole else 0.0

    def contents(self, unit: UnitLayout) -> Iterator[bytes]:
        """A unit's bytes in order; an expert's are quantized.

        Raises
        ------
        CheckpointError
            If a file is shorter than it was, or a weight is not finite or too large.
        """
        plain = self._plain[unit.name]
        if unit == plain:
            yield from contents(unit)
            return
        data = bytearray().join(contents(plain))
        values = torch.frombuffer(data, dtype=self._dtype)
        shapes = {place.role: place.shape for place in plain.places}
        weights = self._adapter.expert_weights(values, shapes)
        tensors: dict[str, torch.Tensor | None] = {
            "gate_up.bias": weights.gate_up_bias,
            "down.bias": weights.down_bias,
        }
        error, whole = 0.0, 0.0
        for role, matrix in (("gate_up", weights.gate_up), ("down", weights.down)):
            if not isinstance(matrix, torch.Tensor):
                raise TypeError(f"{unit.name} is quantized already")
            group = group_of(self._how, matrix.shape[1])
            try:
                made, squares = quantize(matrix, self._how, group)
            except CheckpointError as fault:
                raise CheckpointError(f"{plain.sources[0].file}: {unit.name}: {fault}") from fault
            tensors[f"{role}.values"], tensors[f"{role}.scales"] = made.values, made.scales
            error += squares
            whole += float(torch.linalg.vector_norm(matrix, dtype=torch.float32)) ** 2
        self._error += error
        self._whole += whole
        self.errors_ppb[unit.name] = math.ceil(math.sqrt(error / whole) * 1e9) if whole else 0
        position = 0
        for place in unit.places:
            tensor = tensors[place.role]
            if tensor is None:
                raise ValueError(f"{unit.name} has no {place.role}")
            yield bytes(place.offset_bytes - position)
            yield tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
            position = place.offset_bytes + place.size_bytes


class FormMaker:
    """Makes the experts of a store that has them in several forms.

    Parameters
    ----------
    source, layouts
        The checkpoint, and its units.
    forms
        Those to make beside the checkpoint's own.

    Raises
    ------
    UnsupportedError
        As ``Quantizer``.
    """

    def __init__(
        self,
        source: Checkpoint,
        layouts: dict[str, UnitLayout],
        forms: tuple[QuantizedExperts, ...],
    ) -> None:
        self.layouts = with_forms(layouts, source.model, forms)
        self._by_form: dict[FormName, Quantizer] = {
            how.format: Quantizer(source, layouts, how) for how in forms
        }

    def contents(self, unit: UnitLayout) -> Iterator[bytes]:
        """A unit's bytes in order.

        Raises
        ------
        CheckpointError
            As ``Quantizer.contents``.
        """
        form, name = form_of(unit.name)
        if form == OWN:
            return contents(unit)
        return self._by_form[form].contents(replace(unit, name=name))

    def error_ppb(self, name: str) -> int | None:
        """How far off a unit's weights are that was made; None of one that is not quantized."""
        form, own = form_of(name)
        return None if form == OWN else self._by_form[form].errors_ppb[own]
