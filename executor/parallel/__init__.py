"""Experts on several processes: expert-parallel execution of a placement.

Importing it loads no torch; each rank's own process does.
"""

from __future__ import annotations

from executor.parallel.engine import ParallelEngine, ParallelRun, RankReport, Rebalance
from executor.parallel.group import RankGroup

__all__ = ["ParallelEngine", "ParallelRun", "RankGroup", "RankReport", "Rebalance"]
