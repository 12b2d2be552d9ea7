"""What a run on several devices is asked and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ParallelRun", "RankReport", "Rebalance"]


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank did.

    Attributes
    ----------
    rank
        Its number.
    wall_ns, passes
        Of the whole run.
    rows_computed, rows_sent
        Rows that its experts computed, and rows that it sent to other devices.
    hits, misses
        Uses of its experts that found them in its memory when their tokens came, and those that did
        not.
    bytes_read
        From the disk during the run.
    prefetched_bytes, wasted_bytes
        Copied before their router had spoken, and of these what was not used; 0 without an offload
        plan.
    exchange_ns, expert_ns, wait_ns
        Time in exchanges (waiting for slower ranks included), in experts, and in waiting for them.
    read_ns
        Of these waits, reads of a buffer without an offload plan.
    swaps
        Experts that were swapped between devices, on all of them.
    slots
        Experts that its buffer holds.
    exchange_peak_bytes
        Most bytes of rows on their way at once; not in ``memory_bytes``.
    memory_bytes
        What it holds otherwise: dense parts, buffer, keys and values, workspace.
    """

    rank: int
    wall_ns: int
    passes: int
    rows_computed: int
    rows_sent: int
    hits: int
    misses: int
    bytes_read: int
    prefetched_bytes: int
    wasted_bytes: int
    exchange_ns: int
    expert_ns: int
    wait_ns: int
    read_ns: int
    swaps: int
    slots: int
    exchange_peak_bytes: int
    memory_bytes: int

    @property
    def hit_rate(self) -> float | None:
        """Share of uses that found their expert in memory; None where none was used."""
        uses = self.hits + self.misses
        return self.hits / uses if uses else None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """When to look, every so many passes, and what a swap is weighed by.

    ``row_ns``, ``copy_ns``: time of a row in an expert and of reading an expert; None: measured as
    the run goes.
    """

    every: int
    row_ns: float | None = None
    copy_ns: float | None = None


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """New tokens of each prompt, and what each rank did.

    ``layers``: for each rank and MoE layer, pass by pass, counts (of rank 0) and times; where they
    were recorded.
    """

    token_ids: tuple[tuple[int, ...], ...]
    ranks: tuple[RankReport, ...]
    layers: tuple[tuple[dict[str, Any], ...], ...] = ()

    @property
    def wall_ns(self) -> int:
        """From the first rank's start to the last one's end, about: the longest."""
        return max(rank.wall_ns for rank in self.ranks)
