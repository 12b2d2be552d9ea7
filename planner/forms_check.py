"""The check of experts' forms: what a plan says of them against its store, in whole numbers."""

from __future__ import annotations

import numpy as np

from planner.documents import OWN, ModelSpec, Plan, Policy
from planner.profiles import Profile
from solvers.checker import Violation
from solvers.counting import counted

__all__ = ["check_allowed", "check_forms", "check_layers"]

_WHERE = "expert_error"


def check_allowed(plan: Plan) -> list[Violation]:
    """What a plan's forms and errors alone give away."""
    error = plan.expert_error
    quantized = any(form != OWN for own in plan.policy.expert_forms for form in own)
    if error is None:
        message = "experts are quantized, and no error is said to be allowed"
        return [Violation("forms", _WHERE, message)] if quantized else []
    if error.mean_ppb > error.allowed_ppb:
        message = f"{error.mean_ppb} thousand-millionths off, {error.allowed_ppb} were allowed"
        return [Violation("error_above_allowed", _WHERE, message)]
    return []


def check_forms(plan: Plan, profile: Profile) -> list[Violation]:
    """Forms against what the store has, and the mean error, summed again."""
    model, found = profile.model, check_layers(plan.policy, profile.model)
    if found:
        return found
    error = plan.expert_error
    if error is None:
        return []
    if model.forms is None:
        message = "an error was allowed, and the store has its experts in one form"
        return [Violation("forms", _WHERE, message)]
    errors = {form.name: form.errors_ppb for form in model.forms}
    total = weights = 0
    for column, layer in enumerate(model.moe_layers):
        chosen = np.zeros(model.layers[layer].experts, dtype=np.int64)
        np.add.at(chosen, profile.arrays.experts[:, column].ravel(), 1)
        for expert, times in enumerate(chosen.tolist()):
            form = plan.policy.layers[layer].form(expert)
            weights += times + 1
            total += 0 if form == OWN else (times + 1) * errors[form][layer][expert]
    if not (error.mean_ppb - 1) * weights < total <= error.mean_ppb * weights:
        message = (
            f"the plan says {error.mean_ppb} thousand-millionths, the experts' errors make "
            f"{total / weights:.1f}"
        )
        return [Violation("error_sum", _WHERE, message)]
    return []


def check_layers(policy: Policy, model: ModelSpec) -> list[Violation]:
    """Whether each layer has a form for each of its experts, and only such as the store has."""
    known = {OWN, *(form.name for form in model.forms or ())}
    for index, (layer, spec) in enumerate(zip(policy.layers, model.layers, strict=False)):
        where = f"policy.layers.{index}.forms"
        if layer.forms and len(layer.forms) != spec.experts:
            message = (
                f"{counted(len(layer.forms), 'form')}, the layer has "
                f"{counted(spec.experts, 'expert')}"
            )
            return [Violation("forms", where, message)]
        foreign = sorted({*layer.forms} - known)
        if foreign:
            has = " and ".join(
                ("as in the checkpoint", *(f"in {form}" for form in sorted(known - {OWN})))
            )
            message = f"{foreign[0]}, which the store does not have: its experts are {has}"
            return [Violation("forms", where, message)]
    return []
