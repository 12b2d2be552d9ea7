"""What every result carries: when, where, how and how quietly it was measured.

A benchmark begins a record, and puts ``record.about()`` into its JSON as ``about``;
``benchmarks/report.py`` reads it.
"""

from __future__ import annotations

import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "QUIET_CORES",
    "Record",
    "busy_seconds",
    "children_seconds",
    "machine_facts",
    "machine_words",
]

QUIET_CORES = 0.15
"""A machine is called quiet when everything else on it took fewer cores than this."""
_FEW = 4


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory, system, Python, and torch where it is loaded."""
    torch = sys.modules.get("torch")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **({} if torch is None else {"torch": torch.__version__}),
    }


def machine_words(facts: Mapping[str, Any]) -> str:
    """What ``machine_facts`` says of the hardware and its system, as a page begins."""
    return (
        f"{facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def busy_seconds() -> float:
    """Processor time that all of the machine has used so far."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, first[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    """Processor time of the children that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _others_seconds() -> float:
    return busy_seconds() - children_seconds() - time.process_time()


def _minute() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class Record:
    """One benchmark while it runs.

    Attributes
    ----------
    seeds
        Of everything that is drawn.
    budget
        What limits the work: seconds, memory, runs; in words.
    timed
        Whether the figures depend on how fast the machine was.
    begun, started, others
        When, on the clock and in processor time of others.
    before
        ``about`` of the results that this run adds to; their times count, too.
    """

    seeds: tuple[int, ...]
    budget: str
    timed: bool
    begun: str
    started: float
    others: float
    before: Mapping[str, Any]

    @classmethod
    def begin(
        cls,
        *,
        seeds: Iterable[int] = (0,),
        budget: str = "",
        timed: bool = True,
        before: Mapping[str, Any] | None = None,
    ) -> Record:
        """From here on it is measured how busy the rest of the machine is."""
        now = time.monotonic()
        return cls(tuple(seeds), budget, timed, _minute(), now, _others_seconds(), before or {})

    def about(self) -> dict[str, Any]:
        """For the JSON.

        ``others_cores`` is the mean of the cores that were busy with anything but this process and
        its children; what the children left to run alone counts as others.
        """
        seconds = time.monotonic() - self.started
        others = max(_others_seconds() - self.others, 0.0)
        spent = float(self.before.get("seconds") or 0.0)
        before = float(self.before.get("others_cores") or 0.0)
        cores = (others + before * spent) / max(seconds + spent, 1e-9)
        return {
            "begun": self.before.get("begun") or self.begun,
            "measured": _minute(),
            "seconds": round(seconds + spent, 1),
            "command": _command(),
            "seeds": _range(self.seeds),
            "budget": self.budget,
            "timed": self.timed,
            "others_cores": round(cores, 3),
            "quiet": self._quiet(cores) if self.timed else None,
            "machine": machine_facts(),
        }

    def _quiet(self, cores: float) -> bool:
        # what was added to a noisy result leaves it a noisy one
        return cores < QUIET_CORES and self.before.get("quiet") is not False


def _range(seeds: tuple[int, ...]) -> list[int] | str:
    several = len(seeds) > _FEW and seeds == tuple(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if several else list(seeds)


def _command() -> str:
    """As typed in the repository's root; folders that only this machine has by their names."""
    root = Path(__file__).resolve().parents[1]
    words = []
    for word in sys.argv:
        path = Path(word)
        if path.is_absolute() or word.startswith(".."):
            full = path.resolve()
            word = str(full.relative_to(root)) if full.is_relative_to(root) else path.name
        words.append(word)
    return shlex.join(["python", *words])
