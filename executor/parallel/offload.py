"""A placement's offload plan, held against what lies on this machine."""

from __future__ import annotations

from executor.checks import check_source
from executor.source import WeightSource
from planner.documents import ExpertPlacement
from solvers.errors import DocumentError

__all__ = ["check_offload_plan"]


def check_offload_plan(placement: ExpertPlacement, source: WeightSource) -> None:
    """Refuse a plan for another checkpoint or store, or one that contradicts its placement.

    Parameters
    ----------
    placement
        Of this checkpoint's layers and experts, with an ``offload``.
    source
        The weights at hand.

    Raises
    ------
    StaleError
        Naming what differs.
    DocumentError
        Naming the first fault.
    """
    # with it come solvers, which no rank needs
    from planner.offload_check import check_offload

    if placement.offload is None:
        return
    check_source(placement.offload.inputs, source)
    faults = check_offload(placement, source.model)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise DocumentError(
            f"placement: {faults[0].where}: {faults[0].message}{more}: make the plan again with "
            "'moeplan offload'; 'moeplan check' lists what is wrong"
        )
