"""What each of many devices does with the experts placed on it: a part of the placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from planner.documents.base import STRICT, Added, Bytes, Keyed, Nanoseconds, Units
from planner.documents.inputs import Inputs
from planner.documents.plan import Expert, Requests, Workload
from planner.documents.predicted import Slowdown
from solvers.outcome import LiveEviction

__all__ = ["DevicePolicy", "DevicePrediction", "KeptExperts", "Offload"]


@dataclass(frozen=True, slots=True)
class KeptExperts:
    """Of one layer's experts on one device: ``resident`` (ascending) stay there, ``prefetch`` are
    copied before the layer's router speaks, in this order; its others are copied on demand."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    resident: tuple[Expert, ...]
    prefetch: tuple[Expert, ...]


@dataclass(frozen=True, slots=True)
class DevicePrediction:
    """What a device takes for the workload, on sequences that its policy was not chosen by.

    Attributes
    ----------
    wall_ns
        With the waits for copies of its own and for the experts of the others, without exchanges.
    wait_ns
        Of these, waits for copies.
    copied_bytes
        What its copies move.
    credit_ns
        As in ``Predicted``: of the link, which each device is taken to have for itself.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    wall_ns: Nanoseconds
    wait_ns: Nanoseconds
    copied_bytes: Bytes
    credit_ns: Added[Annotated[int, Field(ge=1, le=1 << 42)]] = None


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """What one device keeps, and what it copies.

    Attributes
    ----------
    layers
        One entry for each MoE layer of the placement.
    slots, reserve, eviction
        As in ``Policy``, for experts alone.
    solver
        What made it.
    slowdown
        As in ``Predicted``.
    predicted
        What it takes.
    chosen_over
        ``wall_ns`` of the rules that it was compared with, on the same sequences.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    layers: tuple[KeptExperts, ...]
    slots: Units
    reserve: Units
    eviction: LiveEviction
    solver: str
    slowdown: Slowdown
    predicted: DevicePrediction
    chosen_over: Keyed[str, Nanoseconds]


@dataclass(frozen=True, slots=True)
class Offload:
    """How experts that do not fit reach their devices.

    Attributes
    ----------
    inputs
        Hashes of the profile that it was made from.
    workload
        On all devices together.
    batch_size
        Sequences that one device runs at a time.
    memory_bytes
        For experts, on each device: residents and slots.
    chunk_bytes
        Copies are made in pieces of this size.
    devices
        One entry for each device.
    seed
        Of the scenarios and of the solver.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    inputs: Inputs
    workload: Workload
    batch_size: Requests
    memory_bytes: Bytes
    chunk_bytes: Annotated[int, Field(ge=4096, le=64 << 20)]
    devices: tuple[DevicePolicy, ...]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
