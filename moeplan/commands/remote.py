"""Planning on a server: what ``plan --server`` does, with the output of a plan made here."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated, Any

import typer

from moeplan.commands.common import searches
from planner.documents import Plan, Workload
from planner.kv import Place
from planner.profiles import Profile
from solvers.errors import MoeplanError
from solvers.registry import Progress

__all__ = ["Server", "plan_at"]

_CALLED = {
    "token": "MOEPLAN_TOKEN",
    "memory_bytes": "--memory",
    "time_limit_seconds": "--time-limit",
    "workload.requests": "--requests",
    "workload.prompt_tokens": "--prompt-tokens",
    "workload.new_tokens": "--new-tokens",
    "workload.attention_window": "--attention-window",
    "workload.attention_sinks": "--attention-sinks",
    "allow_error": "--allow-error",
    "predictors": "--no-predictors",
    "profile_folder": "PROFILE_DIR",
    **{name: f"--{name}" for name in ("solver", "objective", "then", "tolerance", "seed", "kv")},
}
"""What the command calls what the service is asked with."""

Server = Annotated[
    str | None,
    typer.Option(
        "--server", help="Plan at a 'moeplan serve' (its token, if it asks: MOEPLAN_TOKEN)."
    ),
]


def plan_at(
    url: str,
    profile: Profile,
    workload: Workload,
    *,
    memory_bytes: int,
    solver: str,
    objective: str,
    time_limit_seconds: float,
    seed: int,
    progress: Progress,
    then: str | None,
    tolerance: float,
    kv: Place,
    predictors: bool | None,
) -> Plan:
    """As ``planner.solve.make_plan``, there instead of here, with the error that ``profile`` allows
    experts.

    The profile is sent if it is not there yet; Control-C cancels the job.

    Raises
    ------
    InputError
        As ``make_plan``.
    RunError
        If the server cannot be reached or fails.
    """
    # needs the extra
    from moeplan.client import Client
    from planner.forms import allowed_error

    client = Client(url, token=os.environ.get("MOEPLAN_TOKEN") or None, called=_CALLED)

    def told(step: dict[str, Any]) -> None:
        progress(step["stage"], step["incumbent"] or 0, step["bound"])

    def lost() -> None:
        progress("the service does not answer; asking again", 0, None)

    with client:
        job = client.ask_plan(
            client.upload_profile(profile),
            workload,
            memory_bytes=memory_bytes,
            solver=solver,
            objective=objective,
            time_limit_seconds=time_limit_seconds if searches(solver) else None,
            seed=seed,
            then=then,
            tolerance=tolerance if then is not None else None,
            kv=None if kv == "auto" else kv,
            predictors=predictors,
            allow_error=allowed_error(profile),
            # so that the service has the very plan of the file, and takes traces of its runs
            profile_folder=str(profile.folder),
        )
        try:
            done = client.wait(job.id, told, lost)
        except KeyboardInterrupt:
            with contextlib.suppress(MoeplanError):
                client.cancel(job.id)
            raise
        plan: Plan = client.plan(done.result)
    return plan
