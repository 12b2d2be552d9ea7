"""Which threads compute what, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from planner.documents import ThreadRatio, ThreadUse
from solvers.counting import counted

__all__ = ["ratio_words", "thread_words"]


def thread_words(use: ThreadUse) -> str:
    """What a plan or a profile computes with."""
    if not use.several:
        return "one thread computes everything"
    if set(use.several.values()) == {1} and len(use.several) > 1:
        names = [kind.replace("_", " ") for kind in use.several]
        return f"{counted(use.count, 'thread')} compute {', '.join(names)}, of any size"
    kinds: defaultdict[int, list[str]] = defaultdict(list)
    for kind, rows in use.several.items():
        kinds[rows].append(kind.replace("_", " "))
    large = "; ".join(
        f"{', '.join(names)} from {counted(rows, 'row')} on"
        for rows, names in sorted(kinds.items())
    )
    return f"{counted(use.count, 'thread')} compute {large}; one thread computes all else"


def ratio_words(ratios: Sequence[ThreadRatio]) -> dict[str, tuple[str, float]]:
    """By threads and kind: how many times as fast they are as one, by rows; and the median of the
    ratios' spreads, as shares of them."""
    found: defaultdict[str, list[ThreadRatio]] = defaultdict(list)
    for one in sorted(ratios, key=lambda one: (one.threads, one.kind, one.rows)):
        found[f"{counted(one.threads, 'thread')}, {one.kind.replace('_', ' ')}"].append(one)
    return {
        name: (
            f"{', '.join(f'{one.ratio.value:.2f} at {one.rows}' for one in own)} rows",
            median((one.ratio.spread or 0.0) / one.ratio.value for one in own),
        )
        for name, own in found.items()
    }
