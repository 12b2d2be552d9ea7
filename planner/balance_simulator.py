"""How long an MoE layer takes on many devices, without having them.

From how many rows choose each expert, where experts lie, what an expert's rows cost and what links
carry. A layer is: sizes are told; rows go to their experts; each device computes; results come
back. Nobody goes on before all have come, so

    layer = latency + move(rows) + max over devices of compute + move(results)
    move  = latency + max over devices of max(bytes out, bytes in) / bandwidth

with what stays on its device free. ``benchmarks/parallel.py`` holds it against real processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.documents import Curve, ExpertPlacement, ModelSpec
from planner.placement import Cluster
from solvers.counting import counted
from solvers.errors import DocumentError, OptionError

__all__ = [
    "LayerTimes",
    "Links",
    "check_fits",
    "copies_of",
    "dealt",
    "links_of",
    "simulate",
    "simulate_passes",
]

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Links:
    """What an exchange among all devices costs.

    Attributes
    ----------
    latency_ns
        Of an exchange that moves next to nothing, with as many devices.
    intra_bytes_per_second, inter_bytes_per_second
        Of a device's link to others of its node, and to other nodes; it uses both at once.
    """

    latency_ns: int
    intra_bytes_per_second: float
    inter_bytes_per_second: float

    def __post_init__(self) -> None:
        slowest = min(self.intra_bytes_per_second, self.inter_bytes_per_second)
        if self.latency_ns < 0 or not slowest > 0:
            raise OptionError("a link's latency is negative, or its bandwidth not positive")


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """Predicted times [scenarios, layers] in ns.

    Attributes
    ----------
    compute_ns
        Of the device that computes longest.
    idle_ns
        What the others wait for it, on average over devices.
    exchange_ns
        Of sizes, rows and results.
    """

    compute_ns: Floats
    idle_ns: Floats
    exchange_ns: Floats

    @property
    def total_ns(self) -> Floats:
        """Of the whole layer."""
        total: Floats = self.compute_ns + self.exchange_ns
        return total


def check_fits(placement: ExpertPlacement, model: ModelSpec) -> None:
    """Refuse a placement that is not for this model.

    Raises
    ------
    DocumentError
        If its layers or experts are not the model's.
    """
    moe = {spec.index: spec.experts for spec in model.layers if spec.experts}
    placed = [one.layer for one in placement.layers]
    if placed != list(moe):
        raise DocumentError(
            f"placement: has {counted(len(placed), 'layer')} ({_few(placed)}), {model.name} has "
            f"experts in {len(moe)} ({_few(list(moe))}); place again with this model's routing"
        )
    other = {experts for experts in moe.values() if experts != placement.experts}
    if other:
        raise DocumentError(
            f"placement: has {counted(placement.experts, 'expert')} in each layer, {model.name} "
            f"has {max(other)}; place again with this model's routing"
        )


def _few(layers: list[int]) -> str:
    return ", ".join(map(str, layers[:3])) + (", ..." if len(layers) > 3 else "")


def dealt(load: Int64, devices: int) -> Int64:
    """[..., devices, experts]: rows of each device, where they come from all of them alike.

    Parameters
    ----------
    load
        [..., experts]: rows that chose each expert.
    """
    number = np.arange(devices)[:, None]
    # the odd rows of each expert come from other devices
    turn = (number - np.arange(load.shape[-1])) % devices
    rows: Int64 = (load[..., None, :] + devices - 1 - turn) // devices
    return rows


def copies_of(placement: ExpertPlacement) -> Int64:
    """[layers, experts, devices]: which copy of an expert a device holds, from 1 on; 0 is none."""
    held = np.zeros((len(placement.layers), placement.experts, placement.devices), dtype=np.int64)
    for stage, layer in enumerate(placement.layers):
        for item, devices in enumerate(layer.devices):
            held[stage, item, list(devices)] = np.arange(1, len(devices) + 1)
    return held


def links_of(
    short: tuple[Int64, Floats],
    long: tuple[Int64, Floats],
    placement: ExpertPlacement,
    row_bytes: int,
) -> Links:
    """Links of one node from what real layers took beside their experts.

    Parameters
    ----------
    short, long
        Passes with few and with many rows: load as for ``simulate``, and [scenarios, layers] ns
        without the longest device's experts. What other work on the machine holds up is left out:
        the first decile counts.
    row_bytes
        As for ``simulate``.
    """
    little, much = (_mean_moved(load, placement, row_bytes) for load, _ in (short, long))
    least, most = (float(np.quantile(rest, 0.1)) for _, rest in (short, long))
    if not much > little:
        return Links(int(max(least, 0.0) / 3), math.inf, math.inf)
    # there and back; more rows may be measured faster, by chance
    speed = 2e9 * (much - little) / max(most - least, 1.0)
    return Links(int(max(least - 2e9 * little / speed, 0.0) / 3), speed, speed)


def _mean_moved(load: Int64, placement: ExpertPlacement, row_bytes: int) -> float:
    """Bytes on the busiest device's link, one way: mean over scenarios and layers."""
    parts = [_part(copy) for copy in copies_of(placement)]
    one_node, one = np.zeros((placement.devices, placement.devices)), Links(0, 1.0, 1.0)
    moved = [
        _move_seconds(rows @ part * row_bytes, one_node, one)
        for layers in load
        for rows, part in zip(layers, parts, strict=True)
    ]
    return float(np.mean(moved))


def simulate(
    load: Int64,
    placement: ExpertPlacement,
    *,
    expert: Curve,
    links: Links,
    row_bytes: int,
    at_once: int | None = None,
) -> LayerTimes:
    """Predict the time of each layer in each scenario.

    Parameters
    ----------
    load
        [scenarios, layers, devices, experts]: rows of each device that chose each expert (see
        ``dealt``).
    placement
        Where experts lie; copies take equal parts, to a row.
    expert
        Time of one expert against its rows, alone on its device.
    links
        Links between devices; ``placement.nodes`` says which are of one node.
    row_bytes
        Bytes of a row, on its way to the expert and back.
    at_once
        How many devices can compute at the same time (cores that processes share); None: all.

    Raises
    ------
    OptionError
        If load does not fit the placement.
    """
    held = copies_of(placement)
    if load.ndim != 4 or load.shape[1:] != (len(held), placement.devices, placement.experts):
        raise OptionError(
            f"load is {load.shape}, the placement asks for [scenarios, "
            f"{counted(len(held), 'layer')}, {counted(placement.devices, 'device')}, "
            f"{counted(placement.experts, 'expert')}]"
        )
    most = int(load.sum(axis=2).max(initial=0))
    cost = np.array([expert(rows) for rows in range(most + 1)], dtype=np.float64)
    apart = Cluster(placement.devices, placement.nodes).apart()
    shape = load.shape[:2]
    times = LayerTimes(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    waits = 3 * links.latency_ns if placement.devices > 1 else 0
    for stage, copy in enumerate(held):
        part = _part(copy)
        for scenario in range(len(load)):
            rows = load[scenario, stage]
            busy = cost[_rows_of(rows.sum(axis=0), copy)].sum(axis=0)
            full = busy.max()
            if at_once is not None:
                full = max(full, busy.sum() / min(at_once, placement.devices))
            moved = _move_seconds(rows @ part * row_bytes, apart, links)
            times.compute_ns[scenario, stage] = full
            times.idle_ns[scenario, stage] = full - busy.mean()
            times.exchange_ns[scenario, stage] = waits + 2e9 * moved
    return times


def simulate_passes(
    load: Int64, placement: ExpertPlacement, *, expert: Curve, links: Links, row_bytes: int
) -> LayerTimes:
    """As ``simulate``, of rows [passes, layers, experts] that come from all devices alike."""
    found = [
        simulate(
            dealt(one[None], placement.devices),
            placement,
            expert=expert,
            links=links,
            row_bytes=row_bytes,
        )
        for one in load
    ]
    return LayerTimes(
        np.concatenate([one.compute_ns for one in found]),
        np.concatenate([one.idle_ns for one in found]),
        np.concatenate([one.exchange_ns for one in found]),
    )


def _part(copy: Int64) -> Floats:
    """[experts, devices]: part of an expert's rows that each device takes."""
    parts: Floats = (copy > 0) / (copy > 0).sum(axis=1, keepdims=True)
    return parts


def _rows_of(rows: Int64, copy: Int64) -> Int64:
    """[experts, devices]: rows that each device computes of each expert.

    Row g of an expert goes to copy (g + expert) mod copies.
    """
    copies = copy.max(axis=1)[:, None]
    turn = (copy - 1 - np.arange(len(copy))[:, None]) % copies
    found: Int64 = np.where(copy > 0, (rows[:, None] + copies - 1 - turn) // copies, 0)
    return found


def _move_seconds(moved: Floats, apart: Floats, links: Links) -> float:
    """Time to move ``moved`` [from, to] bytes, without latency; as long back."""
    away = moved * (1 - np.eye(len(moved)))
    within, between = away * (1 - apart), away * apart
    seconds = 0.0
    for bytes_, speed in (
        (within, links.intra_bytes_per_second),
        (between, links.inter_bytes_per_second),
    ):
        most = max(bytes_.sum(axis=0).max(), bytes_.sum(axis=1).max())
        seconds = max(seconds, float(most) / speed)
    return seconds
