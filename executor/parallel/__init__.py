"""Experts on several processes: expert-parallel execution of a placement.

``engine`` starts ``group`` and ``worker``, a ``rank`` is one device; ``split`` says which rows go
where and ``exchange`` brings them there and back, ``buffer`` caches experts, ``serving`` brings
them as an ``offload`` plan says, ``rebalance`` moves them between passes, ``measure`` times them
for the simulator.
``machines`` are several: ``leader`` and ``follower`` are their launchers, with a ``link`` between.
Importing it loads no torch; each rank's own process does.
"""

from __future__ import annotations

from executor.parallel.engine import ParallelEngine
from executor.parallel.group import RankGroup
from executor.parallel.machines import Machines
from executor.parallel.report import ParallelRun, RankReport, Rebalance

__all__ = ["Machines", "ParallelEngine", "ParallelRun", "RankGroup", "RankReport", "Rebalance"]
