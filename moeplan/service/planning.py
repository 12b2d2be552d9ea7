"""The plan that a job of kind ``plan`` asks for, from its inputs and its profile.

A worker of the service and one of a sweep make the same document. Needs no extra.
"""

from __future__ import annotations

from typing import Any

from planner.check import check_plan
from planner.documents import Plan, Workload
from planner.forms import allowing
from planner.profiles import Profile
from planner.solve import make_plan
from solvers.registry import Progress

__all__ = ["plan_of", "within"]


def within(profile: Profile, inputs: dict[str, Any]) -> Profile:
    """The profile with the error that a job's inputs allow experts.

    Raises
    ------
    OptionError
        As ``planner.forms.allowing``.
    """
    error = inputs.get("allow_error")
    return profile if error is None else allowing(profile, error)


def plan_of(
    profile: Profile,
    inputs: dict[str, Any],
    *,
    progress: Progress | None = None,
    cap_seconds: float | None = None,
) -> Plan:
    """Plan, and hold the plan against the independent checker.

    Parameters
    ----------
    profile
        The one that ``inputs`` names, as ``within`` has it.
    inputs
        Of the job.
    progress, cap_seconds
        As of ``make_plan``.

    Raises
    ------
    InputError
        As ``make_plan``.
    """
    made = make_plan(
        profile,
        Workload(**inputs["workload"]),
        memory_bytes=inputs["memory_bytes"],
        solver=inputs["solver"],
        objective=inputs["objective"],
        time_limit_seconds=inputs["time_limit_seconds"],
        seed=inputs["seed"],
        progress=progress,
        then=inputs["then"],
        tolerance=inputs["tolerance"],
        cap_seconds=cap_seconds,
        kv=inputs.get("kv", "auto"),
        predictors=inputs.get("predictors"),
    )
    faults = check_plan(made, profile)
    if faults:
        raise RuntimeError(f"the checker refuses the new plan: {faults}")
    return made
