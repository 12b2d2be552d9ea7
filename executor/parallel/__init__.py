"""Experts on several processes: expert-parallel execution of a placement.

``engine`` starts ``group`` and ``worker``, a ``rank`` is one device; ``split`` says which rows go
where and ``exchange`` brings them there and back, ``buffer`` caches experts, ``rebalance`` moves
them between passes, ``measure`` times them for the simulator.
``machines`` are several: ``leader`` and ``follower`` are their launchers, with a ``link`` between.
Importing it loads no torch; each rank's own process does.
"""

from __future__ import annotations

from executor.parallel.engine import ParallelEngine, ParallelRun, RankReport, Rebalance
from executor.parallel.group import RankGroup
from executor.parallel.machines import Machines

__all__ = ["Machines", "ParallelEngine", "ParallelRun", "RankGroup", "RankReport", "Rebalance"]
