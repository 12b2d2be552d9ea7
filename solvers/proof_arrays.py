"""What all proofs have in common: arrays of multipliers, each a natural number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solvers.errors import OptionError

__all__ = ["refuse_arrays"]


def refuse_arrays(proof: object, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an ``OptionError`` unless these arrays of a proof hold natural numbers in these
    shapes."""
    for name, wanted in shapes.items():
        array: Any = getattr(proof, name)
        if array.shape != wanted:
            raise OptionError(f"a proof's {name} has the shape {array.shape} instead of {wanted}")
        if any(type(value) is not int or value < 0 for value in array.ravel()):
            raise OptionError(f"a proof's {name} holds something else than natural numbers")
