"""What a job does: from its inputs and the store to new documents. Runs in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moeplan.commands.common import plain
from moeplan.commands.explain import sentences
from moeplan.service.entries import (
    json_entry,
    kept_document,
    kept_profile,
    kept_trace,
    placement_entry,
    plan_entry,
)
from moeplan.service.planning import plan_of, within
from moeplan.service.store import Job, Store
from moeplan.service.store.documents import Entry
from planner.compare import compare
from planner.documents import ModelSpec, Plan, Workload
from planner.explain import explain
from planner.routing_sources import trace_source
from solvers.counting import counted
from solvers.errors import InputError, OptionError

__all__ = ["KINDS", "Telling", "carry_out"]

Telling = Callable[[dict[str, Any]], None]
Made = tuple[list[Entry], str]


def carry_out(store: Store, job: Job, tell: Telling) -> Made:
    """Do what a job asks.

    Parameters
    ----------
    store
        Where its inputs are; nothing is written there.
    job
        What to do.
    tell
        Called with progress: plain JSON values.

    Returns
    -------
    list of Entry, str
        Documents to keep, and the hash of the one that is the result.

    Raises
    ------
    InputError
        If the inputs cannot work.
    """
    return KINDS[job.kind](store, job.inputs, tell)


def _plan(store: Store, inputs: dict[str, Any], tell: Telling) -> Made:
    began = time.monotonic()
    profile = within(kept_profile(store, inputs["profile"]), inputs)

    def progress(stage: str, objective: int, bound: int | None) -> None:
        known = bound is not None and objective > 0
        tell(
            {
                "stage": stage,
                "incumbent": objective if objective > 0 else None,
                "bound": bound,
                "gap": (objective - (bound or 0)) / objective if known else None,
            }
        )

    # what a plan is made from counts, too
    left = max(inputs["time_limit_seconds"] - (time.monotonic() - began), 0.001)
    made = plan_of(profile, inputs, progress=progress, cap_seconds=left)
    folder = inputs.get("profile_folder")
    if folder is not None:
        # no path of this machine, and never opened here
        made = replace(made, locations=replace(made.locations, profile=folder))
    entry = plan_entry(made, profile, inputs["profile"])
    return [entry], entry.hash


def _compare(store: Store, inputs: dict[str, Any], tell: Telling) -> Made:
    profile = within(kept_profile(store, inputs["profile"]), inputs)
    rows = compare(
        profile,
        Workload(**inputs["workload"]),
        memory_bytes=inputs["memory_bytes"],
        solvers=tuple(inputs["solvers"]),
        objectives=tuple(inputs["objectives"]),
        time_limit_seconds=inputs["time_limit_seconds"],
        seed=inputs["seed"],
        then=inputs["then"],
        tolerance=inputs["tolerance"],
        kv=inputs.get("kv", "auto"),
        predictors=inputs.get("predictors"),
        progress=lambda done, total, what: tell({"stage": what, "done": done, "total": total}),
    )
    plans = [plan_entry(row.plan, profile, inputs["profile"]) for row in rows]
    told = []
    for row, entry in zip(rows, plans, strict=True):
        fields = (name for name in row.__dataclass_fields__ if name != "plan")
        figures = {name: plain(getattr(row, name)) for name in fields}
        if row.plan.predicted.objective is not None:
            figures["promised"] = row.promised
        told.append({**figures, "plan": entry.hash})
    about = {name: inputs[name] for name in ("profile", "memory_bytes", "workload", "objectives")}
    name = f"{profile.model.name} on {profile.hardware.name}, {counted(len(rows), 'plan')}"
    entry = json_entry("comparison", name, about, {"inputs": inputs, "rows": told})
    return [*plans, entry], entry.hash


def _explain(store: Store, inputs: dict[str, Any], tell: Telling) -> Made:
    plan = kept_document(store, Plan, inputs["plan"])
    if plan is None:
        raise InputError(f"the store has no plan {inputs['plan']}")
    found = explain(
        plan,
        kept_profile(store, inputs["profile"]),
        time_limit_seconds=inputs["time_limit_seconds"],
        progress=lambda done, total, what: tell({"stage": what, "done": done, "total": total}),
    )
    words = sentences(plan, found)
    body = {"plan": inputs["plan"], "words": words, "figures": plain(found)}
    entry = json_entry("explanation", f"plan {inputs['plan']}", {"plan": inputs["plan"]}, body)
    return [entry], entry.hash


def _place(store: Store, inputs: dict[str, Any], tell: Telling) -> Made:
    # loads OR-Tools, which other jobs may not need
    from planner.placement import Cluster, expert_room, largest_expert, place, scenes_of

    trace, arrays = kept_trace(store, inputs["routing"])
    source = trace_source(trace, arrays, "routing")
    cluster = Cluster(
        inputs["devices"],
        inputs["nodes"],
        inputs["intra_bandwidth"] or 1.0,
        inputs["inter_bandwidth"] or 1.0,
    )
    size = None
    if inputs["model"] is not None:
        model = kept_document(store, ModelSpec, inputs["model"])
        if model is None:
            raise OptionError(f"the store has no model {inputs['model']}")
        size = largest_expert(model, source.experts, "model")
    room = expert_room(
        cluster,
        layers=len(source.layers),
        experts=source.experts,
        replicas=inputs["replicas"],
        memory_bytes=inputs["memory_bytes"],
        expert_bytes=size,
    )
    tell({"stage": inputs["method"]})
    made = place(
        source,
        scenes_of(
            source,
            scenarios=inputs["scenarios"],
            judged=2 * inputs["scenarios"],
            batch=inputs["batch"],
            seed=inputs["seed"],
        ),
        cluster,
        room,
        method=inputs["method"],
        replicas=inputs["replicas"],
        source_hash=inputs["routing"],
        time_limit_seconds=inputs["time_limit_seconds"],
        seed=inputs["seed"],
    )
    name = f"{counted(trace.experts, 'expert')} on {counted(made.devices, 'device')}, {made.method}"
    entry = placement_entry(made, name)
    return [entry], entry.hash


KINDS: dict[str, Callable[[Store, dict[str, Any], Telling], Made]] = {
    "plan": _plan,
    "compare": _compare,
    "explain": _explain,
    "place": _place,
}
