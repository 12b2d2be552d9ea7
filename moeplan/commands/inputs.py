"""What commands read: plans, and what plans were made from, where that is still there."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from planner.documents import (
    CostProfile,
    Document,
    Hardware,
    ModelSpec,
    Plan,
    document_hash,
    load_document,
)
from planner.files import is_dir
from planner.profiles import Profile
from solvers.errors import DocumentError

__all__ = [
    "check_is_there",
    "costs_of",
    "error_words",
    "hardware_of",
    "load_plan",
    "model_of",
    "within_error",
]

D = TypeVar("D", bound=Document)


def _if_same(cls: type[D], path: Path, wanted_hash: str) -> D | None:
    """The document at ``path``, if it is there and is the one that was wanted."""
    try:
        document = load_document(cls, path)
    except DocumentError:
        return None
    return document if document_hash(document) == wanted_hash else None


def model_of(plan: Plan) -> ModelSpec | None:
    """The plan's own model, from its profile folder; None where that is gone or has changed."""
    path = Path(plan.locations.profile) / "model.json"
    model = _if_same(ModelSpec, path, plan.inputs.model)
    fits = model is not None and len(model.layers) == len(plan.policy.layers)
    return model if fits else None


def hardware_of(plan: Plan, profile: Path | None = None) -> Hardware | None:
    """The hardware that a plan was made for; None where its profile is gone or has changed."""
    folder = profile if profile is not None else Path(plan.locations.profile)
    return _if_same(Hardware, folder / "hardware.json", plan.inputs.hardware)


def costs_of(plan: Plan) -> CostProfile | None:
    """The costs that a plan was made with; None where its profile is gone or has changed."""
    return _if_same(CostProfile, Path(plan.locations.profile) / "costs.json", plan.inputs.costs)


def load_plan(path: Path) -> Plan:
    """Read a plan that was not edited and does not contradict itself.

    Raises
    ------
    DocumentError
        Naming the first fault.
    """
    from planner.check import check_plan

    plan = load_document(Plan, path)
    faults = check_plan(plan)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise DocumentError(
            f"{path}: {faults[0].where}: {faults[0].message}{more}: plan again; "
            "'moeplan check' lists what is wrong"
        )
    return plan


def within_error(profile: Profile, allow_error: float | None) -> Profile:
    """The profile with what ``--allow-error`` lets experts be off by.

    Raises
    ------
    OptionError
        As ``planner.forms.allowing``.
    """
    from planner.forms import allowing

    return profile if allow_error is None else allowing(profile, allow_error)


def error_words(allow_error: float | None) -> str:
    """Of what was compared: how far off experts may be."""
    return "" if allow_error is None else f"; experts up to {allow_error:.3%} off on average"


def check_is_there(folder: Path) -> None:
    """Refuse a plan's profile that is not where it lay, and say how another place is named."""
    if not is_dir(folder):
        raise DocumentError(
            f"{folder}: no such folder; --profile DIR says where the plan's profile is (of a plan "
            "that was made without the machine: what --profile-out wrote)"
        )
