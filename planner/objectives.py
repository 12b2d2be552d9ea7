"""What a plan may be made for; each is minimised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.documents import Workload
from planner.scenarios import PassShape
from solvers.errors import OptionError

__all__ = ["ALL_OBJECTIVES", "OBJECTIVES", "Objective", "check_second", "objective_named"]


@dataclass(frozen=True, slots=True)
class Objective:
    """One of them.

    Attributes
    ----------
    name
        As on the command line.
    unit
        Of its value.
    measure
        What is summed over passes: their time, compute's idle time in them, or bytes copied. Or
        ``memory``: the device's peak, which is no sum.
    counts
        Which passes: ``all``, ``decode``, or only the ``first`` prefill.
    """

    name: str
    unit: str
    measure: Literal["time", "idle", "bytes", "memory"]
    counts: Literal["all", "decode", "first"]

    def weight(self, shape: PassShape) -> int:
        """How often a pass counts."""
        if self.counts == "first":
            return int(shape.phase == "prefill" and shape.group == 0)
        if self.counts == "decode":
            return shape.weight if shape.phase == "decode" else 0
        return shape.weight

    def per(self, workload: Workload, shapes: tuple[PassShape, ...]) -> int:
        """What the sum is divided by: tokens, or passes."""
        if self.counts == "first":
            return 1
        if self.counts == "decode":
            return sum(self.weight(shape) for shape in shapes)
        return workload.requests * workload.new_tokens


ALL_OBJECTIVES = (
    Objective("throughput", "ns a token", "time", "all"),
    Objective("time-per-token", "ns a decode pass", "time", "decode"),
    Objective("first-token", "ns", "time", "first"),
    Objective("bubble", "ns a token", "idle", "all"),
    Objective("bytes", "bytes a token", "bytes", "all"),
    Objective("peak-memory", "bytes", "memory", "all"),
)

OBJECTIVES: tuple[str, ...] = tuple(one.name for one in ALL_OBJECTIVES)


def objective_named(name: str, workload: Workload) -> Objective:
    """Look one up.

    Raises
    ------
    OptionError
        If there is none of this name, or the workload has nothing that it counts.
    """
    for one in ALL_OBJECTIVES:
        if one.name == name:
            if one.counts == "decode" and workload.new_tokens < 2:
                raise OptionError(f"objective {name!r} needs at least 2 new tokens")
            return one
    raise OptionError(f"objective {name!r} is unknown; there are {', '.join(OBJECTIVES)}")


def check_second(first: str, then: str | None, tolerance: float, workload: Workload) -> None:
    """Refuse a second objective that can have no effect.

    Raises
    ------
    OptionError
        If it is the first one, unknown, or the tolerance is no share.
    """
    if then is None:
        return
    objective_named(then, workload)
    if then == first:
        raise OptionError(f"the second objective is the first one, {first}: name another")
    if not 0 <= tolerance < 1:
        raise OptionError(f"the tolerance is {tolerance}; give a share from 0 to less than 1")
