"""What a sweep plans: each model on each machine within each budget."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moeplan.service.entries import profile_entries
from moeplan.service.problems import problem_of
from moeplan.service.requests import PlanRequest, WorkloadBody
from moeplan.service.store.documents import Entry
from moeplan.sweeps.task import Packed, packed_of
from planner.documents import Machine, ModelSpec, Workload
from planner.documents.faults import fault_words
from planner.drawn_routing import DrawnRouting, draw_routing
from planner.kv import Place
from planner.model_spec import read_model
from planner.offline import (
    check_budget,
    check_dtype,
    choose_dtype,
    largest_budget,
    offline_profile,
)
from planner.profiles import Profile
from planner.routing import trace_bytes
from solvers.errors import InputError, OptionError, UnsupportedError

__all__ = ["Asked", "Model", "Pair", "Prepared", "pairs", "read_models"]


_OPTIONS = {"time_limit_seconds": "--time-limit", "memory_bytes": "--budgets"}


@dataclass(frozen=True, eq=False)
class Model:
    """One of ``--models``: its document, or why there is none."""

    path: Path
    found: ModelSpec | UnsupportedError

    @property
    def name(self) -> str:
        """As the planner names it."""
        if isinstance(self.found, ModelSpec):
            return self.found.name
        path = self.path.resolve()
        return path.parent.name if path.name == "config.json" else path.stem


@dataclass(frozen=True, eq=False)
class Asked:
    """A sweep.

    Attributes
    ----------
    models, machines, budgets
        Each with each; budgets in bytes of the device.
    routing, series
        As for ``draw_routing``.
    dtype
        Type to compute in; None: as weights are stored.
    workload, solver, objective, seed, kv, predictors
        As for ``make_plan``.
    time_limit_seconds
        What the solver's counted work is derived from; None for a solver that does not search.
    """

    models: tuple[Model, ...]
    machines: tuple[Machine, ...]
    budgets: tuple[int, ...]
    routing: str
    series: str | None
    dtype: str | None
    workload: Workload
    solver: str
    objective: str
    time_limit_seconds: float | None
    seed: int
    kv: Place = "auto"
    predictors: bool | None = None

    @property
    def count(self) -> int:
        """How many pairs."""
        return len(self.models) * len(self.machines) * len(self.budgets)

    def check(self) -> None:
        """Refuse what the service would take no job for.

        Raises
        ------
        OptionError
            Naming the option.
        InputError
            If no model at all can have this routing: then it is not a pair's fault.
        """
        if self.dtype is not None:
            check_dtype(self.dtype)
        try:
            self.inputs("0" * 64, self.budgets[0])
        except ValidationError as error:
            fault = error.errors()[0]
            name = str(fault["loc"][-1])
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise OptionError(f"{option} {fault_words(fault)}") from error
        refused = None
        for model in self.models:
            if isinstance(model.found, ModelSpec):
                drawn = _routing(self, model)
                if isinstance(drawn, DrawnRouting):
                    return
                refused = refused or drawn
        if refused is not None:
            raise refused

    def inputs(self, profile_hash: str, memory_bytes: int) -> dict[str, Any]:
        """Of the service's job for the same plan, so that either finds what the other made.

        Raises
        ------
        ValidationError
            If the service takes no such job.
        """
        work = self.workload
        return PlanRequest(
            profile=profile_hash,
            memory_bytes=memory_bytes,
            workload=WorkloadBody(
                requests=work.requests,
                prompt_tokens=work.prompt_tokens,
                new_tokens=work.new_tokens,
                attention_window=work.attention_window,
                attention_sinks=work.attention_sinks,
            ),
            solver=self.solver,
            objective=self.objective,
            time_limit_seconds=self.time_limit_seconds,
            seed=self.seed,
            kv=None if self.kv == "auto" else self.kv,
            predictors=self.predictors,
        ).inputs()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A profile of one model on one machine."""

    profile: Profile
    entries: list[Entry]
    packed: Packed


@dataclass(frozen=True, eq=False)
class Pair:
    """One model on one machine within one budget.

    Attributes
    ----------
    index
        In the order of the sweep.
    prepared
        What it is planned from, or why it cannot be planned.
    inputs
        Of the service's job for the same plan; empty where it cannot be planned.
    """

    index: int
    model: Model
    machine: Machine
    memory_bytes: int
    prepared: Prepared | InputError
    inputs: dict[str, Any]

    @property
    def row(self) -> dict[str, Any]:
        """What the records of a sweep say of it, before anything is planned."""
        return {
            "model": self.model.name,
            "config": str(self.model.path.absolute()),
            "hardware": self.machine.name,
            "memory_bytes": self.memory_bytes,
        }

    @property
    def refused(self) -> dict[str, Any] | None:
        """The problem document of why it cannot be planned."""
        return problem_of(self.prepared) if isinstance(self.prepared, InputError) else None


def read_models(paths: tuple[Path, ...]) -> tuple[Model, ...]:
    """Read configurations; a kind of model that is not known is no fault of the others.

    Raises
    ------
    CheckpointError
        If a file is missing or malformed.
    """
    found = []
    for path in paths:
        try:
            found.append(Model(path, read_model(path)))
        except UnsupportedError as error:
            found.append(Model(path, error))
    return tuple(found)


def pairs(asked: Asked) -> Iterator[Pair]:
    """All pairs, models outermost; a profile is made when its first pair is wanted."""
    index = 0
    for model in asked.models:
        drawn = _routing(asked, model)
        for machine in asked.machines:
            prepared = _prepared(asked, model, machine, drawn)
            for budget in asked.budgets:
                within = _within(machine, budget, prepared)
                inputs = {}
                if isinstance(within, Prepared):
                    inputs = asked.inputs(within.packed.digest, budget)
                yield Pair(index, model, machine, budget, within, inputs)
                index += 1


# the last one is kept: what ``check`` drew is what the first pair wants
@functools.lru_cache(maxsize=1)
def _routing(asked: Asked, model: Model) -> DrawnRouting | InputError:
    if isinstance(model.found, UnsupportedError):
        return model.found
    try:
        return draw_routing(
            asked.routing,
            model.found,
            prompt_tokens=asked.workload.prompt_tokens,
            seed=asked.seed,
            series=asked.series,
        )
    except InputError as error:
        return error


def _prepared(
    asked: Asked, model: Model, machine: Machine, drawn: DrawnRouting | InputError
) -> Prepared | InputError:
    if isinstance(drawn, InputError):
        return drawn
    if isinstance(model.found, UnsupportedError):
        return model.found
    try:
        # one profile for all budgets: it is the machine's, and a plan's documents do not name it
        profile = offline_profile(
            model.path,
            model.found,
            machine,
            drawn,
            dtype=choose_dtype(model.found, machine, asked.dtype),
            memory_bytes=largest_budget(machine),
        )
    except InputError as error:
        return error
    entries = profile_entries(profile)
    return Prepared(
        profile, entries, packed_of(profile, entries[0].hash, trace_bytes(profile.arrays))
    )


def _within(
    machine: Machine, memory_bytes: int, prepared: Prepared | InputError
) -> Prepared | InputError:
    if isinstance(prepared, InputError):
        return prepared
    try:
        check_budget(machine, memory_bytes)
    except InputError as error:
        return error
    return prepared
