"""Profiles of a machine whose disk is ahead of its rate after a rest."""

from __future__ import annotations

import dataclasses

from planner.documents import Burst, Figure, document_hash
from planner.profiles import Profile

__all__ = ["bursting"]


def bursting(profile: Profile, peak: float, depth: float) -> Profile:
    """The same with a disk that has a burst."""
    (link,) = profile.hardware.channels
    burst = Burst(Figure(peak, "fitted", None, 3), Figure(depth, "fitted", None, 3))
    disk = dataclasses.replace(link, burst=burst)
    hardware = dataclasses.replace(profile.hardware, channels=(disk,))
    costs = dataclasses.replace(profile.costs, hardware_hash=document_hash(hardware))
    index = dataclasses.replace(
        profile.index, hardware_hash=document_hash(hardware), costs_hash=document_hash(costs)
    )
    return dataclasses.replace(profile, hardware=hardware, costs=costs, index=index)
