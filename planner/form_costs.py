"""What experts in forms of their own cost, of a store that has several (``planner.forms``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.documents import OWN, CostProfile, Curve, FormName, ModelSpec
from planner.memory import Forms

__all__ = ["copies_slowdown", "expert_curve", "form_places", "slowdown_of"]


def expert_curve(costs: CostProfile, form: FormName = OWN) -> Curve:
    """Time of one expert in a form against its rows.

    Raises
    ------
    KeyError
        If it was not measured.
    """
    return costs.curves["expert"] if form == OWN else (costs.forms or {})[form]


def slowdown_of(costs: CostProfile, kind: str, phase: str, form: FormName = OWN) -> float:
    """How much longer a kind takes in a phase while a copy runs: of experts, in this form."""
    measured = (costs.form_slowdowns or {}).get(form)
    if kind != "expert" or measured is None:
        return costs.slowdown(kind, phase)
    return (measured.prefill if phase == "prefill" else measured.decode).value


def copies_slowdown(costs: CostProfile, forms: Forms) -> float:
    """How much longer copies take while compute runs: what experts in these forms, of which that
    counts that costs them most, make of it."""
    measured = costs.form_slowdowns or {}
    used = {form for own in forms for form in (own or (OWN,))} or {OWN}
    return max(
        measured[form].copy.value if form in measured else costs.copy_slowdown.value
        for form in used
    )


def form_places(model: ModelSpec, forms: Forms) -> dict[FormName, npt.NDArray[np.bool_]]:
    """By quantized form in use: which experts [moe_layers, experts] have it."""
    if not forms:
        return {}
    moe = [forms[layer] or (OWN,) * model.layers[layer].experts for layer in model.moe_layers]
    width = max(map(len, moe))
    padded = [(*own, *(OWN,) * (width - len(own))) for own in moe]
    names = sorted({form for own in moe for form in own} - {OWN})
    return {name: np.array([[form == name for form in own] for own in padded]) for name in names}
