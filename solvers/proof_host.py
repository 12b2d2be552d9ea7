"""The inequalities of a problem whose host works on items, and what their multipliers prove.

Each demanded item that is not resident is copied, or worked on where it lies. Let h be the part of
it that the host takes, of a stage that is not sequential, H how long the host takes for all of it,
and C0 a stage's prologue, lead and epilogue. With the rest as in ``solvers.proof`` and
``solvers.proof_plan``

    work    t - C + sum of a x h >= 0       the device works on what the host does not
    host    t - C0 - sum of a H h >= 0      one item at a time, after the lead, before the epilogue
    0 <= h <= 1 - r

and t >= C0 takes the place of t >= C. What the host takes is neither copied nor in a slot, so that
in ``busy``, ``held``, ``late`` and ``whole`` 1 - r - h takes the place of 1 - r (not of what y
says: an item that the reference has copied ahead may be the host's in a pass that is behind), and
in ``whole`` X - sum of a x h that of X. In ``late`` x is the least work on a demanded item, there
or here: where none is copied on demand, the device works on one, or the host does. In ``whole`` it
is the device's alone, as v counts where something is copied on demand. A wait for the host is a
wait, in which a pass may get ahead, and is part of t.

h needs no multipliers of its own: where a stage's rows price it at g ns (less than nothing: at 0),
the most that it takes off the bound is g (1 - r), which is linear in r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.errors import OptionError
from solvers.outcome import HostProof, Integers, Proof
from solvers.problem import Problem
from solvers.proof_arrays import refuse_arrays

__all__ = ["HostShares", "able", "host_shares", "least_ns", "refuse_malformed_host"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostShares:
    """What a host adds to a proof, in units of 1 / scale.

    ``total`` to the constant; ``durations`` [passes, stages] is taken off the durations' weight,
    ``residents`` [stages, items] off the coefficients of r.
    """

    total: int
    durations: Integers
    residents: Integers


def able(problem: Problem) -> npt.NDArray[np.bool_]:
    """[passes, stages, items]: what the host may work on."""
    asked = problem.scenarios.demand > 0
    if problem.scenarios.host_work_ns is None:
        return np.zeros_like(asked)
    several = np.array([not stage.sequential for stage in problem.stages], dtype=bool)
    found: npt.NDArray[np.bool_] = asked & several[:, None]
    return found


def least_ns(problem: Problem) -> Int64:
    """[passes, stages]: a stage's computation that no host can spare the device."""
    scenarios = problem.scenarios
    found: Int64 = scenarios.compute_ns - np.where(able(problem), scenarios.work_ns, 0).sum(axis=2)
    return found


def refuse_malformed_host(problem: Problem, proof: HostProof) -> None:
    """Raise an ``OptionError`` unless there is a host, and all multipliers are natural numbers of
    the right shape."""
    if problem.scenarios.host_work_ns is None:
        raise OptionError("a proof has multipliers of a host, and there is none")
    refuse_arrays(proof, dict.fromkeys(("work", "host"), problem.scenarios.demand.shape[:2]))


def host_shares(problem: Problem, proof: Proof, gain: Int64) -> HostShares:
    """Recompute what a host's multipliers add, and what h takes off.

    Parameters
    ----------
    problem
        With a host.
    proof
        Its multipliers are natural numbers; without those of a host, they are 0.
    gain
        [passes, stages, items]: v of ``whole``.
    """
    scenarios = problem.scenarios
    places = np.nonzero(able(problem))
    passes, stages, items = places
    nothing = np.full(scenarios.demand.shape[:2], 0, dtype=object)
    works = nothing if proof.host is None else proof.host.work
    hosts = nothing if proof.host is None else proof.host.host
    late = nothing if proof.plan is None else proof.plan.late
    whole = nothing if proof.plan is None else proof.plan.whole
    at = passes, stages
    copy = problem.copy_ns[stages, items].astype(object)
    work = scenarios.work_ns[places].astype(object)
    host = np.zeros(len(passes), dtype=object)
    if scenarios.host_work_ns is not None:
        host = scenarios.host_work_ns[places].astype(object)
    price = (proof.busy + proof.held + late)[at] * copy
    price += (proof.held + works + whole)[at] * work
    price += whole[at] * gain[places].astype(object) - hosts[at] * host
    residents = np.full(scenarios.demand.shape[1:], 0, dtype=object)
    taken = 0
    for stage, item, value in zip(stages.tolist(), items.tolist(), price, strict=True):
        if value > 0:
            taken += value
            residents[stage, item] -= value
    total = int((works * scenarios.compute_ns.astype(object)).sum()) - taken
    total += int((hosts * least_ns(problem).astype(object)).sum())
    return HostShares(total, works + hosts, residents)
