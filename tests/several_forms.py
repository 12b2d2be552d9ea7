"""A store of several forms, fabricated."""

from __future__ import annotations

from dataclasses import replace

from planner.documents import ExpertForm, QuantizedExperts
from planner.profiles import Profile

__all__ = ["INT8", "several"]

INT8, INT4 = QuantizedExperts("int8-1"), QuantizedExperts("int4-1")


def several(plain: Profile, slower: float = 1.0) -> Profile:
    """A profile of a store with three forms: int8 has a quarter of the bytes and is 1% off, int4 an
    eighth and 10%, the last expert of each layer twice as much; both compute ``slower``."""
    model, curve = plain.model, plain.costs.curves["expert"]
    forms = tuple(
        ExpertForm(
            how,
            tuple(layer.expert_bytes // parts for layer in model.layers),
            tuple(
                (off,) * (layer.experts - 1) + (2 * off,) * (layer.experts > 0)
                for layer in model.layers
            ),
        )
        for how, parts, off in ((INT8, 4, 10_000_000), (INT4, 8, 100_000_000))
    )
    taken = replace(curve, duration_ns=tuple(round(slower * took) for took in curve.duration_ns))
    costs = replace(plain.costs, forms={"int8-1": taken, "int4-1": taken})
    return replace(plain, model=replace(model, forms=forms), costs=costs)
