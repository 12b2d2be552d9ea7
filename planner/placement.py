"""From routing statistics to a placement of experts on devices, judged on other scenarios."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.documents.model import ModelSpec
from planner.documents.placement import (
    BalanceFigures,
    ExpertPlacement,
    LayerPlacement,
    PlacementCandidate,
)
from planner.files import read_regular
from planner.memory import held_expert_bytes
from planner.routing_draws import check_work, draw_scenarios, half_counts
from planner.routing_sources import RoutingSource
from solvers.counting import counted
from solvers.errors import BudgetError, OptionError
from solvers.outcome import Stop
from solvers.placement.choose import Origins
from solvers.placement.exact import ENGINES, place_items
from solvers.placement.problem import Placement, PlacementProblem, balance, check_placement
from solvers.placement.rules import RULES
from solvers.placement.traffic import relabel, traffic
from solvers.registry import Limits
from solvers.told import Told, untold

__all__ = [
    "METHODS",
    "SINGLE",
    "Cluster",
    "Scenes",
    "expert_room",
    "file_hash",
    "largest_expert",
    "place",
    "scenes_of",
]

METHODS: tuple[str, ...] = (*RULES, *ENGINES)
"""What can be asked for, those that search last."""

SINGLE: tuple[str, ...] = ("contiguous", "greedy", "anti-correlation")
"""Methods that make no replicas."""

_MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and the links between them.

    Attributes
    ----------
    devices, nodes
        Device d is on node d // (devices / nodes).
    intra_bandwidth, inter_bandwidth
        Bytes per second between two devices of one node, and between nodes; only their ratio
        matters here.

    Raises
    ------
    OptionError
        If devices cannot be divided into nodes, or a bandwidth is not positive.
    """

    devices: int
    nodes: int = 1
    intra_bandwidth: float = 1.0
    inter_bandwidth: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= _MOST_DEVICES:
            raise OptionError(f"{counted(self.devices, 'device')}: give 1 to {_MOST_DEVICES}")
        if self.nodes < 1 or self.devices % self.nodes:
            raise OptionError(
                f"{counted(self.devices, 'device')} cannot be divided into "
                f"{counted(self.nodes, 'node')}"
            )
        if min(self.intra_bandwidth, self.inter_bandwidth) <= 0:
            raise OptionError("a bandwidth between devices is not positive")

    def node_of(self) -> npt.NDArray[np.int64]:
        """[devices]: node of each device."""
        return np.arange(self.devices) // (self.devices // self.nodes)

    def apart(self) -> npt.NDArray[np.float64]:
        """[devices, devices]: 1 between two nodes, else 0."""
        node = self.node_of()
        between: npt.NDArray[np.float64] = (node[:, None] != node[None, :]).astype(np.float64)
        return between

    def link(self) -> npt.NDArray[np.float64]:
        """[devices, devices]: time that moving a row costs, in units of the faster link."""
        fast = max(self.intra_bandwidth, self.inter_bandwidth)
        cost = np.full((self.devices, self.devices), fast / self.intra_bandwidth)
        cost[self.apart() > 0] = fast / self.inter_bandwidth
        np.fill_diagonal(cost, 0.0)
        return cost


@dataclass(frozen=True, eq=False)
class Scenes:
    """Scenarios to fit and to judge by, [scenarios, layers, experts], and how they were drawn.

    ``origins`` says which of the fitted ones share no sequence.
    """

    fit: npt.NDArray[np.int64]
    judge: npt.NDArray[np.int64]
    drawn: str
    origins: Origins = field(default_factory=Origins)


def scenes_of(
    source: RoutingSource,
    *,
    scenarios: int = 512,
    judged: int = 1024,
    batch: int = 1,
    seed: int = 0,
    fit_domains: tuple[str, ...] | None = None,
    judge_domains: tuple[str, ...] | None = None,
    by_domain: bool = False,
) -> Scenes:
    """Draw disjoint scenarios: fitted on the first half of the sequences, judged on the second.

    Where the domains differ, all sequences of both are used.
    """
    check_work(source, max(scenarios, judged), batch, scenarios)
    same = fit_domains == judge_domains
    half: Literal["first", "all"] = "first" if same else "all"
    common = {"batch": batch, "by_domain": by_domain}
    names = source.domains if fit_domains is None else fit_domains
    of_one = by_domain and len(names) > 1
    known = [] if source.heat else half_counts(source, names, half)
    parts = not of_one and max(known, default=0) > 1
    fit = draw_scenarios(
        source,
        scenarios,
        seed=seed,
        half=half,
        domains=fit_domains,
        parts=parts,
        **common,  # type: ignore[arg-type]
    )
    judge = draw_scenarios(
        source,
        judged,
        seed=seed + 1,
        half="second" if same else "all",
        domains=judge_domains,
        **common,  # type: ignore[arg-type]
    )
    unit = "tokens" if source.heat else "sequences" if batch > 1 else "sequence"
    words = f"batches of {batch} {unit}{' of one domain' if by_domain else ''}: {source.statement}"
    # domains, or halves of the sequences, come in turn (see draw_scenarios)
    turns = len(names) if of_one else 2 if parts else 0
    origins = Origins(
        np.arange(scenarios) % turns if turns else None,
        None if source.heat else sum(known) // batch,
    )
    return Scenes(fit, judge, words, origins)


def expert_room(
    cluster: Cluster,
    *,
    layers: int,
    experts: int,
    replicas: int,
    memory_bytes: int | None = None,
    expert_bytes: int | None = None,
) -> npt.NDArray[np.int64]:
    """[layers, devices]: copies of a layer's experts that each device has room for.

    Without a memory it is what an even split needs. With one, each layer gets the same part of a
    device's memory.

    Parameters
    ----------
    memory_bytes, expert_bytes
        Memory for experts on each device, and the size of one expert; both or neither.

    Raises
    ------
    BudgetError
        If not all experts and replicas fit; it names the smallest memory for each device that
        works.
    """
    even = -(-(experts + replicas) // cluster.devices)
    if memory_bytes is None or expert_bytes is None:
        return np.full((layers, cluster.devices), even, dtype=np.int64)
    room = min(memory_bytes // (expert_bytes * layers), experts)
    if room < even:
        smallest = even * expert_bytes * layers
        raise BudgetError(
            f"{memory_bytes:,} bytes for experts on each of {counted(cluster.devices, 'device')} "
            f"hold {counted(room, 'expert')} of each layer; {even} are needed, with "
            f"{counted(replicas, 'replica')}: the smallest memory that works is {smallest:,} bytes "
            f"({-(-smallest // (1 << 20))} MiB)",
            smallest,
        )
    return np.full((layers, cluster.devices), room, dtype=np.int64)


def largest_expert(model: ModelSpec, experts: int, where: str) -> int:
    """Bytes that the largest expert of a model takes on a device.

    Raises
    ------
    OptionError
        If its layers have another number of experts than the routing statistics; ``where`` names
        the model in the message.
    """
    sizes = [held_expert_bytes(layer) for layer in model.layers if layer.experts]
    counts = {layer.experts for layer in model.layers if layer.experts}
    if counts != {experts}:
        raise OptionError(
            f"{where} has {', '.join(map(str, sorted(counts))) or 'no'} experts in a "
            f"layer, the routing statistics {experts}"
        )
    return max(sizes)


def place(
    source: RoutingSource,
    scenes: Scenes,
    cluster: Cluster,
    room: npt.NDArray[np.int64],
    *,
    method: str,
    replicas: int = 0,
    source_hash: str,
    time_limit_seconds: float = 30.0,
    seed: int = 0,
    progress: Told = untold,
) -> ExpertPlacement:
    """Place experts.

    Load comes first: the expected load of the fullest device, over the fitted scenarios. Then
    devices are numbered so that as little as possible moves between them from layer to layer, where
    ``source.joint`` tells.

    Parameters
    ----------
    source, scenes
        Statistics, and the scenarios drawn from them.
    cluster, room
        Devices, and [layers, devices] how many copies each holds of a layer.
    method
        One of ``METHODS``.
    replicas
        Copies of each layer beyond one for each expert.
    source_hash
        SHA-256 of the statistics' file.
    time_limit_seconds, seed
        Of the methods that search.
    progress
        Told by these how many layers are done, of how many (0: not known), and what is being done.

    Raises
    ------
    OptionError
        If the method is unknown, replicas cannot be used, or there is no room for all copies.
    """
    if method not in METHODS:
        raise OptionError(f"method {method!r} is unknown; there are {', '.join(METHODS)}")
    if replicas and method in SINGLE:
        raise OptionError(
            f"--replicas has no effect on {method}, which makes no replicas: use replicate, "
            f"{' or '.join(ENGINES)}"
        )
    if cluster.devices > source.experts + replicas:
        raise OptionError(
            f"{counted(cluster.devices, 'device')} are more than "
            f"{counted(source.experts, 'expert')} and {counted(replicas, 'replica')}: some "
            "would hold nothing; give more --replicas or fewer --devices"
        )
    fit = PlacementProblem(scenes.fit, room, replicas)
    judge = PlacementProblem(scenes.judge, room, replicas)
    limits = Limits(time_limit_seconds, time_limit_seconds, seed)
    placed = place_items(fit, method, limits, scenes.origins, progress)
    placement, bound = placed.placement, placed.bound
    if source.joint is not None and cluster.devices > 1 and method != "contiguous":
        placement = relabel(fit, placement, source.joint, cluster.link())
    faults = check_placement(fit, placement)
    if faults:
        raise AssertionError(f"the checker refuses a placement of {method}: {faults[0]}")
    fitted = _figures(fit, placement, source, cluster)
    return ExpertPlacement(
        method=method,
        devices=cluster.devices,
        nodes=cluster.nodes,
        replicas=replicas,
        experts=source.experts,
        layers=tuple(
            LayerPlacement(layer, tuple(tuple(np.flatnonzero(row).tolist()) for row in held))
            for layer, held in zip(source.layers, placement.held, strict=True)
        ),
        routing_hash=source_hash,
        routing_source="measured" if source.sequences else "synthetic",
        drawn=scenes.drawn,
        fitted=fitted,
        held_out=_figures(judge, placement, source, cluster),
        bound=min(bound, fitted.average_max_load),
        gap=max(1.0 - bound / fitted.average_max_load, 0.0) if fitted.average_max_load else 0.0,
        stop=_STOPS[placed.stop],
        seed=seed,
        candidates=tuple(
            PlacementCandidate(one.name, min(one.average_max_load, 1.0), one.stages)
            for one in placed.candidates
        ),
    )


_STOPS: dict[Stop, Literal["optimal", "time_limit", "rule"]] = {
    Stop.OPTIMAL: "optimal",
    Stop.TIME_LIMIT: "time_limit",
    Stop.RULE: "rule",
}


def _figures(
    problem: PlacementProblem, placement: Placement, source: RoutingSource, cluster: Cluster
) -> BalanceFigures:
    found = balance(problem, placement)
    moved = crossed = None
    if source.joint is not None and source.joint.size:
        total = float(source.joint.sum()) or 1.0
        away = 1.0 - np.eye(cluster.devices)
        moved = min(traffic(placement, source.joint, away) / total, 1.0)
        crossed = min(traffic(placement, source.joint, cluster.apart()) / total, 1.0)
    return BalanceFigures(
        average_max_load=min(found.average_max_load, 1.0),
        max_load=min(found.max_load, 1.0),
        worst_deviation=min(found.worst_deviation, 1.0),
        scenarios=len(problem.load),
        traffic=moved,
        node_traffic=crossed,
    )


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(read_regular(path, most_bytes=1 << 30)).hexdigest()
