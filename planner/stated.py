"""From the winner of a search to the plan document: judged, with notes, and checked."""

from __future__ import annotations

from typing import Literal

from planner.check import checked
from planner.documents import Asked, Inputs, Locations, Plan, document_hash
from planner.entries import Entry
from planner.formats import streamed
from planner.forms import expert_error
from planner.notes import plan_notes
from planner.profiles import Profile
from solvers.outcome import Stop

__all__ = ["document", "inputs_of"]


def inputs_of(profile: Profile) -> Inputs:
    """Hashes of a profile's documents."""
    return Inputs(
        document_hash(profile.model),
        document_hash(profile.hardware),
        document_hash(profile.costs),
        document_hash(profile.routing),
        profile.index.checkpoint_fingerprint,
        profile.index.store_fingerprint,
    )


def document(
    profile: Profile, entry: Entry, rivals: list[Entry], seed: int, asked: Asked | None = None
) -> Plan:
    """The plan of the winner, judged; ``asked`` is how it was asked for."""
    candidate = streamed(entry.candidate, entry.schedule)
    encoding = candidate.encoding
    figures = candidate.figures(entry.schedule)
    memory, policy = encoding.account(entry.schedule), encoding.policy(entry.schedule)
    judged_rivals = {
        rival.solver: rival.candidate.promised("judge", rival.schedule) for rival in rivals
    }
    index, promised = profile.index, figures.predicted.objective
    plan = Plan(
        solver=entry.solver,
        stop=_STOPS[entry.stop],
        objective_name=candidate.objective.name,
        objective=figures.objective,
        bound=figures.bound,
        bound_class=figures.bound_class,
        gap=figures.gap,
        inputs=inputs_of(profile),
        locations=Locations(str(profile.folder), index.checkpoint, index.store),
        workload=encoding.workload,
        device=profile.hardware.device,
        dtype=profile.costs.dtype,
        policy=policy,
        memory={"device": memory},
        predicted=figures.predicted,
        chosen_over=judged_rivals,
        notes=plan_notes(
            candidate,
            solver=entry.solver,
            value=figures.objective if promised is None else promised,
            rivals=judged_rivals,
            predicted=figures.predicted,
            memory=memory,
            policy=policy,
            said=entry.notes,
        ),
        seed=seed,
        asked=asked,
        expert_error=expert_error(profile, policy),
    )
    # what a replay would say was just replayed
    return checked(plan, profile, entry.solver)


_STOPS: dict[Stop, Literal["optimal", "time_limit", "rule", "interrupted"]] = {
    Stop.OPTIMAL: "optimal",
    Stop.TIME_LIMIT: "time_limit",
    Stop.RULE: "rule",
    Stop.INTERRUPTED: "interrupted",
}
