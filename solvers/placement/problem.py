"""Where copies of items lie: the problem, a placement, its check and its figures.

Every stage has items, each with a load in every scenario; a device that holds a copy takes its part
of the load, an item's copies taking equal parts. Stages share devices and nothing else, but for the
traffic between one stage and the next (``solvers.placement.traffic``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solvers.checker import Violation
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = [
    "Balance",
    "Placement",
    "PlacementProblem",
    "balance",
    "check_placement",
    "device_loads",
    "fullest",
]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """What is to be placed.

    Attributes
    ----------
    load
        [scenarios, stages, items]: rows that a scenario asks of each item.
    room
        [stages, devices]: most copies of a stage's items that each device holds.
    replicas
        Copies of each stage beyond one for each item; a placement may use fewer.

    Raises
    ------
    OptionError
        If arrays do not fit each other, a load is negative, or there is not room for all copies.
    """

    load: Int64
    room: Int64
    replicas: int = 0

    def __post_init__(self) -> None:
        if self.load.ndim != 3 or self.room.ndim != 2 or len(self.room) != self.load.shape[1]:
            raise OptionError(
                "load is not [scenarios, stages, items] or room not [stages, devices]"
            )
        if not all(self.load.shape) or not self.room.shape[1]:
            raise OptionError("a placement needs a scenario, a stage, an item and a device")
        if self.load.min() < 0 or self.room.min() < 0 or self.replicas < 0:
            raise OptionError("a load, a device's room or the number of replicas is negative")
        _, _, items = self.load.shape
        most = items * (self.devices - 1)
        if self.replicas > most:
            raise OptionError(
                f"{counted(self.replicas, 'replica')}: too many for {counted(items, 'item')} "
                f"on {counted(self.devices, 'device')}, one copy on each: give at most "
                f"{most}"
            )
        short = np.flatnonzero(np.minimum(self.room, items).sum(axis=1) < items + self.replicas)
        if len(short):
            held = int(np.minimum(self.room[short[0]], items).sum())
            raise OptionError(
                f"{counted(items, 'item')} and {counted(self.replicas, 'replica')} of stage "
                f"{short[0]} do not fit into {counted(self.devices, 'device')} with room "
                f"for {counted(held, 'copy')} in all"
            )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return int(self.room.shape[1])

    @cached_property
    def asked(self) -> Bools:
        """[scenarios, stages]: whether a scenario asks anything of a stage."""
        some: Bools = self.load.sum(axis=2) > 0
        return some

    @cached_property
    def share(self) -> Floats:
        """[scenarios, stages, items]: share of a stage's load; all 0 where there is none."""
        total = self.load.sum(axis=2, keepdims=True)
        shares: Floats = self.load / np.maximum(total, 1)
        return shares

    def take(self, scenarios: Bools) -> PlacementProblem:
        """Only some scenarios."""
        return PlacementProblem(self.load[scenarios], self.room, self.replicas)

    @cached_property
    def mean_share(self) -> Floats:
        """[stages, items]: mean of ``share`` over the scenarios."""
        mean: Floats = self.share.mean(axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class Placement:
    """``held`` [stages, items, devices]: which device holds a copy of which item."""

    held: Bools

    @cached_property
    def copies(self) -> Int64:
        """[stages, items]: copies of each item."""
        counts: Int64 = self.held.sum(axis=2, dtype=np.int64)
        return counts

    @cached_property
    def part(self) -> Floats:
        """[stages, items, devices]: part of an item's load that each device takes."""
        parts: Floats = self.held / np.maximum(self.copies, 1)[:, :, None]
        return parts


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly devices are loaded; "Towards MoE Deployment" (2303.06182), section on balancing.

    Attributes
    ----------
    average_max_load
        Share of a stage's load on its fullest device: mean over scenarios and stages; 1 / devices
        is even.
    max_load
        The largest of them.
    worst_deviation
        Largest distance of any device's share from 1 / devices.
    """

    average_max_load: float
    max_load: float
    worst_deviation: float


def fullest(problem: PlacementProblem, placement: Placement) -> Floats:
    """[scenarios, stages]: share of a stage's load on its fullest device."""
    loads: Floats = device_loads(problem, placement).max(axis=2)
    return loads


def device_loads(problem: PlacementProblem, placement: Placement) -> Floats:
    """[scenarios, stages, devices]: share of each stage's load that each device takes."""
    loads: Floats = np.einsum("sti,tid->std", problem.share, placement.part, optimize=True)
    return loads


def balance(problem: PlacementProblem, placement: Placement) -> Balance:
    """The figures of a placement; a stage without load in a scenario counts nowhere in it."""
    loads = device_loads(problem, placement)
    asked = problem.asked
    if not asked.any():
        return Balance(0.0, 0.0, 0.0)
    full = loads.max(axis=2)[asked]
    away = np.abs(loads - 1.0 / problem.devices).max(axis=2)[asked]
    return Balance(float(full.mean()), float(full.max()), float(away.max()))


def check_placement(problem: PlacementProblem, placement: Placement) -> list[Violation]:
    """All violations of a placement; shares no code with any method."""
    found: list[Violation] = []
    _, stages, items = problem.load.shape
    if placement.held.shape != (stages, items, problem.devices):
        wanted = (stages, items, problem.devices)
        message = f"held is {placement.held.shape}, the problem asks for {wanted}"
        return [Violation("shape", "held", message)]
    for stage in range(stages):
        where, total = f"stages.{stage}", 0
        for item in range(items):
            copies = [d for d in range(problem.devices) if placement.held[stage, item, d]]
            total += len(copies)
            if not copies:
                found.append(Violation("missing", where, f"item {item} is on no device"))
        if total > items + problem.replicas:
            message = (
                f"{counted(total, 'copy')} of {counted(items, 'item')} with "
                f"{counted(problem.replicas, 'replica')}"
            )
            found.append(Violation("replicas", where, message))
        for device in range(problem.devices):
            held = sum(bool(placement.held[stage, item, device]) for item in range(items))
            room = int(problem.room[stage, device])
            if held > room:
                message = f"device {device} holds {counted(held, 'copy')}, but has room for {room}"
                found.append(Violation("room", where, message))
    return found
