"""Items that are worked on where they lie: the rule, and what no use of the host can beat.

A stage's demanded items are copied one after another while the host works on others; which ones
follows from their rows when the demand becomes known (``HostShare``), so that a schedule fixes a
rule and no list.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from solvers.outcome import Bound, HostShare
from solvers.problem import Problem
from solvers.scenarios import Int64

__all__ = ["device_ns", "host_share_of", "host_takes", "physical_bound"]


def host_takes(rows: Sequence[int], share: HostShare) -> int:
    """How many of a stage's demanded items the host takes: so many of the last.

    Parameters
    ----------
    rows
        Of the items whose copies have not begun, the most first.
    share
        The rule.
    """
    few = sum(count <= share.rows for count in rows)
    return min(len(rows) * share.percent // 100, few)


def host_share_of(problem: Problem) -> HostShare | None:
    """Copy or work where it lies, whichever is quicker for each item by itself.

    That is a limit on rows, as copies take the same for any number of them; where items differ, the
    limit with which all demanded items together take least. None where copying is always quicker,
    or there is no host.
    """
    scenarios = problem.scenarios
    if scenarios.host_work_ns is None:
        return None
    several = np.array([not stage.sequential for stage in problem.stages])
    asked = (scenarios.demand > 0) & several[:, None]
    rows = scenarios.demand[asked]
    saved = (scenarios.work_ns + problem.copy_ns - scenarios.host_work_ns)[asked]
    weight = np.broadcast_to(scenarios.weight[:, None, None], asked.shape)[asked]
    different, places = np.unique(rows, return_inverse=True)
    sums = np.zeros(len(different), dtype=np.int64)
    np.add.at(sums, places, saved * weight)
    gained = np.cumsum(sums)
    if not gained.size or int(gained.max()) <= 0:
        return None
    return HostShare(int(different[int(np.argmax(gained))]), 100)


def physical_bound(problem: Problem) -> Bound:
    """All computation (``device_ns``), as if nothing were ever waited for. Of a correction
    (``Problem.correction_ns``) as much counts as could be saved at most."""
    scenarios = problem.scenarios
    value = int((device_ns(problem).sum(axis=1) * scenarios.weight).sum())
    return Bound(value + problem.most_corrected_ns, "physical")


def device_ns(problem: Problem) -> Int64:
    """[passes, stages]: the least that computation takes; of a problem with a host the demanded
    items are split between both, in fractions, as suits each stage best.

    Notes
    -----
    With L for the rest of a stage, x for an item's work on the device, h on the host and a share z
    of it done there, a stage takes L + max(sum of x (1 - z), sum of h z) or more. The least of that
    moves the items with the largest x / h to the host first, until both take as long. Sequential
    stages are the device's alone. Rounded down to whole ns for each stage.
    """
    scenarios = problem.scenarios
    each = scenarios.compute_ns
    host = scenarios.host_work_ns
    if host is not None:
        each = each.copy()
        for index, stage in zip(*np.nonzero(each), strict=True):
            if not problem.stages[stage].sequential:
                works, hosts = scenarios.work_ns[index, stage], host[index, stage]
                asked = scenarios.demand[index, stage] > 0
                pairs = list(zip(works[asked].tolist(), hosts[asked].tolist(), strict=True))
                each[index, stage] -= _most_spared(pairs)
    return each


def _most_spared(pairs: list[tuple[int, int]]) -> int:
    """Of the (device, host) works of a stage the most that a host can spare, rounded up."""
    left, busy = Fraction(sum(work for work, _ in pairs)), Fraction(0)
    total = left
    useful = [pair for pair in pairs if pair[0]]
    order = sorted(useful, key=lambda pair: Fraction(-pair[0], pair[1]) if pair[1] else -_FREE)
    for work, host in order:
        if left <= busy:
            break
        if left - work >= busy + host:
            left, busy = left - work, busy + host
            continue
        # a share of this one makes both take as long
        part = (left - busy) / (work + host)
        left -= part * work
        break
    return -int(-(total - left) // 1)


_FREE = Fraction(1 << 62)
