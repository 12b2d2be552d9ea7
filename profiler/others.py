"""Whether other programs have the cores while something is measured.

What this process waits for, it may wait for by its own threads; so what is asked is how long the
cores were busy in all, by the system's account, less what this process used of them. Time that a
virtual machine's host took (steal) is others', too; interrupts are nobody's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from executor.allocator import usable_cores
from solvers.counting import counted

__all__ = ["MOST_TAKEN", "Moment", "moment", "quietly", "taken", "taken_words"]

T = TypeVar("T")

MOST_TAKEN = 0.1
"""A machine of whose cores others have no more than this share is quiet."""

_LEAST_NS = 50_000_000
"""The system's account is in hundredths of a second: a shorter time says nothing."""
_TRIES = 3
_STATISTICS = Path("/proc/stat")
_BUSY = (0, 1, 2, 7)
"""Of a core's times: of programs, of nice ones, of the kernel for them, and stolen by the host."""


class Moment(NamedTuple):
    """Counters, all in ns.

    Attributes
    ----------
    at_ns
        Of a clock.
    busy_ns
        That the cores which this process may use were busy, all together.
    own_ns
        Of any core, that this process and those that it has waited for used.
    """

    at_ns: int
    busy_ns: int
    own_ns: int


def moment(statistics: Path = _STATISTICS) -> Moment | None:
    """The counters now; None where the system keeps none."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = statistics.read_text(encoding="ascii").splitlines()
        times = [line.split() for line in lines]
        busy = [sum(int(one[1 + at]) for at in _BUSY) for one in times if one and one[0] in ours]
    except (OSError, ValueError, IndexError):
        return None
    if len(busy) < len(ours) or not sum(busy):
        return None
    own = os.times()
    used = time.process_time_ns() + round((own.children_user + own.children_system) * 1e9)
    return Moment(time.perf_counter_ns(), sum(busy) * 10**9 // os.sysconf("SC_CLK_TCK"), used)


def taken(before: Moment | None, after: Moment | None) -> float | None:
    """How many cores other programs had between two moments, on average; None where nothing says,
    or the time was too short to tell."""
    if before is None or after is None or after.at_ns - before.at_ns < _LEAST_NS:
        return None
    spent = after.at_ns - before.at_ns
    others = (after.busy_ns - before.busy_ns) - (after.own_ns - before.own_ns)
    return max(others, 0) / spent


def taken_words(cores: float | None, what: str = "the profile") -> str | None:
    """For a reader of what was measured meanwhile; None where the machine was quiet enough."""
    usable = usable_cores()
    if cores is None or cores <= MOST_TAKEN * usable:
        return None
    return f"other programs had {cores:.1f} of {counted(usable, 'core')} while {what} was measured"


def quietly(
    run: Callable[[], T], look: Callable[[], Moment | None] = moment, tries: int = _TRIES
) -> T:
    """Measure again while others have the cores, so often at most.

    Which one counts is decided by what others did alone, never by what was measured: the best of
    several would be better than a quiet machine is.

    Parameters
    ----------
    run
        Measures.
    look
        Tells the counters.
    tries
        At least 1.

    Returns
    -------
    T
        What ``run`` gave when others had least.
    """
    found: list[tuple[float, T]] = []
    for _ in range(tries):
        before = look()
        made = run()
        cores = taken(before, look())
        if cores is None or cores <= MOST_TAKEN * usable_cores():
            return made
        found.append((cores, made))
    return min(found, key=lambda one: one[0])[1]
