"""A sweep: what the store does not have yet is planned, and what comes of it is kept there.

Each pair is a job of the service, settled without its queue: a plan, or a refusal, is found again
by a later sweep, by a server of the same store, and by a sweep that goes on after ``kill -9``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moeplan.service.entries import json_entry, plan_entry
from moeplan.service.store import Job, Store
from moeplan.service.store.documents import Entry
from moeplan.service.store.jobs import job_id
from moeplan.sweeps.pairs import Asked, Pair, Prepared, pairs
from moeplan.sweeps.task import Answers, Task
from planner.documents import Plan, parse_document, to_json
from solvers.counting import counted

__all__ = ["Counts", "Engine", "Swept", "sweep_pairs"]

Engine = Callable[[Iterator[Task]], Answers]
"""Carries out tasks, which it draws as it has room for them."""


@dataclass
class Counts:
    """How far a sweep is.

    Attributes
    ----------
    total
        All pairs.
    planned, found
        Planned now; found in the store.
    refused
        Pairs that cannot work, now or before.
    failed
        Pairs for which there is no answer, by a fault that is not theirs.
    """

    total: int
    planned: int = 0
    found: int = 0
    refused: int = 0
    failed: int = 0

    @property
    def done(self) -> int:
        """Pairs with an answer."""
        return self.planned + self.found + self.refused

    @property
    def left(self) -> int:
        """Pairs that were not come to."""
        return self.total - self.done - self.failed

    def __str__(self) -> str:
        parts = [f"{self.planned + self.found} planned", f"{self.refused} refused"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join([*parts, f"{self.left} left"])


@dataclass
class Swept:
    """What came of a sweep.

    Attributes
    ----------
    counts
        How many of each kind.
    rows
        By the pair's index: model, config, hardware, memory_bytes and ``plan`` (a hash) with a few
        of its figures, or ``problem``.
    document
        Hash of the record in the store; None where a pair failed.
    """

    counts: Counts
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    document: str | None = None


def sweep_pairs(
    store: Store, asked: Asked, engine: Engine, tell: Callable[[Counts], None], swept: Swept
) -> None:
    """Plan all pairs that the store does not know.

    Parameters
    ----------
    store
        Where plans, refusals and the record of the whole sweep are kept.
    asked
        What is swept.
    engine
        Who plans.
    tell
        Called after each pair.
    swept
        Filled as answers come, so that it says what is done where an exception ends the sweep.

    Raises
    ------
    StoreError
        If the store fails.
    RunError
        If the engine does.
    """
    _Sweep(store, asked, tell, swept).run(engine)


class _Sweep:
    """One sweep under way."""

    def __init__(
        self, store: Store, asked: Asked, tell: Callable[[Counts], None], swept: Swept
    ) -> None:
        self._store, self._asked, self._tell, self._swept = store, asked, tell, swept
        self._out: dict[int, tuple[Pair, Prepared]] = {}
        self._kept = ""

    def run(self, engine: Engine) -> None:
        """Carry it out."""
        for task, said in engine(self._tasks()):
            self._settle(*self._out.pop(task.index), said)
        counts = self._swept.counts
        if not counts.failed:
            entry = self._record()
            self._store.documents.put([entry])
            self._swept.document = entry.hash

    def _tasks(self) -> Iterator[Task]:
        """What is to be planned; all others are counted on the way."""
        for pair in pairs(self._asked):
            if not isinstance(pair.prepared, Prepared):
                self._note(pair, {"problem": pair.refused})
                continue
            job = self._store.jobs.get(job_id("plan", pair.inputs))
            if job is not None and self._known(pair, job):
                continue
            packed = pair.prepared.packed
            if packed.digest != self._kept:
                self._store.documents.put(pair.prepared.entries, [packed.arrays])
                self._kept = packed.digest
            self._out[pair.index] = pair, pair.prepared
            yield Task(pair.index, packed, pair.inputs)

    def _known(self, pair: Pair, job: Job) -> bool:
        if job.state == "failed" and job.error is not None and job.error["status"] < 500:
            self._note(pair, {"problem": job.error})
            return True
        if job.state != "done" or job.result_hash is None:
            return False
        kept = self._store.documents.kept("plan", job.result_hash)
        if kept is None:
            return False
        self._note(pair, _figures(kept.summary, kept.hash), found=True)
        return True

    def _settle(self, pair: Pair, prepared: Prepared, said: dict[str, Any]) -> None:
        settle = self._store.jobs.settle
        if "problem" in said:
            settle("plan", pair.inputs, error=said["problem"])
            self._note(pair, said)
            return
        plan = parse_document(Plan, said["plan"], "plan")
        entry = plan_entry(plan, prepared.profile, prepared.packed.digest)
        settle("plan", pair.inputs, [entry], result_hash=entry.hash)
        self._note(pair, _figures(entry.summary, entry.hash))

    def _note(self, pair: Pair, row: dict[str, Any], *, found: bool = False) -> None:
        counts = self._swept.counts
        problem = row.get("problem")
        if problem is None:
            counts.found += found
            counts.planned += not found
        elif problem["status"] < 500:
            counts.refused += 1
        else:
            counts.failed += 1
        self._swept.rows[pair.index] = {**pair.row, **row}
        self._tell(counts)

    def _record(self) -> Entry:
        asked = self._asked
        inputs = {
            "routing": asked.routing,
            "series": asked.series,
            "dtype": asked.dtype,
            "workload": to_json(asked.workload),
            "solver": asked.solver,
            "objective": asked.objective,
            "time_limit_seconds": asked.time_limit_seconds,
            "seed": asked.seed,
        }
        if asked.kv != "auto":
            inputs["kv"] = asked.kv
        if asked.predictors is not None:
            inputs["predictors"] = asked.predictors
        rows = [self._swept.rows[index] for index in range(asked.count)]
        name = (
            f"{counted(len(asked.models), 'model')} on {counted(len(asked.machines), 'machine')} "
            f"within {counted(len(asked.budgets), 'budget')}, {asked.solver}"
        )
        about = {"pairs": len(rows), "planned": sum("plan" in row for row in rows), **inputs}
        return json_entry("sweep", name, about, {"inputs": inputs, "rows": rows})


def _figures(summary: dict[str, Any], digest: str) -> dict[str, Any]:
    """What a sweep says of a plan, out of its summary."""
    return {
        "profile": summary["profile"],
        "plan": digest,
        "solver": summary["solver"],
        "n_batches": summary["n_batches"],
        "batch_size": summary["batch_size"],
        "objective": summary["objective"],
        "gap": summary["gap"],
        "tokens_per_second": summary["predicted"]["tokens_per_second"]["value"],
    }
