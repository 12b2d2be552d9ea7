"""Quantizing experts as they are packed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from executor.adapters import Adapter, make_adapter
from executor.compressing import contents
from executor.layout import UnitLayout, quantized_layouts
from executor.quantized import quantize
from planner.checkpoint import Checkpoint
from planner.documents import QuantizedExperts
from planner.quantized import group_of
from solvers.errors import CheckpointError

__all__ = ["Quantizer"]


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
        for role, matrix in (("gate_up", weights.gate_up), ("down", weights.down)):
            if not isinstance(matrix, torch.Tensor):
                raise TypeError(f"{unit.name} is quantized already")
            group = group_of(self._how, matrix.shape[1])
            try:
                made, error = quantize(matrix, self._how, group)
            except CheckpointError as fault:
                raise CheckpointError(f"{plain.sources[0].file}: {unit.name}: {fault}") from fault
            tensors[f"{role}.values"], tensors[f"{role}.scales"] = made.values, made.scales
            self._error += error
            self._whole += float(torch.linalg.vector_norm(matrix, dtype=torch.float32)) ** 2
        position = 0
        for place in unit.places:
            tensor = tensors[place.role]
            if tensor is None:
                raise ValueError(f"{unit.name} has no {place.role}")
            yield bytes(place.offset_bytes - position)
            yield tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
            position = place.offset_bytes + place.size_bytes
