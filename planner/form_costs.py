"""What experts in forms of their own cost, of a store that has several (``planner.forms``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.documents import OWN, CostProfile, Curve, FormName, ModelSpec
from planner.memory import Forms

__all__ = ["expert_curve", "form_places"]


def expert_curve(costs: CostProfile, form: FormName = OWN) -> Curve:
    """Time of one expert in a form against its rows.

    Raises
    ------
    KeyError
        If it was not measured.
    """
    return costs.curves["expert"] if form == OWN else (costs.forms or {})[form]


def form_places(model: ModelSpec, forms: Forms) -> dict[FormName, npt.NDArray[np.bool_]]:
    """By quantized form in use: which experts [moe_layers, experts] have it."""
    if not forms:
        return {}
    moe = [forms[layer] or (OWN,) * model.layers[layer].experts for layer in model.moe_layers]
    width = max(map(len, moe))
    padded = [(*own, *(OWN,) * (width - len(own))) for own in moe]
    names = sorted({form for own in moe for form in own} - {OWN})
    return {name: np.array([[form == name for form in own] for own in padded]) for name in names}
