"""The back ends: an ordered table, loaded when used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from solvers.errors import OptionError
from solvers.outcome import Outcome, Schedule
from solvers.problem import Problem

__all__ = [
    "BACK_ENDS",
    "BOUNDS",
    "HOSTED",
    "Feature",
    "Limits",
    "Progress",
    "Solver",
    "load",
    "load_runnable",
    "names",
]

Progress = Callable[[str, int, int | None], None]
"""Called with a name, the best objective so far and the bound (ns, weighted)."""


class Feature(Enum):
    """What a back end can do."""

    BOUND = "proves a bound"
    USES_DEMAND = "looks at what scenarios demand"
    HINT = "can start from a schedule"
    RUNNABLE = "makes schedules that the executor can carry out"
    HOST_WORK = "works on items where they lie, if there are costs for that"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    Attributes
    ----------
    work
        Units that do not depend on the clock (CP-SAT's deterministic time; about a second each).
    seconds
        Wall clock; it is a cap on top, so that with time to spare ``work`` alone decides.
    seed
        Of anything random.
    bound
        Whether the tightest bound is wanted, which takes several programs; otherwise one is solved
        for whoever is told of progress.
    """

    work: float = 5.0
    seconds: float = 60.0
    seed: int = 0
    bound: bool = True


class Solver(Protocol):
    """A back end."""

    @property
    def name(self) -> str:
        """As in the table."""
        ...

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        ...

    def solve(
        self,
        problem: Problem,
        limits: Limits,
        hint: Schedule | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Find a schedule; ``INFEASIBLE`` with the smallest capacity where there is none."""
        ...


BACK_ENDS: dict[str, tuple[str, str]] = {
    "cpsat": ("solvers.cpsat", "CpSat"),
    "milp": ("solvers.milp", "Milp"),
    "milp-cbc": ("solvers.milp", "MilpCbc"),
    "all-experts": ("solvers.all_experts", "AllExperts"),
    "on-demand": ("solvers.on_demand", "OnDemand"),
    "frequency": ("solvers.frequency", "Frequency"),
    "lru": ("solvers.lru", "Lru"),
    "lifo": ("solvers.lifo", "Lifo"),
    "fifo": ("solvers.fifo", "Fifo"),
    "lfu": ("solvers.lfu", "Lfu"),
    "flexgen": ("solvers.flexgen", "FlexGen"),
    "klotski": ("solvers.klotski", "Klotski"),
}
"""Name -> module and class, in the order in which they are shown: those that make schedules."""

BOUNDS: dict[str, tuple[str, str]] = {"belady": ("solvers.belady", "Belady")}
"""Those that prove a bound and make no schedule."""

HOSTED: dict[str, tuple[str, str]] = {"fiddler": ("solvers.fiddler", "Fiddler")}
"""Those that make schedules only where a host works on items; elsewhere they say what is missing.
"""


def names() -> tuple[str, ...]:
    """All back ends that make schedules of any problem."""
    return tuple(BACK_ENDS)


def load(name: str) -> Solver:
    """One back end.

    Raises
    ------
    OptionError
        If there is none of this name.
    """
    table = {**BACK_ENDS, **BOUNDS, **HOSTED}
    if name not in table:
        known = ", ".join((*BACK_ENDS, *HOSTED))
        raise OptionError(f"solver {name!r} is unknown; there are {known}")
    module, attribute = table[name]
    return cast(Solver, getattr(importlib.import_module(module), attribute)())


def load_runnable(name: str) -> Solver:
    """One back end that makes schedules.

    Raises
    ------
    OptionError
        If there is none of this name, or it only proves a bound.
    """
    if name in BOUNDS:
        raise OptionError(f"solver {name!r} proves a bound and makes no plan: compare shows it")
    return load(name)
