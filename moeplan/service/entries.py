"""Documents on their way into the store and out of it: names, summaries, whole profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from moeplan.commands.common import placement_summary, plain, plan_summary, trace_summary
from moeplan.service.store import Store
from moeplan.service.store.documents import Entry
from moeplan.words import explain_plan
from planner.documents import (
    CostProfile,
    Document,
    ExpertPlacement,
    Hardware,
    ModelSpec,
    Plan,
    ProfileIndex,
    RoutingTrace,
    Trace,
    parse_document,
    to_json,
)
from planner.profiles import Profile, assemble
from planner.routing import TraceArrays, read_arrays
from solvers.errors import InputError

__all__ = [
    "PROFILE_PARTS",
    "entry_of",
    "kept_document",
    "kept_profile",
    "kept_trace",
    "plan_entry",
    "profile_entries",
]

D = TypeVar("D", bound=Document)

PROFILE_PARTS: dict[str, type[Document]] = {
    "profile": ProfileIndex,
    "hardware": Hardware,
    "model": ModelSpec,
    "costs": CostProfile,
    "routing": RoutingTrace,
}


def entry_of(document: Document, name: str, summary: dict[str, Any]) -> Entry:
    """A document of moeplan's own kinds."""
    return Entry(document.kind, name, summary, to_json(document))


def hardware_entry(document: Hardware) -> Entry:
    """Hardware, with how fast its channels are."""
    summary = {
        "device": document.device,
        "processor": document.processor,
        "tiers": plain(document.tiers),
        "channels": plain(document.channels),
    }
    return entry_of(document, f"{document.name} ({document.processor})", summary)


def model_entry(document: ModelSpec) -> Entry:
    """A model, with how large it is."""
    summary = {
        "family": document.family,
        "dtype": document.dtype,
        "layers": len(document.layers),
        "experts": max((layer.experts for layer in document.layers), default=0),
        "parameters": document.parameters,
        "total_bytes": document.total_bytes,
    }
    return entry_of(document, document.name, summary)


def routing_entry(document: RoutingTrace, name: str) -> Entry:
    """A routing document."""
    fields = ("source", "tokens", "sequences", "experts", "top_k", "model_hash", "arrays_hash")
    return entry_of(document, name, {key: getattr(document, key) for key in fields})


def profile_entries(profile: Profile) -> list[Entry]:
    """The documents of a whole profile, its index first."""
    index, name = profile.index, f"{profile.model.name} on {profile.hardware.name}"
    summary = {
        "model": profile.model.name,
        "hardware": profile.hardware.name,
        "processor": profile.hardware.processor,
        "memory_bytes": index.memory_bytes,
        **{f"{part}_hash": getattr(index, f"{part}_hash") for part in list(PROFILE_PARTS)[1:]},
    }
    return [
        entry_of(index, name, summary),
        hardware_entry(profile.hardware),
        model_entry(profile.model),
        entry_of(profile.costs, name, {"dtype": profile.costs.dtype}),
        routing_entry(profile.routing, name),
    ]


def plan_entry(plan: Plan, profile: Profile, profile_hash: str) -> Entry:
    """A plan that was made from a kept profile."""
    name = f"{profile.model.name} on {profile.hardware.name}, {plan.solver}"
    summary = {
        **{k: v for k, v in plan_summary(plan).items() if k not in ("hash", "locations")},
        "model": profile.model.name,
        "hardware": profile.hardware.name,
        "profile": profile_hash,
        # kept, so that reading them does not take parsing the plan
        "words": explain_plan(plan, profile.model),
    }
    return entry_of(plan, name, summary)


def trace_entry(trace: Trace) -> Entry:
    """A run of a kept plan; its name holds the plan's hash, by which a plan's runs are found."""
    return entry_of(trace, f"run of {trace.plan_hash} on {trace.device}", trace_summary(trace))


def placement_entry(placement: ExpertPlacement, name: str) -> Entry:
    """A placement, without its layers."""
    return entry_of(placement, name, placement_summary(placement))


def kept_document(store: Store, cls: type[D], digest: str) -> D | None:
    """A kept document, parsed; None where there is none."""
    data = store.documents.get(cls.kind, digest)
    return None if data is None else parse_document(cls, json.loads(data), f"{cls.kind} {digest}")


def _needed(store: Store, cls: type[D], digest: str) -> D:
    document = kept_document(store, cls, digest)
    if document is None:
        raise InputError(f"the store has no {cls.kind} document {digest}")
    return document


def kept_trace(store: Store, digest: str) -> tuple[RoutingTrace, TraceArrays]:
    """A kept routing document and its arrays.

    Raises
    ------
    InputError
        If the store has no such document.
    """
    trace = _needed(store, RoutingTrace, digest)
    data = store.documents.blob(trace.arrays_hash)
    if data is None:
        raise InputError(f"the store has no arrays of the routing document {digest}")
    return trace, read_arrays(trace, data, "arrays", "routing")


def kept_profile(store: Store, digest: str) -> Profile:
    """A kept profile, put together in memory: no file is written or read.

    Raises
    ------
    InputError
        If the store has no such profile.
    """
    index = _needed(store, ProfileIndex, digest)
    trace, arrays = kept_trace(store, index.routing_hash)
    return assemble(
        Profile(
            Path(f"profile-{digest}"),
            index,
            _needed(store, Hardware, index.hardware_hash),
            _needed(store, ModelSpec, index.model_hash),
            _needed(store, CostProfile, index.costs_hash),
            trace,
            arrays,
        )
    )


def json_entry(kind: str, name: str, summary: dict[str, Any], body: dict[str, Any]) -> Entry:
    """Something that is no document of moeplan's files: a comparison, an explanation."""
    return Entry(kind, name, summary, {"kind": kind, "version": 1, **body})
