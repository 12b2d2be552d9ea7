"""A profile folder: the measured documents of one machine and one model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.documents import (
    CostProfile,
    Hardware,
    ModelSpec,
    ProfileIndex,
    RoutingTrace,
    document_hash,
    load_document,
)
from planner.files import exists, is_dir
from planner.memory import Forms
from planner.routing import TraceArrays, load_trace
from solvers.errors import DocumentError, StaleError

__all__ = ["UNFINISHED", "Profile", "assemble", "load_profile"]

UNFINISHED = ".new"
"""Where files of a profile lie until all are written."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Everything a plan is made from.

    Attributes
    ----------
    forms
        Of experts, as one choice of n and b has them: no part of the folder.
    allowed_ppb
        How far off experts may be on average, as asked for (``planner.forms``).
    """

    folder: Path
    index: ProfileIndex
    hardware: Hardware
    model: ModelSpec
    costs: CostProfile
    routing: RoutingTrace
    arrays: TraceArrays
    forms: Forms = ()
    allowed_ppb: int = 0


def load_profile(folder: Path) -> Profile:
    """Read a profile folder and hold its documents against its index.

    Raises
    ------
    DocumentError
        If the folder or one of its documents is missing or malformed.
    StaleError
        If a document was changed after the profile was made.
    """
    if not is_dir(folder):
        if exists(folder):
            raise DocumentError(
                f"{folder}: is no folder of a profile; make one with 'moeplan profile'"
            )
        raise DocumentError(
            f"{folder}: no such folder: name the profile's, or make one with 'moeplan profile'"
        )
    if exists(folder / UNFINISHED) and not exists(folder / "profile.json"):
        raise DocumentError(
            f"{folder}: half a profile: the command that wrote it was stopped, or is still at "
            "work; give that command again"
        )
    index = load_document(ProfileIndex, folder / "profile.json")
    hardware = load_document(Hardware, folder / "hardware.json")
    model = load_document(ModelSpec, folder / "model.json")
    costs = load_document(CostProfile, folder / "costs.json")
    routing, arrays = load_trace(folder / "routing.json")
    profile = assemble(Profile(folder, index, hardware, model, costs, routing, arrays))
    # plans keep it, and are looked into from other folders, too
    return replace(profile, folder=folder.absolute())


def assemble(profile: Profile) -> Profile:
    """Hold the documents of a profile against its index; ``folder`` names it in messages.

    Raises
    ------
    DocumentError, StaleError
        As ``load_profile``.
    """
    folder, index, hardware = profile.folder, profile.index, profile.hardware
    model, costs, routing = profile.model, profile.costs, profile.routing
    for document, expected in (
        (hardware, index.hardware_hash),
        (model, index.model_hash),
        (costs, index.costs_hash),
        (routing, index.routing_hash),
    ):
        if document_hash(document) != expected:
            raise StaleError(
                document.kind,
                f"{folder}: the {document.kind} document was changed after the profile was made, "
                "or an older moeplan made it; run 'moeplan profile' again",
            )
    if {costs.model_hash, routing.model_hash} != {index.model_hash} or (
        costs.hardware_hash != index.hardware_hash
        or model.fingerprint != index.checkpoint_fingerprint
    ):
        raise StaleError(
            "profile", f"{folder}: its documents are of different models or machines; make it anew"
        )
    for kind, needed in (
        ("shared_expert", any(layer.shared_expert_bytes for layer in model.layers)),
        ("dense_mlp", any(layer.mlp_bytes for layer in model.layers)),
    ):
        if needed and kind not in costs.curves:
            raise DocumentError(f"{folder / 'costs.json'}: curves: no curve for {kind}")
    if model.encoder and costs.cross_decode is None:
        raise DocumentError(
            f"{folder / 'costs.json'}: cross_decode: no surface, though the model has an encoder"
        )
    missing = {form.name for form in model.forms or ()} ^ set(costs.forms or ())
    if missing:
        raise DocumentError(
            f"{folder / 'costs.json'}: forms: not those that the store has ({min(missing)})"
        )
    unknown = {*(costs.form_slowdowns or ())} - {*(costs.forms or ())}
    if unknown:
        raise DocumentError(
            f"{folder / 'costs.json'}: form_slowdowns: {min(unknown)} is none of the store's forms"
        )
    encoders = sum(layer < model.encoder_depth for layer in routing.moe_layers)
    if (routing.encoder or 0) != encoders:
        raise DocumentError(
            f"{folder / 'routing.json'}: encoder: {routing.encoder or 0} MoE layers are an "
            f"encoder's, the model has {encoders}"
        )
    return profile
