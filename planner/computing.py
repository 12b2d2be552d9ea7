"""How much of a run's time goes with computation, and how much with copies.

Who waits for whom is not a share of the time: a layer that computes while the disk reads may take
longer for nothing, and a disk that is waited for a tenth of the time may decide about all of it.
So both are asked of the replay: computation is made slower and faster, copies stay.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from solvers.outcome import Schedule
from solvers.problem import Problem, Scenarios
from solvers.replay import Credit, replay

__all__ = ["computing_share"]

_STEP = 0.1
"""Computation takes so much longer, and shorter: about as machines drift."""
_RUNS = 4
"""So many runs of the scenarios are looked at: routing is not what is asked."""


def computing_share(problem: Problem, schedule: Schedule, credit: Credit | None = None) -> float:
    """By how many percent passes take longer where all computation takes 1% longer.

    Where computation and copies both take x times as long, so do passes: copies have the rest.

    Parameters
    ----------
    problem, schedule
        What runs; the schedule has passed the checker.
    credit
        Of the channel, as of ``replay``.

    Returns
    -------
    float
        From 0 (all computation is hidden behind copies) to 1 (the other way round).

    Raises
    ------
    DeadlockError
        As ``solvers.replay.replay``.
    """
    few = problem.scenarios.take_runs(_RUNS)
    slower, faster = (
        _took_ns(problem.replace(scenarios=_slowed(few, by)), schedule, credit)
        for by in (1 + _STEP, 1 / (1 + _STEP))
    )
    if not faster:
        return 1.0
    return min(max(math.log(slower / faster) / (2 * math.log(1 + _STEP)), 0.0), 1.0)


def _took_ns(problem: Problem, schedule: Schedule, credit: Credit | None) -> int:
    result = replay(problem, schedule, credit=credit)
    return int((result.pass_ns * problem.scenarios.weight).sum())


def _slowed(scenarios: Scenarios, by: float) -> Scenarios:
    """All that the compute channel or the host does takes ``by`` times as long."""

    def scaled(durations: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        longer: npt.NDArray[np.int64] = np.rint(durations * by).astype(np.int64)
        return longer

    back, host, asking = scenarios.start_lead_ns, scenarios.host_work_ns, scenarios.asking_ns
    return replace(
        scenarios,
        prologue_ns=scaled(scenarios.prologue_ns),
        lead_ns=scaled(scenarios.lead_ns),
        work_ns=scaled(scenarios.work_ns),
        epilogue_ns=scaled(scenarios.epilogue_ns),
        start_lead_ns=None if back is None else scaled(back),
        host_work_ns=None if host is None else scaled(host),
        asking_ns=None if asking is None else scaled(asking),
    )
