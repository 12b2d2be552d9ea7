"""Experts that are computed where they lie, in host memory, while the device computes others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.documents import CostProfile, Hardware, HostCompute
from planner.memory import EXPERT_TILE_ROWS
from planner.profiles import Profile
from solvers.errors import UnsupportedError
from solvers.registry import HOSTED

__all__ = ["check_hosted", "host_stays", "host_times", "host_words"]


def host_stays(hardware: Hardware, costs: CostProfile) -> str | None:
    """Why no expert can be computed on the host; None where the host may take some."""
    if hardware.device != "cuda":
        return (
            f"the device is {hardware.device!r}, the host itself: what lies on its disk is not "
            "computed where it lies"
        )
    if all(channel.name != "h2d" for channel in hardware.channels):
        return "weights come from the disk, so that no expert lies in host memory"
    if costs.host_expert is None:
        return (
            "nothing says how fast the host computes an expert: profile again, or name the CPU "
            "beside the GPU (--hardware GPU+CPU)"
        )
    return None


def host_times(
    hardware: Hardware, costs: CostProfile, demand: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64] | None:
    """Times of demanded experts where they lie ([passes, stages, items]), with the way of their
    rows; None where no host computes. Measured ones are as beside copies, those from data sheets as
    if nothing were copied meanwhile. The last stage is the head, which has no experts."""
    if host_stays(hardware, costs) is not None or costs.host_expert is None:
        return None
    measured = costs.hosting
    curves = [costs.host_expert] if measured is None else [measured.beside, measured.way]
    rows = demand.copy()
    rows[:, -1] = 0
    different, places = np.unique(rows, return_inverse=True)
    times = [sum(one.tiled(int(count), EXPERT_TILE_ROWS) for one in curves) for count in different]
    return np.array(times, dtype=np.int64)[places].reshape(rows.shape)


def check_hosted(solver: str, profile: Profile) -> None:
    """Refuse a solver that needs a host where there is none.

    Raises
    ------
    UnsupportedError
        Saying why.
    """
    why = host_stays(profile.hardware, profile.costs)
    if solver in HOSTED and why is not None:
        raise UnsupportedError(
            f"solver {solver!r} copies each expert or computes it on the CPU, whichever is "
            f"quicker: that needs costs of a CPU beside the device, and {why}"
        )


def host_words(host: HostCompute) -> str:
    """Which experts are computed where they lie, in words."""
    part = "all" if host.percent == 100 else f"{host.percent} in a hundred"
    return (
        f"of the experts that a router demands and that are not on the device {part} are computed "
        "on the CPU, in host memory, those of the fewest tokens and of at most "
        f"{host.rows:,}; the others are copied"
    )
