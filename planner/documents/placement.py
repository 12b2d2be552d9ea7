"""The placement document: which device of many holds which experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from planner.documents.base import STRICT, Added, Count, Document, Hash, Positive, Source
from planner.documents.offload import Offload
from solvers.counting import counted

__all__ = ["BalanceFigures", "ExpertPlacement", "LayerPlacement", "PlacementCandidate"]

Share = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class BalanceFigures:
    """How evenly devices are loaded over scenarios; ``solvers.placement.problem.Balance``.

    ``scenarios`` says over how many; ``traffic`` is the share of rows that leave their device
    between one MoE layer and the next, where the statistics tell (``node_traffic``: their node).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    average_max_load: Share
    max_load: Share
    worst_deviation: Share
    scenarios: Positive
    traffic: Share | None = None
    node_traffic: Share | None = None


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """``devices``: for each expert of MoE layer ``layer`` the devices that hold it, ascending."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    layer: Count
    devices: tuple[tuple[Count, ...], ...]


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A rule or a search that learnt from one part of the fitted scenarios, compared with others on
    another part: ``average_max_load`` there, and in how many ``layers`` it was taken."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    average_max_load: Share
    layers: Count


@dataclass(frozen=True)
class ExpertPlacement(Document):
    """Experts on devices.

    Attributes
    ----------
    method
        What made it: one of ``planner.placement.METHODS``.
    devices, nodes
        Device d is on node d // (devices / nodes).
    replicas
        Copies of each layer allowed beyond one for each expert.
    routing_hash
        SHA-256 of the statistics' file.
    routing_source
        Whether the scenarios are recorded or drawn.
    drawn
        How scenarios were drawn, in words.
    fitted, held_out
        Figures on the scenarios that were fitted, and on others.
    bound, gap
        No placement has a smaller ``fitted.average_max_load`` than ``bound``; gap is the fraction
        (average_max_load - bound) / average_max_load.
    stop
        Why the method stopped.
    candidates
        Of a method that searches: what it chose from, on fitted scenarios kept apart from learning
        (none where there were too few). What is judged on is not among them.
    offload
        What each device keeps of its experts, and copies when; None: they stay, or are read when
        they are needed.
    """

    kind: ClassVar[str] = "placement"

    method: str
    devices: Positive
    nodes: Positive
    replicas: Count
    experts: Positive
    layers: tuple[LayerPlacement, ...]
    routing_hash: Hash
    routing_source: Source
    drawn: str
    fitted: BalanceFigures
    held_out: BalanceFigures
    bound: Share
    gap: Share
    stop: Literal["optimal", "time_limit", "rule"]
    seed: Count = 0
    candidates: tuple[PlacementCandidate, ...] = ()
    offload: Added[Offload] = None

    def __post_init__(self) -> None:
        if self.devices % self.nodes:
            raise ValueError(
                f"{counted(self.devices, 'device')} cannot be divided into "
                f"{counted(self.nodes, 'node')}"
            )
        for at, layer in enumerate(self.layers):
            if len(layer.devices) != self.experts:
                raise ValueError(f"layers.{at} places {len(layer.devices)} of {self.experts}")
            copies = 0
            for expert, devices in enumerate(layer.devices):
                copies += len(devices)
                if not devices or list(devices) != sorted(set(devices)):
                    raise ValueError(f"layers.{at}: expert {expert} is nowhere, or twice somewhere")
                if devices[-1] >= self.devices:
                    raise ValueError(f"layers.{at}: expert {expert} is on device {devices[-1]}")
            if copies > self.experts + self.replicas:
                raise ValueError(f"layers.{at} has more replicas than {self.replicas}")
        if [one.layer for one in self.layers] != sorted({one.layer for one in self.layers}):
            raise ValueError("layers do not ascend")
        if self.offload is not None:
            self._refuse_offload(self.offload)

    def _refuse_offload(self, offload: Offload) -> None:
        if len(offload.devices) != self.devices:
            raise ValueError(
                f"offload has {len(offload.devices)} of {counted(self.devices, 'device')}"
            )
        for device, policy in enumerate(offload.devices):
            if len(policy.layers) != len(self.layers):
                raise ValueError(
                    f"offload.devices.{device} has {len(policy.layers)} of "
                    f"{counted(len(self.layers), 'layer')}"
                )

    def held(self, device: int) -> tuple[tuple[int, ...], ...]:
        """For each MoE layer the experts that a device holds, ascending."""
        return tuple(
            tuple(expert for expert, devices in enumerate(one.devices) if device in devices)
            for one in self.layers
        )
